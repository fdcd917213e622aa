"""Step times and memory of many plans that run in one order, all at once: the exact engine over plans.

What is timed here and what `estimate` says of one plan are the same but for two things, in which this is never more:
a steady state that has not come in what is played, and repetitions that are no multiple of its period.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sim.arrays import ActionPlanFloats, Bools, Floats, Ints, KindPlanFloats, PlanFloats, RankPlanFloats
from sim.engines.critical_path import earliest_starts, steady_state
from sim.engines.order_facts import OrderFacts
from sim.engines.program import action_seconds
from sim.engines.step_end import end_of_step, reduction_times, without_flush
from sim.engines.visits import Stream, Streams, least_at_visits, of_ranks, slowed_by, stream_of
from sim.pricing.batch import Batch
from sim.pricing.deal import Deal
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.ranks import RankSeconds, once_a_step, tied_reduction
from sim.pricing.replicas import HELD, params_of
from sim.pricing.stages import near_and_far, price_stages, sends_by_stage
from sim.pricing.visits import VisitSeconds
from sim.schedules import Order
from sim.schedules.passes import updates_per_rank
from sim.search.schedules.variants import Variant
from sim.search.schedules.weight_gradient_bounds import Fixed, fixed_of, play

MOST_PLAYED = 3_000_000
"""Actions times plans that are played at once."""
MOST_ACTIONS = 50_000
"""Up to which length more of an order is played to find its steady state."""


@dataclass(frozen=True, slots=True)
class Moments:
    """When ranks do what counts for the end of a step, over ranks (and their stages) and plans. [s]

    begin, end : of each rank's first and last action, with what it moves at visits.
    start_last, end_last : of the last gradient action on each of its stages.
    """

    begin: RankPlanFloats
    end: RankPlanFloats
    start_last: Floats
    end_last: Floats


@dataclass(frozen=True, slots=True)
class PlayedPlans:
    """What plans that have one order take: seconds of the kinds of stages, sends, and repetitions left out; and what
    visits to these stages move, if anything."""

    batch: Batch
    forward: KindPlanFloats
    backward: KindPlanFloats
    inputs: KindPlanFloats
    weight: KindPlanFloats
    times: Ints
    visits: VisitSeconds | None = None

    def take(self, plans: Ints) -> PlayedPlans:
        """Some of the plans."""
        names = ("forward", "backward", "inputs", "weight")
        passes: dict[str, KindPlanFloats] = {name: getattr(self, name)[:, plans] for name in names}
        visits = None if self.visits is None else self.visits.take(plans)
        return PlayedPlans(self.batch.take(plans), **passes, times=self.times[plans], visits=visits)

    def leaving_out(self, times: int) -> PlayedPlans:
        """The plans with another number of repetitions left out."""
        return replace(self, times=np.full(len(self.times), times))

    def same(self) -> Floats:
        """What plans that need be played once have in common."""
        batch = self.batch
        moved = () if self.visits is None else self.visits.rows()
        return np.stack(
            [
                *self.forward,
                *self.backward,
                *self.inputs,
                *self.weight,
                *near_and_far(batch),
                batch.layouts.kinds_of_hops[1][batch.layout],
                batch.overlap_p2p,
                self.times,
                *moved,
            ]
        )

    def table(self) -> Floats:
        """Seconds of every code of `OrderFacts.code`; updates take none.  [s]"""
        none = np.zeros_like(self.forward)
        return np.concatenate([self.forward, self.backward, self.inputs, self.weight, none])

    def seconds(self, facts: OrderFacts) -> tuple[ActionPlanFloats, ActionPlanFloats]:
        """How long every action occupies its rank, and when its result arrives.  [s]"""
        order, kind = facts.order, facts.kind_of_stage
        none = np.zeros_like(self.forward)
        passes = (self.forward[kind], self.backward[kind], self.inputs[kind], self.weight[kind], none[kind])
        sends = sends_by_stage(self.batch, order.rank_of_stage, order.copies)
        _, occupy, release = action_seconds(order, passes, sends, ~self.batch.overlap_p2p)
        return occupy, release

    def of_stages(self, facts: OrderFacts) -> VisitSeconds | None:
        """What visits to the order's stages move."""
        return None if self.visits is None else self.visits.of_stages(facts.kind_of_stage)


class SharedOrder:
    """An order, or the beginning of one that repeats, that plans of a variant share.

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    """

    def __init__(self, variant: Variant, order: Order, deal: Deal, floating: bool) -> None:
        self.variant, self.order, self.deal = variant, order, deal
        self.facts = OrderFacts(order, deal.kind_of_stage, len(deal.stage_kinds), floating)

    @cached_property
    def fixed(self) -> Fixed:
        """What of a floating order stands still."""
        return fixed_of(self.order)

    def nbytes(self, batch: Batch) -> PlanFloats:
        """Peak memory of the fullest rank of plans.  [bytes]"""
        of_stages = stage_bytes(batch, self.deal.stage_kinds)
        held = params_of(self.deal.rank_kinds.counts, batch.layouts)
        fullest = np.zeros(batch.shape)
        for ranks in self.facts.fullest(self.deal.kind_of_rank):
            peak = (ranks.counts.astype(float) @ of_stages).max(axis=0)
            own = held[:, ranks.kind][..., batch.layout]
            needed = peak_memory(batch, own, peak, ranks.logits, ranks.versions, self.facts.both_ways).total
            fullest = np.maximum(fullest, needed)
        return fullest

    def period_s(self, batch: Batch) -> PlanFloats:
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

    def step_times(self, batch: Batch, times: Ints, thorough: bool = False) -> tuple[PlanFloats, Bools]:
        """Of plans [s]; and of which of them it is exact, and not a time that they cannot go below.

        Parameters
        ----------
        times : array over plans
            Repetitions that each plan's order leaves out.
        thorough : bool
            All leave out as much as the order does; play more of it until the steady state is found.
        """
        seconds = price_stages(batch, self.deal)
        passes = (seconds.forward_s, seconds.backward_s, seconds.input_grad_s)
        played = PlayedPlans(batch, *passes, seconds.weight_grad_s, times, seconds.visits)
        moments, exact = self._play(played, thorough)
        return self._finish(batch, once_a_step(batch, self.deal), played, moments), exact

    def _play(self, plans: PlayedPlans, thorough: bool) -> tuple[Moments, Bools]:
        """Play the order for all plans, those that take the same times once."""
        _, first, column = np.unique(plans.same(), axis=1, return_index=True, return_inverse=True)
        size = max(1, MOST_PLAYED // max(1, len(self.order)))
        parts = [plans.take(first[begin : begin + size]) for begin in range(0, len(first), size)]
        found = [self._least(each) if self.facts.floating else self._played(each, thorough) for each in parts]
        column = column.ravel()
        joined = (np.concatenate([getattr(each, name) for each, _ in found], axis=-1) for name in Moments.__slots__)
        return Moments(*(part[..., column] for part in joined)), np.concatenate([exact for _, exact in found])[column]

    def _least(self, plans: PlayedPlans) -> tuple[Moments, Bools]:
        """Of an order whose weight gradients float, the earliest that everything can be; playing more says no more."""
        occupy, release = plans.seconds(self.facts)
        start, done = play(self.fixed, self.order, occupy, release, plans.weight[self.facts.kind_of_stage])
        later, _, _ = self._left_out(plans, start, occupy)
        moments = replace(self._moments(start, start, later), end=done + later)
        visits = plans.of_stages(self.facts)
        if visits is not None:
            moments = self._least_with_visits(plans, moments, occupy, visits)
        return moments, np.ones(len(plans.times), dtype=bool)

    def _least_with_visits(
        self, plans: PlayedPlans, moments: Moments, occupy: ActionPlanFloats, visits: VisitSeconds
    ) -> Moments:
        """The same where ranks move things at visits: they lose to these what they lose whenever that is.

        Nothing comes before the first rank's first action; another's first is later by no more than the longest wait
        for the weights of a first visit, that a staggered step begins with.
        """
        order = self.order
        least = least_at_visits(order, visits, plans.times, floating=True)
        busy = of_ranks(order, occupy, plans.times) + least.lost
        begin = np.maximum(moments.begin, least.begin)
        if self.variant.schedule.staggered:
            begin = moments.begin + least.begin.max(axis=0) - least.begin[0]
            moments = replace(moments, begin=begin - least.begin)
        return replace(moments, end=least.end(np.maximum(moments.end, begin + busy)))

    def _played(self, plans: PlayedPlans, thorough: bool) -> tuple[Moments, Bools]:
        """The longest path; thorough, where what is played does not become too long, always exact."""
        order, facts = self.order, self.facts
        occupy, release = plans.seconds(facts)
        visits, streams = plans.of_stages(facts), None
        if visits is not None:
            occupy, streams = occupy + slowed_by(order, visits), Streams(order, stream_of(order, visits))
        start = earliest_starts(facts.in_levels, occupy, release, streams)
        later, length, rest = self._left_out(plans, start, occupy, None if streams is None else streams.until)
        moments, exact = self._moments(start, start + occupy, later), rest == 0
        if visits is not None and streams is not None:
            moments = self._with_streams(moments, streams, stream_of(order, visits), later)
        if not thorough or order.fold is None:
            return moments, exact
        for number in np.unique(rest[~exact]).tolist():
            here = np.flatnonzero((rest == number) & ~exact)
            unsettled = length[here[0]] == 0
            kept = 2 * order.fold.kept if unsettled else order.fold.kept + number * order.fold.period
            if 2 * kept * facts.actions_a_microbatch > MOST_ACTIONS:
                continue
            longer = SharedOrder(self.variant, order.fold.rebuild(kept), self.deal, facts.floating)
            left = 0 if longer.order.fold is None else longer.order.fold.times
            more, exact[here] = longer._played(plans.take(here).leaving_out(left), thorough)
            for name in Moments.__slots__:
                getattr(moments, name)[..., here] = getattr(more, name)
        return moments, exact

    def _with_streams(self, moments: Moments, streams: Streams, stream: Stream, later: PlanFloats) -> Moments:
        """What the ranks' streams do before the first action and after the last."""
        until = streams.until[self.order.first[1:] - 1] + later
        begin = moments.begin - self.variant.schedule.staggered * stream.first_waits(self.order)
        return replace(moments, begin=begin, end=np.maximum(moments.end, until))

    def _left_out(
        self,
        plans: PlayedPlans,
        start: ActionPlanFloats,
        occupy: ActionPlanFloats,
        until: ActionPlanFloats | None = None,
    ) -> tuple[PlanFloats, Ints, Ints]:
        """By how much what is left out delays what comes after it [s]; the steady state's blocks; those left over."""
        if self.order.fold is None:
            none = np.zeros_like(plans.times)
            return np.zeros(len(none)), none, none
        further = 0 if plans.visits is None else plans.visits.prefetched - 1
        length, seconds = steady_state(self.order, start, until, further)
        rest = np.where(length > 0, plans.times % np.maximum(length, 1), plans.times)
        # What the rank with the least to do in a block is busy for.
        fold = self.order.fold
        begins = np.concatenate([[0], np.cumsum(fold.lengths)[:-1]])
        block = np.add.reduceat(occupy[fold.block(0)], begins, axis=0).min(axis=0)
        later = (plans.times - rest) // np.maximum(length, 1) * seconds + rest * block
        return np.asarray(later, dtype=np.float64), length, rest

    def _moments(self, start: ActionPlanFloats, end: ActionPlanFloats, later: PlanFloats) -> Moments:
        """What the step's end is made of, with what was left out put in before what comes after it."""
        order = self.order

        def at(values: ActionPlanFloats, places: Ints) -> Floats:
            chosen: Floats = values[places]
            if order.fold is not None:
                after = places >= order.fold.cuts[order.rank[places]]
                chosen = chosen + after[..., np.newaxis] * later
            return chosen

        last = np.maximum(self.facts.last_gradients, 0)
        return Moments(at(start, order.first[:-1]), at(end, order.first[1:] - 1), at(start, last), at(end, last))

    def _finish(self, batch: Batch, once: RankSeconds, plans: PlayedPlans, moments: Moments) -> PlanFloats:
        """The step with all that follows the pipeline.  [s]"""
        facts, of_rank = self.facts, self.deal.kind_of_rank
        reduce, gather, update = (each[of_rank] for each in (once.reduce_s, once.gather_s, once.optimizer_s))
        done = moments.end - moments.begin if self.variant.schedule.staggered else moments.end
        end = end_of_step(
            done,
            reduce,
            gather,
            update,
            tied_embedding=tied_reduction(batch, self.deal),
            hidden_share=once.hidden_share,
            overlap_reduce=batch.overlap_grad_reduce,
            overlap_gather=batch.overlap_param_gather,
            reduced_after=lambda: self._reduced(batch, once, moments) - moments.end,
            gather_window=lambda: facts.before_last_gather @ plans.table(),
            ends=facts.order.ends,
        )
        return end.step + batch.costs.stack.step_setup_s

    def _reduced(self, batch: Batch, once: RankSeconds, moments: Moments) -> RankPlanFloats:
        """When each rank's reductions that its backwards overlap are done.  [s]"""
        order, facts, of_rank = self.order, self.facts, self.deal.kind_of_rank
        reduce, tail, params = (each[of_rank] for each in (once.reduce_s, once.reduce_tail_s, once.params))
        of_stages = params_of(self.deal.stage_kinds, batch.layouts, batch.layout)[HELD].sum(axis=0)
        share = of_stages[facts.kind_of_stage] / params[order.rank_of_stage]
        last = facts.last_gradients
        if facts.floating:  # nobody knows which of a rank's stages comes last
            durations = reduce[:, np.newaxis] * share[order.stage[last]]
            least = np.minimum(tail[:, np.newaxis], durations).min(axis=1)
            return np.asarray(np.maximum((moments.start_last + durations).max(axis=1), moments.end + least))
        times = (moments.start_last, moments.end_last)
        return np.asarray(reduction_times(order, last, *times, reduce, share, tail)[1].max(axis=1))
