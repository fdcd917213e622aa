"""What an order alone says of every plan that runs in it: what is kept, who holds what, how often it visits stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sim.schedules import Order
from sim.schedules.actions import B, F, I, U, W
from sim.schedules.passes import ALIVE, visits_per_stage, weight_versions
from sim.schedules.play import by_levels
from sim.search.schedules.floating import Fixed, fixed_of
from sim.search.schedules.rank_kinds import RankKind
from sim.search.schedules.split_passes import FIRST, LAST, MIDDLE

Array = np.ndarray
KEPT_AT_LEAST = np.array([1, -1, -1, 0, 0])
"""As `ALIVE` where weight gradients stand elsewhere in every plan: each comes after its input gradient."""


@dataclass(frozen=True, slots=True)
class Moments:
    """When ranks of one kind keep most.

    alive : first, middle and last stages' micro-batches, over moments of which no other keeps as many of all three.
    logits : micro-batches whose logits are kept. versions : of the weights.
    """

    kind: RankKind
    alive: Array
    logits: int
    versions: int


@dataclass(frozen=True)
class OrderFacts:
    """An order, or the beginning of one that repeats.

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    """

    order: Order
    floating: bool = False

    @cached_property
    def per_copy(self) -> int:
        """Stages of a copy of the model."""
        return self.order.num_stages // self.order.copies

    @cached_property
    def in_levels(self) -> Order:
        """The order to be played for many plans at once, which pays from a few ranks on."""
        order = self.order
        if order.levels is not None:
            return order
        pairs = np.full(len(order), -1) if order.pair_needs is None else order.pair_needs
        sequence, levels = by_levels(order.needs, pairs, order.first)
        return replace(order, topological=sequence, levels=levels)

    @cached_property
    def kind_of_stage(self) -> Array:
        """FIRST, MIDDLE or LAST."""
        within = np.arange(self.order.num_stages) % self.per_copy
        return np.where(within == 0, FIRST, np.where(within == self.per_copy - 1, LAST, MIDDLE))

    @cached_property
    def code(self) -> Array:
        """Of every action which of (kind of action, kind of stage), counted row by row."""
        return np.asarray(3 * self.order.kind + self.kind_of_stage[self.order.stage])

    @cached_property
    def rank_kinds(self) -> tuple[RankKind, ...]:
        """Of every rank."""
        order, chunks = self.order, self.order.num_stages / self.order.copies / self.order.num_ranks
        found = []
        for rank in range(order.num_ranks):
            held = np.flatnonzero(order.rank_of_stage == rank)
            kinds = self.kind_of_stage[held]
            heads = int(order.is_head[held].sum())
            found.append(RankKind(len(held) / chunks, int((kinds == FIRST).sum()), heads, bool(kinds[0] == FIRST)))
        return tuple(found)

    @cached_property
    def moments(self) -> tuple[Moments, ...]:
        """Of all ranks, those that are alike together."""
        order = self.order
        change = (KEPT_AT_LEAST if self.floating else ALIVE)[order.kind]
        counts = np.zeros((3, len(order)), dtype=np.int64)
        counts[self.kind_of_stage[order.stage], np.arange(len(order))] = change
        of_head = order.is_head[order.stage] * change
        versions, _ = weight_versions(order)
        alike: dict[tuple[RankKind, int, int], list[Array]] = {}
        for rank, kind in enumerate(self.rank_kinds):
            here = order.of_rank(rank)
            logits = int(np.cumsum(of_head[here]).max(initial=0))
            # Most is kept after a forward that no other follows.
            peaks = (order.kind[here] == F) & np.append(order.kind[here][1:] != F, True)
            kept = _largest(np.cumsum(counts[:, here], axis=1)[:, peaks])
            alike.setdefault((kind, logits, int(versions[rank])), []).append(kept)
        return tuple(
            Moments(kind, _largest(np.concatenate(each, axis=1)), logits, number)
            for (kind, logits, number), each in alike.items()
        )

    @cached_property
    def _turns(self) -> Array:
        """Where a rank turns to another stage, of forwards and of backwards."""
        order = self.order
        turn = np.zeros(len(order), dtype=np.int64)
        for chosen in (order.kind == F, (order.kind == B) | (order.kind == I)):
            stage, rank = order.stage[chosen], order.rank[chosen]
            turn[chosen] = np.concatenate([[True], (np.diff(stage) != 0) | (np.diff(rank) != 0)])
        return turn

    def visits(self, times: Array) -> Array:
        """As `sim.schedules.passes.visits_per_stage`, of orders in which so many blocks are left out."""
        order = self.order
        if order.fold is None or order.fold.endless:
            return np.full(len(times), visits_per_stage(order))
        turns = self._turns.sum() + self._turns[order.fold.block(0)].sum() * times
        return np.asarray(np.maximum(turns, 2 * order.num_stages) / (2 * order.num_stages))

    @cached_property
    def last_gradients(self) -> Array:
        """Index of the last gradient action on each stage, over ranks and their stages in the order in which these end;
        a rank with fewer stages has −1 at the end. Of those that float the input gradient before."""
        order = self.order
        gradients = np.flatnonzero((order.kind == I) if self.floating else (order.kind != F) & (order.kind != U))
        _, from_end = np.unique(order.stage[gradients][::-1], return_index=True)
        last = np.sort(gradients[::-1][from_end])
        rank = order.rank[last]
        most = int(np.bincount(rank).max())
        found = np.full((order.num_ranks, most), -1)
        found[rank, np.arange(len(last)) - np.searchsorted(rank, rank)] = last
        return found

    @cached_property
    def before_last_gather(self) -> Array:
        """How many actions of each code a rank does before it needs the last of its weights; over ranks and codes."""
        order = self.order
        _, first_visit = np.unique(order.stage, return_index=True)
        last = np.zeros(order.num_ranks, dtype=np.int64)
        np.maximum.at(last, order.rank[first_visit], first_visit)
        counts = [
            np.bincount(self.code[order.first[rank] : last[rank] + 1], minlength=15) for rank in range(order.num_ranks)
        ]
        found = np.stack(counts)
        if self.floating:  # at most as many weight gradients as input gradients
            found[:, 3 * W : 3 * W + 3] = found[:, 3 * I : 3 * I + 3]
        return found

    @cached_property
    def block_counts(self) -> Array:
        """How many actions of each code a left-out block has, over ranks and codes."""
        order = self.order
        assert order.fold is not None
        here = order.fold.block(0)
        counts = np.zeros((order.num_ranks, 15), dtype=np.int64)
        np.add.at(counts, (order.rank[here], self.code[here]), 1)
        return counts

    @cached_property
    def updates(self) -> float:
        """Weight updates that stand in a step's order, on each rank."""
        order = self.order
        return float(order.weight[order.kind == U].sum()) / order.num_ranks

    @cached_property
    def fixed(self) -> Fixed:
        """What of a floating order stands still."""
        return fixed_of(self.order)

    @property
    def actions_a_microbatch(self) -> float:
        """How many actions the arrays hold for each micro-batch in them."""
        fold = self.order.fold
        return len(self.order) / (self.order.num_microbatches if fold is None else fold.kept)


def _largest(points: Array) -> Array:
    """Columns that no other column reaches in every row."""
    points = np.unique(points, axis=1)
    kept: list[Array] = []
    for point in points.T[np.argsort(-points.sum(axis=0), kind="stable")]:
        if not any((other >= point).all() for other in kept):
            kept.append(point)
    return np.stack(kept, axis=1)
