"""A program: an order, what its stages and ranks take, and what may run beside what; and how a scenario becomes one.

Each rank reduces as soon as it is done; the update waits for all of them, because the gradient norm and the overflow
check need every gradient. Overlapped, a stage's reduction goes on beside the last backward on it and all that its rank
does afterwards, except for the last bucket and for what it takes from the kernels that it overlaps.

Ranks, or kinds of ranks, are on the first axis; plans on the others. All in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from sim.arrays import ActionFloats, FloatArray, IntArray, Number, PlanFloats, RankFloats, RankPlanFloats, any_of
from sim.costs.block import AT_PEAK
from sim.engines.max_plus import different
from sim.errors import ScheduleError
from sim.pricing.cells import Plans, plans_of
from sim.pricing.deal import Deal, deal_of
from sim.pricing.stages import StageSeconds, price_in_order
from sim.pricing.zero import VisitSeconds
from sim.schedules import Order, build_order, get_schedule
from sim.schedules.actions import KINDS, F, U
from sim.schedules.passes import last_first_visits, visits_of
from sim.specs import Scenario, StackSpec
from sim.specs.plan import num_stages_of


def end_of_step(
    pipeline_end: RankPlanFloats,
    reduce: RankPlanFloats,
    gather: RankPlanFloats,
    update: RankPlanFloats,
    *,
    tied_embedding: Number,
    hidden_share: Number,
    overlap_reduce: Number,
    overlap_gather: Number,
    reduced_after: Callable[[], Number],
    gather_window: Callable[[], Number],
    ends: tuple[int, int] = (0, -1),
) -> PlanFloats:
    """When every rank has updated its weights, of one plan or many.  [s]

    The ranks of the first and the last stage reduce the tied embedding once both have their own gradients; all update
    once the last is ready.

    pipeline_end : when each rank's last action is done. [s]
    reduce, gather, update : of each rank. [s]
    tied_embedding : array over plans. Its reduction; 0: there is none. [s]
    hidden_share, overlap_reduce, overlap_gather : arrays over plans. As of `exposed_reduction` and `exposed_gather`.
    reduced_after, gather_window : `after` and `window` of these, asked for where something overlaps. [s]
    ends : ranks that hold the embedding and the head.
    """
    if np.any(overlap_reduce) and reduce.any():
        reduce = exposed_reduction(reduce, reduced_after(), hidden_share, overlap_reduce)
    if np.any(overlap_gather) and gather.any():
        gather = exposed_gather(gather, gather_window(), hidden_share, overlap_gather)
    ready, (first, last) = pipeline_end + reduce, ends
    tied = (np.maximum(ready[first], ready[last]) + tied_embedding) * (np.asarray(tied_embedding) > 0)
    return np.asarray(np.maximum(ready.max(axis=0), tied) + (update + gather).max(axis=0))


def exposed_reduction(reduce: Number, after: Number, hidden_share: Number, overlapped: Number) -> RankPlanFloats:
    """Part of each rank's gradient reduction that lengthens the step.  [s]

    after : from the end of a rank's last action until its reductions are done, where backwards overlap them. [s]
    hidden_share : array over plans. Of reductions that compute overlaps, the share of the time that is really hidden.
    overlapped : whether they may run beside the backward at all.
    """
    return np.asarray(reduce - overlapped * hidden_share * np.clip(reduce - after, 0.0, reduce))


def waited_reduction(
    reduce: RankPlanFloats, tail: RankPlanFloats, backward: RankPlanFloats, hidden_share: Number
) -> RankPlanFloats:
    """Part of each rank's reduction that delays its update, where only the last backward can hide the rest.  [s]

    PyTorch's DistributedDataParallel reduces buckets of gradients while the backward makes the next ones, and its
    backward ends when all are summed (Li et al. 2020, arXiv:2006.15704, section 3.2.3).

    tail : the last bucket, which nothing hides. [s]
    backward : of the micro-batch whose backward completes the gradients. [s]
    """
    after = np.maximum(reduce - backward, np.minimum(tail, reduce))
    return exposed_reduction(reduce, after, hidden_share, True)


def exposed_gather(gather: Number, window: Number, hidden_share: Number, overlapped: Number) -> RankPlanFloats:
    """Part of each rank's weight gather that lengthens the step.  [s]

    window : forward seconds of a rank before it needs the last of its gathered weights: they arrive layer by layer
        during the first micro-batch's forward on each stage that it holds. [s]
    """
    return np.asarray(gather - overlapped * hidden_share * np.minimum(gather, window))


def without_flush(
    period: Number, reduce: Number, updates: Number, hidden_share: Number, overlapped: Number
) -> tuple[PlanFloats, RankPlanFloats]:
    """Batch to batch where batches follow each other: (step, exposed reduction of each rank).  [s]

    A reduction that is overlapped has until the next update but one to be done; otherwise each update's is part of the
    period. The step is as long as the pipeline takes or as the network does: t = max(compute, all-reduce) as in
    PipeDream-2BW's cost model (Narayanan et al. 2021, arXiv:2006.09503, section 3.3).
    """
    exposed = overlapped * (reduce * updates - hidden_share * np.minimum(reduce * updates, period))
    return np.asarray(period + exposed.max(axis=0)), np.asarray(exposed)


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Actions that take equally long whatever the seconds are.

    action, kind, stage, rank : arrays (classes). One action of each, its kind, its stage, and its rank.
    after : array (classes). The action behind it.
    of : array (actions). The class of each.
    weight : array (classes). How many actions of a step each class stands for.
    gathers, reduces : arrays (classes). Whether it opens, or closes, a visit beside whose traffic compute goes on;
        gathers_after : whether the action behind it opens one.
    """

    action: IntArray
    kind: IntArray
    stage: IntArray
    rank: IntArray
    after: IntArray
    of: IntArray
    weight: IntArray
    gathers: IntArray
    reduces: IntArray
    gathers_after: IntArray


@lru_cache(maxsize=256)
def classes_of(order: Order, at_visits: bool = False, each: bool = False) -> Classes:
    """Classes of an order's actions: by kind and stage and, at visits and in pairs, by what stands beside them."""
    code, visits, last = order.kind * order.num_stages + order.stage, visits_of(order), order.first[1:] - 1
    opens, closes = visits.opens.copy(), visits.closes.copy()
    opens[order.first[:-1]], closes[last] = False, False  # nothing goes on beside these
    if each:
        code = np.arange(len(order))
    elif at_visits or order.pair_needs is not None:
        ends = np.zeros(len(order), dtype=np.int64)
        ends[order.first[:-1]] += 1
        ends[last] += 2
        facts = (
            (np.append(code[1:], 0), len(KINDS) * order.num_stages),
            (0 if order.pair_needs is None else order.pair_needs >= 0, 2),
            (ends, 4),
            (visits.opens, 2),
            (visits.closes, 2),
            (np.append(visits.opens[1:], False), 2),
        )
        for fact, values in facts:
            code = code * values + fact
    found, of = different(code)
    action = np.empty(len(found), dtype=np.int64)
    action[of[::-1]] = np.arange(len(order))[::-1]  # the first of each
    after = np.minimum(action + 1, len(order) - 1)
    kind, stage, rank = order.kind[action], order.stage[action], order.rank[action]
    weight = np.bincount(of, order.weight).astype(np.int64)
    opens_next = np.append(opens[1:], False)[action]  # behind the last action of all there is none
    return Classes(action, kind, stage, rank, after, of, weight, opens[action], closes[action], opens_next)


def slowed_at_visits(order: Order, classes: Classes, visits: VisitSeconds) -> tuple[FloatArray, FloatArray]:
    """What a rank's compute loses beside the traffic of visits, by class of actions; (classes[, plans]).  [s]

    Returns:
    lost : counted at the action that opens or closes a visit, so that repetitions are alike.
    stretch : put behind the action that it holds up: what is gathered for a visit slows what is done before it.
    """
    axes = [1] * (visits.reduce_slows.ndim - 1)

    def gathering(kind: IntArray, stage: IntArray, there: IntArray) -> FloatArray:
        return np.asarray(visits.gather_slows[(kind != F).astype(np.int64), stage] * there.reshape(-1, *axes))

    after = classes.after
    reducing = visits.reduce_slows[classes.stage] * classes.reduces.reshape(-1, *axes)
    lost = reducing + gathering(classes.kind, classes.stage, classes.gathers)
    return lost, reducing + gathering(order.kind[after], order.stage[after], classes.gathers_after)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What the engines run, of one plan or of many that have one order. It hashes by identity.

    costs : what stages and ranks take; of many plans, with these as the last axis.
    hide_grad_reduce : the gradient reduction may run beside the last backward of each stage; number, or (plans).
    hide_gather : ZeRO's weight gather may run beside the next step's forward; number, or (plans).
    between_flushes_s : array (ranks). What is summed and gathered between two flushes of a step. [s]
    drawn_s : array (actions[, columns]). Compute of every action where it is drawn at random; None: that of its stage.
    """

    order: Order
    costs: StageSeconds
    hide_grad_reduce: Any = False
    hide_gather: Any = False
    drawn_s: ActionFloats | None = None
    between_flushes_s: RankFloats | float = 0.0

    def on(self, order: Order) -> Program:
        """The program with another order of the same stages."""
        return replace(self, order=order, drawn_s=None)

    @property
    def classes(self) -> Classes:
        """Classes of the order's actions."""
        return classes_of(self.order, self.costs.visits is not None, self.drawn_s is not None)

    def class_seconds(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What each class of actions computes, occupies its rank for, and needs until its result is elsewhere.  [s]

        A send follows the forward and the input gradient, or the whole backward. A blocking send keeps the sender until
        it is delivered, as Megatron-LM's does without overlap; the receiver gets the data at the same moment either
        way. What both of a pair give is there when both are done. What compute loses beside the traffic of visits holds
        up the rank, and no message.
        """
        order, classes, (passes, sends) = self.order, self.classes, _by_kind(self)
        kind, stage, after = classes.kind, classes.stage, classes.after
        compute = passes[kind, stage] if self.drawn_s is None else np.asarray(self.drawn_s)
        sent = sends[kind, stage]
        if sent.ndim < compute.ndim:
            sent = sent[:, np.newaxis]
        occupy, release = compute + self.costs.p2p_blocks * sent, compute + sent
        if order.pair_needs is not None:
            pairs = np.flatnonzero(order.pair_needs[classes.action] >= 0)
            second = passes[order.kind[after], order.stage[after]] if self.drawn_s is None else compute[after]
            release[pairs] += second[pairs]
        if self.costs.visits is not None:
            slowed = slowed_at_visits(order, classes, self.costs.visits)[1]
            occupy = occupy + (slowed if slowed.ndim == compute.ndim else slowed[:, np.newaxis])
        return compute, occupy, release

    def action_seconds(self) -> tuple[ActionFloats, ActionFloats, ActionFloats]:
        """What `class_seconds` says of each action; (actions[, plans]).  [s]"""
        compute, occupy, release = (each[self.classes.of] for each in self.class_seconds())
        return compute, occupy, release

    def slowed_s(self) -> ActionFloats:
        """Delay of each action by what is moved at visits; (actions).  [s]"""
        if self.costs.visits is None:
            return np.zeros(len(self.order))
        return np.asarray(slowed_at_visits(self.order, self.classes, self.costs.visits)[1][self.classes.of])

    def busy_per_rank(self) -> RankFloats:
        """Compute of a whole step on each rank, and the sends that occupy it.  [s]"""
        classes, busy = self.classes, self.class_seconds()[1]
        if self.costs.visits is not None:  # counted where it does not depend on what follows: repetitions are alike
            lost, stretch = slowed_at_visits(self.order, classes, self.costs.visits)
            busy = busy - stretch + lost
        return np.bincount(classes.rank, busy * classes.weight, self.order.num_ranks).astype(float)

    def gather_s(self) -> RankPlanFloats:
        """Part of each rank's weight gather that lengthens the step.  [s]"""
        costs = self.costs
        if not any_of(self.hide_gather) or not costs.gather_s.any():
            return costs.gather_s
        facts = (costs.visits is not None, self.drawn_s is not None)
        window = np.asarray(_before_last_gather(self.order, *facts) @ self.class_seconds()[0])
        return exposed_gather(costs.gather_s, window, costs.hidden_share, self.hide_gather)


@lru_cache(maxsize=4)
def _by_kind(program: Program) -> tuple[FloatArray, FloatArray]:
    """What actions take, and what is sent after them; (kinds of actions, stages[, plans]).  [s]"""
    order, costs = program.order, program.costs
    forward, backward, none = costs.send_forward_s, costs.send_backward_s, np.zeros_like(costs.send_forward_s)
    update = none
    if (order.kind == U).any():
        ends = costs.optimizer_s + costs.gather_s + costs.reduce_s * np.logical_not(program.hide_grad_reduce)
        update = ends[order.rank_of_stage]
    passes = np.stack([*costs.passes[:AT_PEAK].sum(axis=1), update])
    return passes, np.stack([forward, backward, backward, none, none])


@lru_cache(maxsize=256)
def _before_last_gather(order: Order, at_visits: bool, each: bool) -> FloatArray:
    """How many actions of each class a rank does before it needs the last of the weights that were gathered after the
    update; (ranks, classes)."""
    before = np.flatnonzero(np.arange(len(order)) <= last_first_visits(order)[order.rank])
    classes = classes_of(order, at_visits, each)
    counts = np.zeros((order.num_ranks, len(classes.action)))
    np.add.at(counts, (order.rank[before], classes.of[before]), 1.0)
    return counts


def between_flushes(order: Order, costs: StageSeconds, stack: StackSpec, *, sharded: bool) -> RankFloats:
    """What each rank sums and gathers between two flushes of a step.  [s]

    torch.distributed.pipelining sums gradients, and lets FSDP drop its weights, with the last backward of a schedule
    (torch/distributed/pipelining/stage.py, backward_maybe_with_nosync).

    sharded : weights are gathered again.
    """
    if order.per_flush is None or stack.sums_at_last_flush:
        return np.zeros(order.num_ranks)
    reduce, gather = costs.reduce_s, costs.gather_s * sharded
    if stack.overlap_grad_reduce:
        reduce = waited_reduction(reduce, costs.reduce_tail_s, last_backward(order, costs), costs.hidden_share)
    if stack.overlap_param_gather:
        forward = np.full(order.num_ranks, np.inf)
        np.minimum.at(forward, order.rank_of_stage, costs.forward_s)
        gather = exposed_gather(gather, forward, costs.hidden_share, True)
    return np.asarray(reduce + gather)


def last_backward(order: Order, costs: StageSeconds) -> RankFloats:
    """Seconds of the longest backward of each rank.  [s]"""
    found = np.zeros(order.num_ranks)
    np.maximum.at(found, order.rank_of_stage, costs.backward_s)
    return found


def priced_order(scenario: Scenario, *, fold: bool = True) -> tuple[Order, StageSeconds]:
    """What each rank does, and what it costs.

    fold : Leave out what repeats; the engines time it nevertheless.
    """
    return price_order(scenario, plans_of(scenario), fold=fold)[:2]


def price_order(scenario: Scenario, plans: Plans, *, fold: bool = True) -> tuple[Order, StageSeconds, Deal]:
    """What each rank does, what it costs, and how stages are dealt."""
    plan, chosen = scenario.plan, get_schedule(scenario.plan.schedule)
    if plan.sequence_slices > 1 and "slices" not in chosen.options:
        raise ScheduleError(
            f"schedule {plan.schedule!r} does not cut sequences; set plan.schedule to seq1f1b or plan.sequence_slices "
            "to 1"
        )
    options: dict[str, Any] = {"group": plan.microbatch_group, "per_flush": plan.microbatches_per_flush}
    if "slices" in chosen.options:
        options["slices"] = plan.sequence_slices
    if "ahead" in chosen.options and plan.vocabulary_over_stages:
        options["ahead"] = 1
    stages = num_stages_of(scenario.model.num_layers, plan)
    if stages < plan.num_stages:
        options["stages"] = stages

    size = (plan.schedule, plan.pp, plan.num_chunks, scenario.num_microbatches)

    by_times = "times" in chosen.options
    # If it chooses its order by what things take, any of its candidates tells that first.
    given: dict[str, Any] = {"candidate": 0} if by_times and chosen.candidates else {}
    while True:
        order = build_order(*size, fold=fold, **(options | given))
        deal = deal_of(scenario.model, plan, order.rank_of_stage, order.copies)
        costs = price_in_order(plans, deal).take(0)
        if not by_times:
            return order, costs, deal
        by_times, given = False, {"times": typical_times(costs)}


def typical_times(costs: StageSeconds) -> tuple[float, float, float, float]:
    """Forward, input gradient, weight gradient and send of the average stage, in forwards to three digits."""
    passes = (costs.forward_s, costs.input_grad_s, costs.weight_grad_s)
    seconds = (*(float(each.mean()) for each in passes), costs.typical_send)
    forward, inputs, weights, send = (round(value / seconds[0], 3) for value in seconds)
    return forward, inputs, weights, send


def program_of(scenario: Scenario, order: Order, costs: StageSeconds) -> Program:
    """Return the program that engines run for a scenario."""
    plan, stack = scenario.plan, scenario.stack
    beside = stack.overlap_grad_reduce
    if beside and stack.reduce_waited_for and get_schedule(order.schedule).asynchronous:
        waited = waited_reduction(costs.reduce_s, costs.reduce_tail_s, last_backward(order, costs), costs.hidden_share)
        costs, beside = replace(costs, reduce_s=waited), False  # what is left of it is a part of the update
    return Program(
        order,
        costs,
        between_flushes_s=between_flushes(order, costs, stack, sharded=plan.zero_stage == 3),
        hide_grad_reduce=beside,
        hide_gather=stack.overlap_param_gather,
    )


def cores_assumed(scenario: Scenario) -> Iterator[str]:
    """Note that ranks which really share cores are given one each, where they are."""
    node, ranks = scenario.cluster.node, scenario.plan.num_gpus
    if node.cores is not None and ranks > node.cores:
        yield (
            f"each of {ranks} ranks is given a core of its own, but node {node.name!r} has {node.cores:g}: ranks that "
            "take turns on them are slower"
        )
