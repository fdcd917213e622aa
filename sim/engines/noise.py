"""Steps that differ by chance: GPUs whose kernels take a little longer or shorter each time, many steps drawn at once.

A pipeline rank is a group of GPUs that wait for each other inside every layer (tensor and context parallelism); an
action takes as long as on its slowest member. Data-parallel replicas run pipelines of their own and meet once a step.

Where ranks begin the next step without waiting for each other, what one loses it may make up for later: such steps are
not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from sim.arrays import Array
from sim.costs.block import AT_PEAK
from sim.engines.max_plus import play_plans
from sim.engines.program import Program
from sim.engines.tasks import amounts_of, step_of, switches_of
from sim.errors import ScheduleError
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.actions import U
from sim.schedules.registry import is_staggered
from sim.work.operations import Cause

AT_ONCE = 2**23
"""Actions times columns that are played at once: about half a gigabyte of arrays."""
_KERNELS = [
    Cause.MATMUL, Cause.ATTENTION, Cause.MEMORY_BOUND, Cause.LOGITS, Cause.OPTIMIZER, Cause.RECOMPUTE, Cause.PIPELINE
]  # fmt: skip
"""Causes that are as slow as the GPU, unlike what networks and hosts take."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A pipeline that runs beside others of its kind.

    program : with every rank at the pace of the slowest GPU in its group.
    kernels : of each action's compute, what GPUs do alone, so that it varies with them. [s]
    relative : (ranks, members) pace of each GPU in units of the slowest of its group.
    """

    program: Program
    kernels: Array
    relative: Array


def slowed(costs: StageSeconds, rank_of_stage: Array, factor: Array) -> StageSeconds:
    """Costs with kernels that take `factor` times as long, by rank; communication and host waits are as before."""
    passes = costs.passes.copy()
    passes[:AT_PEAK, _KERNELS] *= factor[rank_of_stage]
    optimizer_s = (costs.optimizer_s - costs.offload_s) * factor + costs.offload_s
    return replace(costs, passes=passes, optimizer_s=optimizer_s)


def replica(program: Program, factors: Array) -> Replica:
    """A pipeline whose GPUs take `factors` (ranks, members) times as long for every kernel."""
    order, slowest = program.order, factors.max(axis=1)
    costs = slowed(program.costs, order.rank_of_stage, slowest)
    alone = replace(costs, passes=costs.passes[:, _KERNELS])
    kernels = np.where(order.kind == U, 0.0, replace(program, costs=alone).action_seconds()[0])
    return Replica(replace(program, costs=costs), kernels, factors / slowest[:, np.newaxis])


def noisy_steps(replicas: Sequence[Replica], jitter: float, seeds: int, seed: int = 0) -> Array:
    """Step times of `seeds` steps drawn at random.  [s]

    Every kernel time is multiplied by a log-normal factor of mean 1 and relative standard deviation `jitter`, drawn
    anew for each GPU and action. Of n GPUs that wait for each other the largest factor counts; its distribution
    function is the n-th power of one GPU's, so it is drawn exactly, as one number. Every step and replica has a
    generator of its own, whatever else is drawn.

    replicas : of one order, unfolded. A step waits for all of them: a rank's gradients are reduced when all have them.
    jitter : relative standard deviation of one GPU's kernels in one action.
    seeds : steps to draw.
    seed : of the first.
    """
    program = replicas[0].program
    order, width = program.order, len(replicas)
    require_own_step(order)
    costs = replace(program.costs, optimizer_s=np.max([each.program.costs.optimizer_s for each in replicas], axis=0))
    program = replace(program, costs=costs)
    # Weights are gathered beside a forward without noise.
    program = replace(program, costs=replace(costs, gather_s=program.gather_s()), hide_gather=False)
    computes = [each.program.action_seconds()[0] for each in replicas]
    batch = max(1, AT_ONCE // (len(order) * width))
    times: list[float] = []
    for first in range(0, seeds, batch):
        drawn = range(first, min(first + batch, seeds))
        compute = np.empty((len(order), len(drawn) * width))
        for column, (number, k) in enumerate((number, k) for number in drawn for k in range(width)):
            compute[:, column] = _noisy(replicas[k], computes[k], jitter, (seed, number, k))
        some = replace(program, drawn_s=compute)
        on = switches_of(some)
        step = step_of(order, on)
        played = play_plans(step.graph, amounts_of(some, on), costs.hidden_share, width)
        times += (played[step.graph.event[step.step]] + costs.step_setup_s).tolist()
    return np.array(times)


def noisy_program(pipeline: Replica, jitter: float, number: int, seed: int = 0) -> Program:
    """The program of one pipeline in step `number`, as `noisy_steps` draws it for the first replica."""
    program = pipeline.program
    require_own_step(program.order)
    return replace(program, drawn_s=_noisy(pipeline, program.action_seconds()[0], jitter, (seed, number, 0)))


def require_own_step(order: Order) -> None:
    """Refuse schedules whose steps overlap."""
    if is_staggered(order.schedule) or (order.kind == U).any():
        raise ScheduleError(
            f"schedule {order.schedule!r} lets steps overlap, so that no step can be drawn on its own. Leave out "
            "--jitter, --unfold and slow GPUs in different replicas, or choose a schedule with a flush, such as 1f1b "
            "or zb_h1"
        )


def _noisy(pipeline: Replica, compute: Array, jitter: float, key: tuple[int, int, int]) -> Array:
    """Compute of every action in one step, from what it is without noise.  [s]"""
    factor = factors_of(pipeline.program.order, pipeline.relative, jitter, key)
    return np.asarray(compute + pipeline.kernels * (factor - 1.0))


def factors_of(order: Order, relative: Array, jitter: float, key: tuple[int, int, int]) -> Array:
    """Factor by which each action's kernels take longer than on its slowest GPU without noise.

    relative : array (ranks, members). Pace of the GPUs of each rank relative to the slowest of it.

    The largest of the members' draws is drawn first, and which member drew it; the others, where they are slower than
    that one by nature, are then known to have drawn less. A slower GPU never makes a group faster this way.
    """
    if not jitter:
        return np.ones(len(order))
    members = relative.shape[1]
    rng = np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=key[1:]))
    log_chance = -rng.standard_exponential(len(order)) / members
    factor = _lognormal(log_chance, jitter)
    for rank in np.flatnonzero((relative < 1.0).any(axis=1)).tolist():
        here = order.of_rank(rank)
        rng = np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=(*key[1:], 1 + rank)))
        highest = rng.integers(members, size=here.stop - here.start)
        top = log_chance[here]
        group = relative[rank, highest] * factor[here]
        for pace, count in zip(*np.unique(relative[rank], return_counts=True), strict=True):
            others = count - (relative[rank, highest] == pace)
            below = -rng.standard_exponential(len(top))
            drawn = _lognormal(top + below / np.maximum(others, 1), jitter)
            group = np.where(others > 0, np.maximum(group, pace * drawn), group)
        factor[here] = group
    return factor


def _lognormal(log_chance: Array, jitter: float) -> Array:
    """The factor that is not exceeded with this (logarithm of a) chance."""
    from scipy.special import ndtri_exp

    sigma = sqrt(log(1.0 + jitter**2))
    return np.asarray(np.exp(sigma * ndtri_exp(log_chance) - sigma**2 / 2))
