"""A program: an order, what its stages and ranks take, and what may run beside what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sim.arrays import ActionFloats, FloatArray, RankFloats, RankPlanFloats, StageFloats, StagePlanFloats
from sim.costs.block import AT_PEAK
from sim.engines.step_end import exposed_gather
from sim.engines.tasks import Seconds, classes_of, pass_seconds, slowed_at_visits
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.passes import last_first_visits


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What the engines run. It hashes by identity.

    hide_grad_reduce : the gradient reduction may run beside the last backward of each stage.
    hide_gather : ZeRO's weight gather may run beside the next step's forward.
    cores : how many processes compute at full speed at once (`NodeSpec.cores`); None: each has its own.
    twins : processes that a pipeline rank stands for, its tensor- and data-parallel group.
    idle_per_stage : of forward and of backward of each stage, what waits for messages and needs no core. [s]
    drawn_s : array (actions). Compute of every action where it is drawn at random; None: that of its stage. [s]
    """

    order: Order
    costs: StageSeconds
    hide_grad_reduce: bool = False
    hide_gather: bool = False
    cores: float | None = None
    twins: int = 1
    idle_per_stage: tuple[StageFloats, StageFloats] | None = None
    drawn_s: ActionFloats | None = None

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
