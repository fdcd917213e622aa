"""What an order alone says of every plan that runs in it: activations in flight, who holds what, how often it turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sim.arrays import Array, Ints
from sim.schedules import Order
from sim.schedules.actions import F
from sim.schedules.passes import IN_FLIGHT, peak_in_flight, weight_versions

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

    @property
    def actions_a_microbatch(self) -> float:
        """How many actions the arrays hold for each micro-batch in them."""
        fold = self.order.fold
        return len(self.order) / (self.order.num_microbatches if fold is None else fold.kept)


def facts_of(order: Order, kind_of_stage: Ints) -> OrderFacts:
    """The facts of an order; those of the last few are kept."""
    return _facts_of(order, kind_of_stage.tobytes())


@lru_cache(maxsize=128)
def _facts_of(order: Order, kind_of_stage: bytes) -> OrderFacts:
    kinds = np.frombuffer(kind_of_stage, dtype=np.int64)
    return OrderFacts(order, kinds, int(kinds.max()) + 1)


def undominated(rows: Array) -> Array:
    """Rows that no other row exceeds element-wise, each once."""
    rows = np.unique(rows, axis=0)
    kept = rows[:0]
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not (kept >= row).all(axis=1).any():
            kept = np.concatenate([kept, row[np.newaxis]])
    return kept
