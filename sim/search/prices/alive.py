"""How many micro-batches' activations the ranks of many plans keep at once: the schedules' orders in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.search.plans.columns import SCHEDULES, Columns

Array = np.ndarray
_ROUNDS = 3
"""Rounds of pp micro-batches after which an interleaved order keeps no more than before: it warms up in fewer than two
and repeats after one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Chunks whose activations a rank keeps when it keeps most, over rows.

    chunks : all of them.
    least, most : of those the outermost, with embedding or head; one of the two is where the rank's memory peaks.
    """

    chunks: Array
    least: Array
    most: Array

    def peak(self, middle: Array, outermost: Array) -> Array:
        """Most bytes kept, of chunks of `middle` bytes but for the outermost. [bytes]"""
        extra = outermost - middle
        peak: Array = self.chunks * middle + np.maximum(self.least * extra, self.most * extra)
        return peak


@dataclass(frozen=True, slots=True)
class KeptByRanks:
    """Of the first and the last rank, and chunks kept by the fullest middle one; over rows."""

    first: Kept
    middle: Array
    last: Kept

    def take(self, rows: Array) -> KeptByRanks:
        """Of some of the rows."""
        first, last = (Kept(each.chunks[rows], each.least[rows], each.most[rows]) for each in (self.first, self.last))
        return KeptByRanks(first, self.middle[rows], last)


def kept_by_ranks(columns: Columns, num_microbatches: Array) -> KeptByRanks:
    """What ranks keep in these rows. Of one chunk a rank GPipe keeps all micro-batches and 1F1B pp − rank."""
    m, pp, v = num_microbatches, columns.pp, columns.num_chunks
    gpipe = columns.schedule == SCHEDULES.index("gpipe")
    many = np.flatnonzero(v > 1)
    sizes = np.stack([pp[many], v[many], np.minimum(m[many] // pp[many], _ROUNDS)])
    cases, case = np.unique(sizes, axis=1, return_inverse=True)
    ends = []
    for last, own in ((False, np.where(gpipe, m, np.minimum(m, pp))), (True, np.where(gpipe, m, 1))):
        kept = Kept(own, own.copy(), own.copy())
        if len(many):
            found = _interleaved(cases[0], cases[1], cases[2], last)
            for whole, part in zip((kept.chunks, kept.least, kept.most), found, strict=True):
                whole[many] = part[case.ravel()]
        ends.append(kept)
    # The fullest of the middle ranks is the second.
    middle = np.where(v > 1, np.minimum(m * v, 2 * (pp - 2) + (v - 1) * pp + 1), np.minimum(m, pp - 1))
    return KeptByRanks(ends[0], np.where(gpipe, m, middle), ends[1])


def _interleaved(pp: Array, chunks: Array, rounds: Array, last: bool) -> tuple[Array, Array, Array]:
    """The fields of Kept for the first or the last rank of `sim.schedules.interleaved`.

    After its warm-up a rank does a forward and a backward in turn, and after each forward keeps one chunk more than in
    the warm-up. Before, both all chunks kept and those besides the outermost only grow: so its memory does, and peaks
    after one of these forwards. The outermost chunk is the first rank's first and the last rank's last.
    """
    period = pp * chunks
    warmup = (0 if last else 2 * (pp - 1)) + (chunks - 1) * pp
    forwards = rounds * period
    begin = np.minimum(warmup, forwards - 1)
    # Forwards before the one looked at: what is kept repeats after a period.
    before = begin + np.arange(int(period.max(initial=0)) + 1)[:, np.newaxis]
    before = np.minimum(before, np.minimum(forwards - 1, begin + period))
    outer = chunks - 1 if last else 0 * chunks

    def on(count: Array, chunk: Array) -> Array:
        """Of so many visits in turn, those to a chunk."""
        visits: Array = count // period * pp + np.clip(count % period - chunk * pp, 0, pp)
        return visits

    kept = on(before + 1, outer) - on(np.maximum(before - warmup, 0), chunks - 1 - outer)
    return begin + 1, kept.min(axis=0), kept.max(axis=0)
