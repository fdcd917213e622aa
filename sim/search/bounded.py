"""A step time and a memory that no order of a plan's actions can go below, wherever its stages are.

With m micro-batches, v stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), with sends that it waits for, and the one with the embedding or the
  head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after
  a micro-batch has come through p − 1 stages before and been sent p − 1 times. None of its stages is an earlier one, as
  it would have met the micro-batch there; so after its last input gradient the same stages have theirs to do. Where
  weight gradients are no actions of their own that is after all its work: (m v + p − 1)(f + i + w). Of two pipelines
  half as many stages lie before;
- the rank with stage p − 2 sends both ways at each of its stages, and begins as many stages after the first;
- of an order it is known how many micro-batches ranks and stages keep at most: new ones wait for room (`keeping`).

Where ranks do not wait for each other between steps (`Schedule.staggered`) only what a rank does itself counts. What is
done once a step (reductions, updates, weight gathers) counts as far as no backward can hide it, where there is one copy
of the model.

Plans with the same pipeline ranks, chunks and micro-batches have the same order, whose memory is looked at next. Where
an order repeats, those with any number of micro-batches keep as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from sim.arrays import Array, Ints, PlanFloats
from sim.engines.order_facts import OrderFacts
from sim.engines.program import exposed_gather, exposed_reduction
from sim.errors import ScheduleError
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, deal_of, even_deal, params_of
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_stages
from sim.schedules import Order, Schedule, build_order, get_schedule
from sim.schedules.actions import W
from sim.schedules.build import played_first
from sim.schedules.passes import most_begun, peak_in_flight
from sim.schedules.registry import is_file
from sim.search.best_first import Found, Node
from sim.search.candidate import Candidate, worth_of
from sim.search.formula import plan_batch
from sim.search.space import Space, columns_of, shapes
from sim.specs import Scenario

FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages; the only stage of all is of the first kind."""


class LeastSteps:
    """What the step of plans under one schedule cannot go below, of any order and of one whose activations are known.

    step_s : in any order. [s]
    """

    def __init__(self, batch: Plans, slices: int = 1) -> None:
        self.batch, self.chosen = batch, get_schedule(batch.schedule)
        self.splits = splits_backward(batch.schedule, slices)
        deal = even_deal(batch)
        seconds = price_stages(batch, replace(deal, stage_kinds=deal.stage_kinds[:3]))
        self.forward, self.backward, self.weights = seconds.forward_s, seconds.backward_s, seconds.weight_grad_s
        self.inputs = seconds.input_grad_s if self.splits else self.backward
        near, far = near_and_far(batch)
        self.send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
        self.blocked = np.where(batch.overlap_p2p, 0.0, self.send)
        self.each = batch.num_microbatches * slices / self.chosen.copies
        self.after = np.full(batch.shape, batch.costs.stack.step_setup_s)
        if self.chosen.copies == 1:
            window = np.where(batch.num_chunks == 1, slices * self.backward.max(axis=0), np.inf)
            self.after += _least_after(batch, deal, window)
        self.step_s = np.asarray(self._pipeline() + self.after)

    def _pipeline(self) -> PlanFloats:
        """Least seconds from the first action of any rank to the last backward."""
        pp, chunks, copies, stages = self.batch.pp, self.batch.num_chunks, self.chosen.copies, self._held
        # A rank that waits for what it sends does so at each stage in one direction at least; in the middle in both.
        whole = self.forward + self.backward + self.blocked
        least = whole.min(axis=0)
        ends = self.each * (whole + (stages - 1) * least)
        pipeline = np.where(pp * chunks == 1, ends[FIRST], np.maximum(ends[FIRST], ends[LAST]))
        between = self.each * stages * (whole[MIDDLE] + self.blocked) * (pp > 2)
        if self.chosen.staggered:  # whose step is the time from batch to batch
            return np.asarray(np.maximum(pipeline, between))
        before = (pp - 1) // copies
        # A rank of one stage that begins with the last or later has the last.
        work = self.each * np.where(stages == 1, whole[LAST], stages * least)
        # Of layers of several kinds a stage has more than the mean somewhere, but perhaps before that rank.
        alike = len(self.batch.costs.model.layer_kinds) == 1
        inside = np.where(alike & (pp > 2), before - (copies == 1), 0)
        found = (self._filled(before, work), self._filled(inside, between), pipeline, between)
        return np.asarray(np.max(found, axis=0))

    def _filled(self, before: Ints, work: PlanFloats) -> PlanFloats:
        """Least seconds where a rank with some work begins after so many stages and ends before the same ones."""
        fill, back = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + before * self.send
            for part in (self.forward, self.inputs)
        )
        drain = back - self.blocked  # the rank's last send is a part of its work then
        # Weight gradients on their own may all come after the last input gradient.
        later = self.each * self._held * self.weights.max(axis=0) if self.splits else 0.0
        return np.asarray(np.where(before > 0, fill + np.maximum(work, work - later + drain), 0.0))

    @property
    def _held(self) -> Ints:
        """Stages that each rank holds."""
        return np.asarray(self.batch.num_chunks * self.chosen.copies)

    def keeping(self, plans: Ints, order: Order) -> PlanFloats:
        """Least step of plans with an order, of which only what it keeps at most is looked at.  [s]

        What a rank keeps on average is how many activations come to it, times how long they stay: until the micro-batch
        has gone on to the last stage and come back (Little 1961, doi:10.1287/opre.9.3.383). And a stage that keeps L
        micro-batches at most takes the next one when the one L before has come back.
        """
        stages, home = order.num_stages // order.copies, order.rank_of_stage
        if len(self.batch.costs.model.layer_kinds) > 1 or stages == 1:
            return np.zeros(len(plans))
        stage = np.arange(order.num_stages) % stages
        leaves = (stage < stages - 1) & (home != np.roll(home, -1))
        onward = np.cumsum(leaves[::-1].reshape(order.copies, -1), axis=1).ravel()[::-1]
        counts = np.stack([stage == 0, stages - 1 - stage - (stage == 0), 2 * onward, np.ones_like(stage)], axis=1)
        both, each = (self.forward + self.inputs)[:, plans], self.each[plans]
        least = np.minimum(both[FIRST], both[MIDDLE]) if stages > 2 else both[FIRST]
        back = counts @ np.stack([both[FIRST], least, self.send[plans], both[LAST]])
        stay = back + self.weights[:, plans].min(axis=0) * self.splits
        of_ranks = np.stack([stay[home == rank].sum(axis=0) for rank in range(order.num_ranks)])
        steady = each * (of_ranks / peak_in_flight(order)[:, np.newaxis]).max(axis=0)
        in_turn = back * np.ceil(each / most_begun(order)[:, np.newaxis])
        if not self.chosen.staggered:  # else each rank's own time counts, without what is before and after it
            in_turn += back[0] - back
        return np.asarray(np.maximum(steady, in_turn.max(axis=0)) + self.after[plans])


def _least_after(batch: Plans, deal: Deal, window: PlanFloats) -> PlanFloats:
    """What every rank does after its last backward, of which at most a `window` hides the reduction.  [s]"""
    once = once_a_step(batch, deal)
    beside, share = batch.overlap_grad_reduce, once.hidden_share
    reduce = exposed_reduction(once.reduce_s, np.maximum(once.reduce_tail_s, once.reduce_s - window), share, beside)
    gather = exposed_gather(once.gather_s, once.gather_s, share, batch.overlap_param_gather)
    there = deal.rank_kinds.number[:, batch.layout] > 0
    return np.asarray(np.where(there, reduce + once.optimizer_s + gather, np.inf).min(axis=0))


def least_memory(batch: Plans) -> PlanFloats:
    """Memory that the fullest GPU of every plan needs, whatever the order.  [bytes]

    It holds no fewer parameters than the mean rank, and one micro-batch on one of its stages.
    """
    chosen, model = get_schedule(batch.schedule), batch.costs.model
    share = chosen.copies / batch.layouts.pp
    layers = (share * model.layers_of(kind) for kind in model.layer_kinds)
    mtps, tied = model.num_mtp_layers * share, int(model.tied_embeddings) * share
    mean = np.stack([share, share, *layers, mtps, mtps + tied])  # tables that two of them read count once
    held = params_of(mean[np.newaxis], batch.layouts)[..., batch.layout]
    of_stages = stage_bytes(batch, even_deal(batch).stage_kinds[:3])
    return np.asarray(peak_memory(batch, held, of_stages.min(axis=0)).total[0])


def splits_backward(name: str, slices: int = 1) -> bool:
    """Whether weight gradients are actions of their own under a schedule."""
    chosen = get_schedule(name)
    chunks = chosen.chunks if isinstance(chosen.chunks, int) else 1 if chosen.chunks == "one" else 2
    options = {"slices": slices} if "slices" in chosen.options else {}
    rows = [*chosen.rows(4, chunks, 8, **options), *(row for each in chosen.candidates for row in each(4, chunks, 8))]
    return any(bool((row[:, 1] == W).any()) for row in rows)


def searchable(name: str) -> Schedule:
    """A schedule of which the best plan can be looked for.

    Raises ScheduleError: there is none of this name, it trains in another way, or it is a file, which has one size.
    """
    chosen = get_schedule(name)
    if chosen.asynchronous or is_file(name):
        why = "trains in another way (gradients come late)" if chosen.asynchronous else "is the grid of one size"
        raise ScheduleError(f"schedule {name} {why}, so it is not searched; flopcast estimate prices plans of it")
    return chosen


SLICES = (2, 4, 8)
"""Parts of a sequence that are tried under a schedule that cuts sequences."""


def spaces_under(space: Space, name: str) -> list[Space]:
    """The space under a schedule, once for each number of sequence slices; those that have plans.

    Raises ScheduleError: there is no such schedule, or none that can be searched.
    """
    chosen, scenario = searchable(name), space.scenario
    length, names = scenario.training.sequence_length, (chosen.name,)
    slices = [each for each in SLICES if length % each == 0] if "slices" in chosen.options else [1]
    of_slices = {each: columns_of(scenario, space.layouts, partial(shapes, scenario, names, each)) for each in slices}
    found = [replace(space, columns=columns, schedules=names, slices=each) for each, columns in of_slices.items()]
    return [each for each in found if each.num_plans]


class BoundedPlans:
    """All plans of a space under one schedule.

    seconds : that the step cannot go below. [s]
    nbytes : that the fullest GPU cannot do with. [bytes]
    """

    def __init__(self, space: Space, objective: str, limit: float) -> None:
        self.space, self.objective, self.limit = space, objective, limit
        self.schedule = get_schedule(space.schedules[0])
        self.category, self.row = space.plans
        self.batch = plan_batch(space, self.category, self.row)
        self.least = LeastSteps(self.batch, space.slices)
        self.seconds, self.nbytes = self.least.step_s.copy(), least_memory(self.batch)
        self._num_gpus = space.columns.num_gpus[self.row]
        self._options = {"slices": space.slices} if "slices" in self.schedule.options else {}
        self.order_of = self._order_of_rows()[self.row]
        self._grouped = np.argsort(self.order_of, kind="stable")
        self._begins = np.searchsorted(self.order_of[self._grouped], np.arange(self.order_of.max(initial=-1) + 2))

    def _order_of_rows(self) -> Ints:
        """Which order each row has: those with the same ranks, chunks and micro-batches that are played share one."""

        def played(pp: int, chunks: int, count: int) -> tuple[int, int, int]:
            if self.schedule.period is not None:
                period = self.schedule.period(pp, chunks, **self._options)
                kept = played_first(period, pp)
                count = min(count, kept + (count - kept) % period)
            return pp, chunks, count

        columns = self.space.columns
        sizes = np.stack([columns.pp, columns.num_chunks, self.space.num_microbatches])
        distinct, size = np.unique(sizes, axis=1, return_inverse=True)
        _, order = np.unique([played(*each) for each in distinct.T.tolist()], axis=0, return_inverse=True)
        return np.asarray(order.ravel()[size.ravel()])

    def scenario_of(self, plan: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        return self.space.scenario_of(int(self.row[plan]), self.space.categories[int(self.category[plan])])

    def nodes(self, number: int) -> Iterator[Node[Candidate]]:
        """Yield the orders of plans that may fit, by the lowest bound of each; then the plans that fit in them.

        number : of these plans among those of the schedule, which decides between equals.
        """
        least = np.full(len(self._begins) - 1, np.inf)
        np.minimum.at(least, self.order_of, self.score())
        for order in np.flatnonzero(np.isfinite(least)).tolist():
            yield (float(least[order]), 0.0, number, order), partial(self._look_closer, number, order)

    def _look_closer(self, number: int, order: int, found: Found[Candidate]) -> Iterator[Node[Candidate]]:
        fits = self.weigh(order)
        for *key, plan in zip(self.score(fits).tolist(), self.nbytes[fits].tolist(), fits.tolist(), strict=True):
            yield (*key, number, order, plan), partial(self._run, plan)

    def _run(self, plan: int, found: Found[Candidate]) -> tuple[()]:
        try:
            ran = Candidate.run(self.scenario_of(plan), float(self.seconds[plan]))
            found.record((ran.worth(self.objective), ran) if ran.memory_bytes <= self.limit else None)
        except ScheduleError:  # too many actions to be played
            found.record(None)
        return ()

    def score(self, plans: Array | slice = slice(None)) -> Array:
        """What the objective makes smallest, or what it cannot go below; infinite where a plan does not fit."""
        score = worth_of(self.objective, self.seconds[plans], self._num_gpus[plans])
        return np.asarray(np.where(self.nbytes[plans] <= self.limit, score, np.inf))

    def weigh(self, order: int) -> Ints:
        """Look at the memory that plans need in their order, or in the leanest that the schedule may choose for them;
        those that fit."""
        here = self._grouped[self._begins[order] : self._begins[order + 1]]
        here = here[np.isfinite(self.score(here))]
        candidates = range(len(self.schedule.candidates)) or (None,)
        try:
            seconds, nbytes = zip(*(self._in_order(here, candidate) for candidate in candidates), strict=True)
        except ScheduleError:  # too many actions to be played, for an estimate too
            seconds, nbytes = ([0.0],), ([np.inf],)
        self.nbytes[here] = np.maximum(self.nbytes[here], np.min(nbytes, axis=0))
        self.seconds[here] = np.maximum(self.seconds[here], np.min(seconds, axis=0))
        return np.asarray(here[np.isfinite(self.score(here))])

    def _in_order(self, plans: Ints, candidate: int | None) -> tuple[PlanFloats, PlanFloats]:
        """Least step and memory of plans in the order that all of them have, or in a candidate for it.  [s], [bytes]"""
        scenario = self.scenario_of(int(plans[0]))
        plan, options = scenario.plan, self._options if candidate is None else {**self._options, "candidate": candidate}
        size = plan.pp, plan.num_chunks, scenario.num_microbatches
        order = build_order(self.schedule.name, *size, fold=True, **options)
        deal = deal_of(scenario.model, plan, order.rank_of_stage, order.copies)
        floating = candidate is not None and bool((order.kind == W).any())
        return self.least.keeping(plans, order), memory_in_order(self.batch.take(plans), order, deal, floating)


def memory_in_order(batch: Plans, order: Order, deal: Deal, floating: bool) -> PlanFloats:
    """Peak memory of the fullest rank of plans that have an order.  [bytes]

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    """
    of_stages, held = stage_bytes(batch, deal.stage_kinds), params_of(deal.rank_kinds.counts, batch.layouts)
    fullest = np.zeros(batch.shape)
    for ranks in OrderFacts(order, deal.kind_of_stage, len(deal.stage_kinds), floating).fullest(deal.kind_of_rank):
        peak = (ranks.counts.astype(float) @ of_stages).max(axis=0)
        own = held[:, ranks.kind][..., batch.layout]
        fullest = np.maximum(fullest, peak_memory(batch, own, peak, ranks.logits, ranks.versions).total)
    return fullest
