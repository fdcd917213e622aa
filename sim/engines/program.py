"""A program: an order, what its stages and ranks take, and what may run beside what.

Each rank reduces as soon as it is done; the update waits for all of them, because the gradient norm and the overflow
check need every gradient. Overlapped, a stage's reduction goes on beside the last backward on it and all that its rank
does afterwards, except for the last bucket and for what it takes from the kernels that it overlaps.

Ranks, or kinds of ranks, are on the first axis; plans on the others. All in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sim.arrays import ActionFloats, FloatArray, Number, PlanFloats, RankFloats, RankPlanFloats, StagePlanFloats
from sim.costs.block import AT_PEAK
from sim.engines.tasks import Seconds, classes_of, pass_seconds, slowed_at_visits
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.passes import last_first_visits
from sim.specs import StackSpec


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


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What the engines run. It hashes by identity.

    hide_grad_reduce : the gradient reduction may run beside the last backward of each stage.
    hide_gather : ZeRO's weight gather may run beside the next step's forward.
    between_flushes_s : array (ranks). What is summed and gathered between two flushes of a step. [s]
    drawn_s : array (actions). Compute of every action where it is drawn at random; None: that of its stage. [s]
    """

    order: Order
    costs: StageSeconds
    hide_grad_reduce: bool = False
    hide_gather: bool = False
    drawn_s: ActionFloats | None = None
    between_flushes_s: RankFloats | float = 0.0

    def on(self, order: Order) -> Program:
        """The program with another order of the same stages."""
        return replace(self, order=order, drawn_s=None)

    def seconds(self) -> Seconds:
        """What the tasks of the step take."""
        return _seconds_of(self)

    def action_seconds(self) -> tuple[ActionFloats, ActionFloats, ActionFloats]:
        """What each action computes, occupies its rank for, and needs until its result is elsewhere; (actions).  [s]"""
        classes, seconds = classes_of(self.order, *self._classes), self.seconds()
        compute, occupy, release = (each[classes.of] for each in pass_seconds(self.order, classes, seconds))
        return compute, occupy, release

    def slowed_s(self) -> ActionFloats:
        """Delay of each action by what is moved at visits; (actions).  [s]"""
        if self.costs.visits is None:
            return np.zeros(len(self.order))
        classes = classes_of(self.order, at_visits=True)
        return np.asarray(slowed_at_visits(self.order, classes, self.costs.visits)[1][classes.of])

    def busy_per_rank(self) -> RankFloats:
        """Compute of a whole step on each rank, and the sends that occupy it.  [s]"""
        order, classes, seconds = self.order, classes_of(self.order, *self._classes), self.seconds()
        _, busy, _ = pass_seconds(order, classes, seconds)
        if seconds.visits is not None:  # counted where it does not depend on what follows: repetitions are alike
            lost, stretch = slowed_at_visits(order, classes, seconds.visits)
            busy = busy - stretch + lost
        return np.bincount(classes.rank, busy * classes.weight, order.num_ranks).astype(float)

    @property
    def _classes(self) -> tuple[bool, bool]:
        """The facts by which actions are put into classes."""
        return self.costs.visits is not None, self.drawn_s is not None


@lru_cache(maxsize=4)
def _seconds_of(program: Program) -> Seconds:
    order, costs = program.order, program.costs
    update = costs.optimizer_s + costs.gather_s + (0.0 if program.hide_grad_reduce else costs.reduce_s)
    seconds = Seconds(
        passes=np.stack([*costs.passes[:AT_PEAK].sum(axis=1), update[order.rank_of_stage]]),
        sends=sends_of(costs.send_forward_s, costs.send_backward_s),
        blocks=costs.p2p_blocks,
        reduce=costs.reduce_s,
        tail=costs.reduce_tail_s,
        share=costs.reduce_share,
        update=costs.optimizer_s,
        gather=costs.gather_s,
        tied=costs.tied_embedding_s,
        setup=costs.step_setup_s,
        overlap_reduce=program.hide_grad_reduce,
        hidden_share=costs.hidden_share,
        visits=costs.visits,
        compute=program.drawn_s,
        between=program.between_flushes_s,
    )
    if program.hide_gather and costs.gather_s.any():
        exposed = exposed_gather(costs.gather_s, gather_window(order, seconds), costs.hidden_share, True)
        seconds = seconds._replace(gather=exposed)
    return seconds


def sends_of(forward: StagePlanFloats, backward: StagePlanFloats) -> FloatArray:
    """What is sent after each kind of action; (kinds of actions, stages[, plans]).  [s]"""
    none = np.zeros_like(forward)
    return np.stack([forward, backward, backward, none, none])


def gather_window(order: Order, seconds: Seconds) -> RankPlanFloats:
    """Forward seconds of each rank before it needs the last of the weights that were gathered after the update.  [s]"""
    facts = (seconds.visits is not None, seconds.compute is not None)
    compute, _, _ = pass_seconds(order, classes_of(order, *facts), seconds)
    return np.asarray(_before_last_gather(order, *facts) @ compute)


@lru_cache(maxsize=256)
def _before_last_gather(order: Order, at_visits: bool, each: bool) -> FloatArray:
    """How many actions of each class a rank does before it needs the last of its weights; (ranks, classes)."""
    before = np.flatnonzero(np.arange(len(order)) <= last_first_visits(order)[order.rank])
    classes = classes_of(order, at_visits, each)
    counts = np.zeros((order.num_ranks, len(classes.action)))
    np.add.at(counts, (order.rank[before], classes.of[before]), 1.0)
    return counts
