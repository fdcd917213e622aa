"""A program: an order with seconds on every action, and what each rank does once a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.arrays import ActionPlanFloats, Array, Bools, StagePlanFloats
from sim.engines.visits import Stream, lost_at_visits, slowed_by, stream_of
from sim.pricing.scenario import StageCosts
from sim.schedules import Order
from sim.schedules.actions import B, F, I, U, W


@dataclass(frozen=True, slots=True)
class Program:
    """What the engines run. Arrays over actions, then over ranks. [s]

    compute_s : how long each action computes.
    occupy_s : compute, the send after it where sends block the sender, and what its rank loses beside its stream: how
        long the rank is taken.
    release_s : from an action's start until those who wait for it on another rank may begin.
    hide_grad_reduce : the gradient reduction may run beside the last backward of each stage.
    hide_gather : ZeRO's weight gather may run beside the next step's forward.
    cores : how many processes compute at full speed at once (`NodeSpec.cores`); None: each has its own.
    twins : processes that a pipeline rank stands for, its tensor- and data-parallel group.
    idle_per_stage : of forward and of backward of each stage, what waits for messages and needs no core. [s]
    idle : of each action, what of `occupy` waits for messages and needs no core; None: nothing. [s]
    stream : what ranks move once a visit; None: nothing.
    """

    order: Order
    costs: StageCosts
    compute_s: Array
    occupy_s: Array
    release_s: Array
    hide_grad_reduce: bool
    hide_gather: bool
    cores: float | None = None
    twins: int = 1
    idle_per_stage: tuple[Array, Array] | None = None
    idle: Array | None = None
    stream: Stream | None = None

    @property
    def further(self) -> int:
        """Visits beyond the next whose weights are asked for ahead."""
        return 0 if self.costs.visits is None else self.costs.visits.prefetched - 1

    def busy_per_rank(self) -> Array:
        """Compute of a whole step on each rank, and the sends that occupy it. [s]"""
        order, visits, occupied = self.order, self.costs.visits, self.occupy_s
        if visits is not None:  # where it is counted does not depend on what follows, so that repetitions are alike
            occupied = occupied - slowed_by(order, visits) + lost_at_visits(order, visits)
        return np.bincount(order.rank, occupied * order.weight, order.num_ranks)

    def on(self, order: Order) -> Program:
        """The same for another order of the same stages."""
        compute, occupy, release, idle = _seconds(order, self.costs, self.hide_grad_reduce, self.idle_per_stage)
        seconds: dict[str, Any] = {"compute_s": compute, "occupy_s": occupy, "release_s": release, "idle": idle}
        return replace(self, order=order, stream=_stream(order, self.costs), **seconds)


def build_program(
    order: Order,
    costs: StageCosts,
    *,
    hide_grad_reduce: bool = False,
    hide_gather: bool = False,
    cores: float | None = None,
    twins: int = 1,
    idle_per_stage: tuple[Array, Array] | None = None,
) -> Program:
    """Put the stages' seconds on the order's actions.

    A send follows the forward and the input gradient (or the whole backward) of every stage that has a neighbour on
    another rank. A blocking send keeps the sender until it is delivered, as Megatron-LM's does without overlap; the
    receiver gets the data at the same moment either way. `idle_per_stage` is what of a stage's forward and backward
    waits for messages. [s]
    """
    compute, occupy, release, idle = _seconds(order, costs, hide_grad_reduce, idle_per_stage)
    kept = (hide_grad_reduce, hide_gather, cores, twins, idle_per_stage, idle)
    return Program(order, costs, compute, occupy, release, *kept, _stream(order, costs))


def _stream(order: Order, costs: StageCosts) -> Stream | None:
    return None if costs.visits is None else stream_of(order, costs.visits)


def _seconds(
    order: Order, costs: StageCosts, hide_grad_reduce: bool, idle_per_stage: tuple[Array, Array] | None
) -> tuple[Array, Array, Array, Array | None]:
    """What each action computes, occupies its rank for, needs until its result arrives, and waits within."""
    backward, weight = costs.backward_s, costs.weight_grad_s
    update = costs.optimizer_s + costs.gather_s + (0.0 if hide_grad_reduce else costs.reduce_s)
    passes = (costs.forward_s, backward, costs.input_grad_s, weight, update[order.rank_of_stage])
    sends = (costs.send_forward_s, costs.send_backward_s)
    compute, occupy, release = action_seconds(order, passes, sends, costs.p2p_blocks)
    if costs.visits is not None:
        occupy = occupy + slowed_by(order, costs.visits)
    idle = None
    if idle_per_stage is not None:
        of_forward, of_backward = idle_per_stage
        split = np.where(backward > 0, weight / np.maximum(backward, 1e-300), 0.0) * of_backward
        of_kinds = [of_forward, of_backward, of_backward - split, split, np.zeros(order.num_stages)]
        idle = np.stack(of_kinds)[order.kind, order.stage]
    return compute, occupy, release, idle


def action_seconds(
    order: Order,
    passes: tuple[StagePlanFloats, StagePlanFloats, StagePlanFloats, StagePlanFloats, StagePlanFloats],
    sends: tuple[StagePlanFloats, StagePlanFloats],
    p2p_blocks: Bools | bool,
) -> tuple[ActionPlanFloats, ActionPlanFloats, ActionPlanFloats]:
    """What each action computes, occupies its rank for, and needs until its result arrives.  [s]

    Parameters
    ----------
    passes : forward, backward, input gradient, weight gradient and update of every stage
        Arrays over stages, or over stages and plans that have this order. [s]
    sends : from every stage to the next, and to the one before
        As above. [s]
    p2p_blocks : bool, or array over plans
        Sends occupy the rank that sends.
    """
    assert (F, B, I, W, U) == (0, 1, 2, 3, 4)
    place = (order.kind, order.stage)
    none = np.zeros_like(passes[0])
    compute = np.stack(passes)[place]
    release = compute + np.stack([sends[0], sends[1], sends[1], none, none])[place]
    occupy = np.where(p2p_blocks, release, compute)
    if order.pair_needs is not None:  # what both of a pair give is there when both are done
        pairs = np.flatnonzero(order.pair_needs >= 0)
        release[pairs] += compute[pairs + 1]
    return compute, occupy, release
