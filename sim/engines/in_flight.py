"""Activations in flight on the ranks of many plans: how many micro-batches' GPipe, 1F1B and interleaved 1F1B keep."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.arrays import Ints, PlanBools, PlanFloats, PlanInts

_ROUNDS = 3
"""Rounds of pp micro-batches after which an interleaved order keeps no more than before: it warms up in fewer than two
and repeats after one."""


class InFlight(NamedTuple):
    """Chunks whose activations a rank keeps when it keeps most, over plans.

    chunks : all of them.
    least, most : of those the outermost, with embedding or head; one of the two is where the rank's memory peaks.
    """

    chunks: PlanInts
    least: PlanInts
    most: PlanInts

    def peak(self, middle: PlanFloats, outermost: PlanFloats) -> PlanFloats:
        """Most bytes kept, of chunks of `middle` bytes but for the outermost. [bytes]"""
        extra = outermost - middle
        return np.asarray(self.chunks * middle + np.maximum(self.least * extra, self.most * extra))


class InFlightByRank(NamedTuple):
    """What the first and the last rank keep, and chunks kept by the fullest middle one; over plans."""

    first: InFlight
    middle: PlanInts
    last: InFlight


def in_flight_by_rank(
    pp: PlanInts, num_chunks: PlanInts, num_microbatches: PlanInts, gpipe: PlanBools
) -> InFlightByRank:
    """What ranks keep. Of one chunk a rank GPipe keeps all micro-batches and 1F1B pp − rank."""
    m, v = num_microbatches, num_chunks
    many = np.flatnonzero(v > 1)
    sizes = np.stack([pp[many], v[many], np.minimum(m[many] // pp[many], _ROUNDS)])
    cases, case = np.unique(sizes, axis=1, return_inverse=True)
    ends = []
    for last, own in ((False, np.where(gpipe, m, np.minimum(m, pp))), (True, np.where(gpipe, m, 1))):
        kept = InFlight(own, own.copy(), own.copy())
        if len(many):
            for whole, part in zip(kept, _interleaved(cases[0], cases[1], cases[2], last), strict=True):
                whole[many] = part[case.ravel()]
        ends.append(kept)
    # The fullest of the middle ranks is the second.
    middle = np.where(v > 1, np.minimum(m * v, 2 * (pp - 2) + (v - 1) * pp + 1), np.minimum(m, pp - 1))
    return InFlightByRank(ends[0], np.where(gpipe, m, middle), ends[1])


def _interleaved(pp: Ints, chunks: Ints, rounds: Ints, last: bool) -> tuple[Ints, Ints, Ints]:
    """The fields of InFlight for the first or the last rank of `sim.schedules.interleaved`.

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

    def on(count: Ints, chunk: Ints) -> Ints:
        """How many of the first `count` visits go to a chunk."""
        return np.asarray(count // period * pp + np.clip(count % period - chunk * pp, 0, pp))

    kept = on(before + 1, outer) - on(np.maximum(before - warmup, 0), chunks - 1 - outer)
    return begin + 1, kept.min(axis=0), kept.max(axis=0)
