"""A program: an order with seconds on every action, and what each rank does once a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.stage import StageCosts
from sim.schedules import Order
from sim.schedules.order import B, F, I, W

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Program:
    """What the engines run. Arrays over actions, then over ranks. [s]

    compute : how long each action computes.
    occupy : compute, and the send after it where sends block the sender: how long the rank is taken.
    release : from an action's start until those who wait for it on another rank may begin.
    hide_grad_reduce : the gradient reduction may run beside the last backward of each stage.
    hide_gather : ZeRO's weight gather may run beside the next step's forward.
    cores : how many processes compute at full speed at once (`NodeSpec.cores`); None: each has its own.
    twins : processes that a pipeline rank stands for, its tensor- and data-parallel group.
    idle : of each action, what of `occupy` waits for messages and needs no core; None: nothing. [s]
    """

    order: Order
    costs: StageCosts
    compute: Array
    occupy: Array
    release: Array
    hide_grad_reduce: bool
    hide_gather: bool
    cores: float | None = None
    twins: int = 1
    idle: Array | None = None

    def busy_per_rank(self) -> Array:
        """Compute of a whole step on each rank, and the sends that occupy it. [s]"""
        busy = np.zeros(self.order.num_ranks)
        np.add.at(busy, self.order.rank, self.occupy)
        return busy


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
    stage, kind = order.stage, order.kind
    forward, backward, weight = costs.forward_s, costs.backward_s, costs.weight_grad
    compute = np.choose(kind, [forward[stage], backward[stage], (backward - weight)[stage], weight[stage]])
    sends = np.choose(
        kind, [costs.send_forward[stage], costs.send_backward[stage], costs.send_backward[stage], 0.0 * stage]
    )
    occupy = compute + sends if costs.p2p_blocks else compute
    assert (F, B, I, W) == (0, 1, 2, 3)
    idle = None
    if idle_per_stage is not None:
        forward_idle, backward_idle = idle_per_stage
        split = np.where(backward > 0, weight / np.maximum(backward, 1e-300), 0.0) * backward_idle
        idle = np.choose(
            kind, [forward_idle[stage], backward_idle[stage], (backward_idle - split)[stage], split[stage]]
        )
    return Program(order, costs, compute, occupy, compute + sends, hide_grad_reduce, hide_gather, cores, twins, idle)
