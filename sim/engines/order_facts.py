"""What an order alone says of every plan in it: activations in flight, who holds what, how often it turns.

GPipe, 1F1B and interleaved 1F1B have their activations in flight as a formula too, for many plans at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sim.arrays import Array, Ints, PlanBools, PlanFloats, PlanInts, distinct
from sim.schedules import Order
from sim.schedules.actions import F
from sim.schedules.passes import IN_FLIGHT, peak_in_flight, weight_versions

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
    """The fields of InFlight for the first or the last rank of `sim.schedules.many_chunks.interleaved`.

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


FREED_EARLIEST = np.array([1, -1, -1, 0, 0])
"""Changes of what is in flight where weight gradients float: each frees activations after its input gradient."""


@dataclass(frozen=True, slots=True)
class FullestRanks:
    """Activations in flight on ranks of one kind, when they keep most.

    kind : of the ranks.
    counts : micro-batches kept of each kind of stage, (moments, kinds of stages); no moment has as many of all kinds as
        another.
    logits : micro-batches whose logits are kept at most. versions : of the weights.
    """

    kind: int
    counts: Ints
    logits: int
    versions: int


class OrderFacts:
    """An order, or the beginning of one that repeats, with the kind of each of its stages.

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    """

    def __init__(self, order: Order, kind_of_stage: Ints, num_kinds: int, floating: bool = False) -> None:
        self.order, self.kind_of_stage, self.num_kinds, self.floating = order, kind_of_stage, num_kinds, floating

    @cached_property
    def in_flight(self) -> Ints:
        """Micro-batches that each rank keeps of each kind of stage, (ranks, moments, kinds), when it keeps most.

        Ranks with fewer such moments have zeros in their place.
        """
        order = self.order
        change = (FREED_EARLIEST if self.floating else IN_FLIGHT)[order.kind]
        counts = np.zeros((len(order), self.num_kinds), dtype=np.int64)
        counts[np.arange(len(order)), self.kind_of_stage[order.stage]] = change
        begin = order.first[:-1]
        whole = np.concatenate([np.zeros((1, self.num_kinds), dtype=np.int64), np.cumsum(counts, axis=0)])
        after = whole[1:] - whole[begin][order.rank]
        most = np.maximum(np.maximum.reduceat(after, begin), 0)
        one_kind = np.count_nonzero(most, axis=1) <= 1
        kept = []
        for rank in range(order.num_ranks):
            if one_kind[rank]:
                kept.append(most[rank : rank + 1])
                continue
            here = order.of_rank(rank)
            # Most is kept after a forward that no other follows.
            peaks = (order.kind[here] == F) & np.append(order.kind[here][1:] != F, True)
            kept.append(undominated(after[here][peaks]))
        found = np.zeros((len(kept), max(map(len, kept)), self.num_kinds), dtype=np.int64)
        for rank, each in enumerate(kept):
            found[rank, : len(each)] = each
        return found

    @cached_property
    def logits(self) -> Ints:
        """Micro-batches whose logits each rank keeps at most."""
        return np.asarray(peak_in_flight(self.order, self.order.is_head.astype(float)).astype(np.int64))

    @cached_property
    def versions(self) -> Ints:
        """Versions of its weights that each rank keeps at most."""
        return weight_versions(self.order)[0]

    def fullest(self, kind_of_rank: Ints) -> list[FullestRanks]:
        """What ranks that are alike keep, together."""
        columns = np.stack([kind_of_rank, self.logits, self.versions])
        alike, which = np.unique(columns, axis=1, return_inverse=True)
        moments = [
            self.in_flight[which.ravel() == place].reshape(-1, self.num_kinds) for place in range(alike.shape[1])
        ]
        return [
            FullestRanks(kind, undominated(counts), logits, versions)
            for (kind, logits, versions), counts in zip(alike.T.tolist(), moments, strict=True)
        ]


def facts_of(order: Order, kind_of_stage: Ints) -> OrderFacts:
    """The facts of an order; those of the last few are kept."""
    return _facts_of(order, kind_of_stage.tobytes())


@lru_cache(maxsize=128)
def _facts_of(order: Order, kind_of_stage: bytes) -> OrderFacts:
    kinds = np.frombuffer(kind_of_stage, dtype=np.int64)
    return OrderFacts(order, kinds, int(kinds.max()) + 1)


def undominated(rows: Array) -> Array:
    """Rows that no other row exceeds element-wise, each once."""
    rows = distinct(rows, axis=0)
    kept = rows[:0]
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not (kept >= row).all(axis=1).any():
            kept = np.concatenate([kept, row[np.newaxis]])
    return kept
