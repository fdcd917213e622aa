"""Step times and memory of many plans that run in one order, all at once: the exact engine over plans.

What is timed here and what `estimate` says of one plan are the same but for one thing, in which this is never more: a
steady state that has not come in what is played.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sim.arrays import ActionPlanFloats, Bools, Floats, Ints, Number, PlanFloats, RankPlanFloats
from sim.engines.longest_path import longer
from sim.engines.max_plus import AT_ONCE, play_plans, steady_state
from sim.engines.order_facts import OrderFacts
from sim.engines.program import Program, classes_of, end_of_step, slowed_at_visits, without_flush
from sim.engines.tasks import amounts_at_visits, amounts_of, step_of, switches_of
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, params_of
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_in_order, price_stages
from sim.pricing.zero import VisitSeconds
from sim.schedules import Order
from sim.schedules.actions import W
from sim.schedules.passes import updates_per_rank
from sim.search.schedules.lower_bounds import Fixed, fixed_of, play


class LeastAtVisits(NamedTuple):
    """What visits take of the ranks whatever they wait for besides, for bounds; arrays (ranks) or (ranks, plans). [s]

    begin : of each rank, from the step's begin until its first action may begin.
    lost : between its first action and its last, waiting for its stream and computing beside it.
    moved : by its stream in a step.
    """

    begin: RankPlanFloats
    lost: RankPlanFloats
    moved: RankPlanFloats


def least_at_visits(order: Order, visits: VisitSeconds, times: Number | None = None) -> LeastAtVisits:
    """Least that visits take of all ranks, repetitions counted in, wherever weight gradients stand.

    Nobody knows then which stage's comes last.

    Parameters
    ----------
    times : array over plans, optional
        Repetitions that each leaves out of the order. Default: as many as the order does.
    """
    each, first, last = classes_of(order, each=True), order.first[:-1], order.first[1:] - 1
    amounts = amounts_at_visits(order, each, visits)
    gather, reduce = amounts["gather"], amounts["body"] + amounts["bucket"]
    gathers, reduces = (np.where(beside, 0.0, each) for beside, each in
                        ((visits.ahead, gather), (visits.beside, reduce)))  # fmt: skip
    waits = gathers + reduces + slowed_at_visits(order, each, visits)[0]
    waits[first] -= gathers[first]
    waits[last] += visits.reduce_slows[order.stage[last]]
    longest = np.zeros_like(waits[first])
    np.maximum.at(longest, order.rank_of_stage, visits.reduce_slows)
    begin, moved = np.maximum(gather + amounts["early"], 0.0)[first], of_ranks(order, gather + reduce, times)
    return LeastAtVisits(begin, of_ranks(order, waits, times) - longest, moved)


def of_ranks(order: Order, seconds: ActionPlanFloats, times: Number | None = None) -> RankPlanFloats:
    """Sums over the actions of each rank, with the repetitions that plans leave out; default: those of the order."""
    axes = [1] * (seconds.ndim - 1)
    weight = order.weight.reshape(-1, *axes)
    if times is not None and order.fold is not None:
        weight = np.ones((len(order), *axes))
        weight = weight + np.isin(np.arange(len(order)), order.fold.block(0)).reshape(-1, *axes) * times
    return np.asarray(np.add.reduceat(seconds * weight, order.first[:-1], axis=0))


MOST_PLAYED = 3_000_000
"""Actions times plans of orders whose weight gradients float that are played at once."""
MOST_ACTIONS = 50_000
"""Most actions of an order that are played to find its steady state."""


class SharedOrder:
    """An order, or the beginning of one that repeats, that plans of a schedule share.

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    staggered : ranks do not wait for each other between steps.
    """

    def __init__(self, order: Order, deal: Deal, floating: bool, staggered: bool) -> None:
        self.deal, self.staggered = deal, staggered
        self.order = order
        self.facts = OrderFacts(order, deal.kind_of_stage, len(deal.stage_kinds), floating)

    @cached_property
    def fixed(self) -> Fixed:
        """The part of an order that is the same in every plan where weight gradients move."""
        return fixed_of(self.order)

    def nbytes(self, batch: Plans) -> PlanFloats:
        """Peak memory of the fullest rank of plans.  [bytes]"""
        of_stages = stage_bytes(batch, self.deal.stage_kinds)
        held = params_of(self.deal.rank_kinds.counts, batch.layouts)
        fullest = np.zeros(batch.shape)
        for ranks in self.facts.fullest(self.deal.kind_of_rank):
            peak = (ranks.counts.astype(float) @ of_stages).max(axis=0)
            own = held[:, ranks.kind][..., batch.layout]
            needed = peak_memory(batch, own, peak, ranks.logits, ranks.versions).total
            fullest = np.maximum(fullest, needed)
        return fullest

    def period_s(self, batch: Plans) -> PlanFloats:
        """Time from batch to batch that an order without a flush cannot go below: what its busiest rank does.  [s]

        No more of a reduction is hidden than in that time.
        """
        # These hold one chunk a rank.
        each = batch.num_microbatches
        seconds = price_stages(batch, self.deal)
        once, updates = once_a_step(batch, self.deal), updates_per_rank(self.order)
        overlapped, of_rank = batch.overlap_grad_reduce, self.deal.kind_of_rank
        busy = (each * (seconds.forward_s + seconds.backward_s))[self.deal.kind_of_stage]
        update = once.optimizer_s + once.gather_s + np.where(overlapped, 0.0, once.reduce_s)
        period = (busy + updates * update[of_rank[self.order.rank_of_stage]]).max(axis=0)
        step, _ = without_flush(period, once.reduce_s, updates, once.hidden_share, overlapped)
        return step + batch.costs.stack.step_setup_s

    def step_times(self, batch: Plans, times: Ints, thorough: bool = False) -> tuple[PlanFloats, Bools]:
        """Step times of plans, and which of them are exact rather than lower bounds.  [s]

        Parameters
        ----------
        times : array over plans
            Repetitions that each plan's order leaves out.
        thorough : bool
            All leave out as much as the order does; play more of it until the steady state is found.
        """
        costs = price_in_order(batch, self.deal, by_cause=False)
        program = Program(self.order, costs, batch.overlap_grad_reduce, batch.overlap_param_gather)
        hops, passes = batch.layouts.kinds_of_hops[1][batch.layout], costs.passes.reshape(-1, len(times))
        visits = () if costs.visits is None else costs.visits.rows()
        # Rows in which plans agree whose pipelines are alike.
        alike = np.stack([*passes, *near_and_far(batch), hops, batch.overlap_p2p, *visits])
        if self.facts.floating:
            return self._least(program, alike, times), np.ones(len(times), dtype=bool)
        return self._played(program, alike, times, thorough)

    def _played(self, program: Program, alike: Floats, times: Ints, thorough: bool) -> tuple[PlanFloats, Bools]:
        """The longest path; thorough, where what is played does not become too long, always exact."""
        order, steps, exact = self.order, np.zeros(len(times)), np.ones(len(times), dtype=bool)
        for plans in _structures(program, len(times)):
            of_plans = np.concatenate([alike[:, plans], times[np.newaxis, plans]])
            _, first, column = np.unique(of_plans, axis=1, return_index=True, return_inverse=True)
            column, on = column.ravel(), switches_of(program.take(plans))
            step = step_of(order, on)
            for begin in range(0, len(first), AT_ONCE):
                pipelines = first[begin : begin + AT_ONCE]
                here = np.flatnonzero((column >= begin) & (column < begin + AT_ONCE))
                some, place = program.take(plans[here]), np.searchsorted(here, pipelines)
                left_out, alone = times[plans[pipelines]], (place, column[here] - begin)
                least = None
                if order.fold is not None:
                    least = self._least_block(program.take(plans[pipelines]).action_seconds()[1])
                # Whatever overlaps the backward of some plans hides nothing of others.
                share = some.costs.hidden_share * some.hide_grad_reduce
                played = play_plans(step.graph, amounts_of(some, on), share, left_out, least, pipelines=alone)
                steps[plans[here]] = played.times[step.graph.event[step.step]] + program.costs.step_setup_s
                exact[plans[here]] = (order.fold is None) | (played.blocks[column[here] - begin] > 0)
        here = np.flatnonzero(~exact)
        if not thorough or not len(here) or order.fold is None:
            return steps, exact
        if 4 * order.fold.kept * self.facts.actions_a_microbatch <= MOST_ACTIONS:
            more = SharedOrder(longer(order), self.deal, self.facts.floating, self.staggered)
            left = 0 if more.order.fold is None else more.order.fold.times
            some = program.take(here).on(more.order)
            steps[here], exact[here] = more._played(some, alike[:, here], np.full(len(here), left), thorough)
        return steps, exact

    def _least_block(self, occupy: ActionPlanFloats) -> PlanFloats:
        """What the rank with the least to do in a block of a fold is busy for.  [s]"""
        fold = self.order.fold
        assert fold is not None
        begins = np.concatenate([[0], np.cumsum(fold.lengths)[:-1]])
        least: PlanFloats = np.add.reduceat(occupy[fold.block(0)], begins, axis=0).min(axis=0)
        return least

    def _least(self, program: Program, alike: Floats, times: Ints) -> PlanFloats:
        """Earliest end of the step, in an order whose weight gradients float; playing more steps would not raise it."""
        of_plans, costs = np.concatenate([alike, times[np.newaxis]]), program.costs
        _, first, column = np.unique(of_plans, axis=1, return_index=True, return_inverse=True)
        size, column = max(1, MOST_PLAYED // max(1, len(self.order))), column.ravel()
        parts = [first[begin : begin + size] for begin in range(0, len(first), size)]
        found = [self._begin_and_end(program.take(plans), times[plans]) for plans in parts]
        begin, end = (np.concatenate(each, axis=-1)[..., column] for each in zip(*found, strict=True))
        end_s = end_of_step(
            end - begin if self.staggered else end,
            costs.reduce_s,
            costs.gather_s,
            costs.optimizer_s,
            tied_embedding=costs.tied_embedding_s,
            hidden_share=costs.hidden_share,
            overlap_reduce=program.hide_grad_reduce,
            overlap_gather=program.hide_gather,
            reduced_after=lambda: 0.0,  # at the earliest, as nobody knows which gradients come last
            gather_window=lambda: costs.gather_s,
            ends=self.order.ends,
        )
        return np.asarray(end_s + costs.step_setup_s)

    def _begin_and_end(self, program: Program, times: Ints) -> tuple[RankPlanFloats, RankPlanFloats]:
        """When each rank begins its first action and ends its last, with what it moves at visits, at the earliest.  [s]

        Where ranks move things at visits, they lose to these what they lose whenever that is. Nothing comes before the
        first rank's first action; another's first is later by no more than the longest wait for the weights of a first
        visit, that a staggered step begins with.
        """
        order, costs = self.order, program.costs
        _, occupy, release = replace(program, costs=replace(costs, visits=None)).action_seconds()
        start, done = play(self.fixed, order, occupy, release, costs.weight_grad_s)
        later, firsts = self._left_out(times, start, occupy), order.first[:-1]
        begin, end = start[firsts], done + later
        if order.fold is not None:  # what was left out comes before actions after a fold's cut
            begin = begin + (firsts >= order.fold.cuts)[:, np.newaxis] * later
        if costs.visits is None:
            return begin, end
        least = least_at_visits(order, costs.visits, times)
        first = begin + least.begin.max(axis=0) - least.begin[0] if self.staggered else np.maximum(begin, least.begin)
        end = np.maximum(np.maximum(end, first + of_ranks(order, occupy, times) + least.lost), least.moved)
        return first - least.begin if self.staggered else begin, end

    def _left_out(self, times: Ints, start: ActionPlanFloats, occupy: ActionPlanFloats) -> PlanFloats:
        """Least time by which what is left out delays what comes after it.  [s]

        Weight gradients follow from what is before them and are not looked at.
        """
        fold = self.order.fold
        if fold is None:
            return np.zeros(len(times))
        length, seconds = steady_state(start[_blocks(self.order)], fold.depth)
        rest = np.where(length > 0, times % np.maximum(length, 1), times)
        return np.asarray((times - rest) // np.maximum(length, 1) * seconds + rest * self._least_block(occupy))


@lru_cache(maxsize=64)
def _blocks(order: Order) -> Ints:
    """Indices of the actions but weight gradients of each block of a fold; (blocks back, actions)."""
    assert order.fold is not None
    blocks = [order.fold.block(back) for back in range(order.fold.seen)]
    return np.stack([block[order.kind[block] != W] for block in blocks])


def _structures(program: Program, plans: int) -> Iterator[Ints]:
    """Plans whose tasks wait for the same: all, but where visits gather or reduce in different ways."""
    visits = program.costs.visits
    if visits is None:
        yield np.arange(plans)
        return
    ways = np.stack([visits.ahead, visits.beside, (visits.gather[1] > 0).any(axis=0)])
    _, which = np.unique(np.broadcast_to(ways, (3, plans)), axis=1, return_inverse=True)
    for number in range(which.max() + 1):
        yield np.flatnonzero(which.ravel() == number)
