"""Steps that differ by chance: GPUs whose kernels take a little longer or shorter each time, many steps drawn at once.

A pipeline rank is a group of GPUs that wait for each other inside every layer (tensor and context parallelism); an
action takes as long as on its slowest member. Data-parallel replicas run pipelines of their own and meet once a step.

What one rank loses in such a step it may make up for in the next, so none can be drawn on its own. A row of them is one
order, and a step lasts from the end of the one before to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt

import numpy as np

from sim.arrays import Array
from sim.costs.block import AT_PEAK
from sim.engines import longest_path
from sim.engines.max_plus import play_plans
from sim.engines.program import Program
from sim.engines.tasks import amounts_of, places_of, step_of
from sim.engines.timeline import Timeline
from sim.errors import ScheduleError
from sim.pricing.stages import StageSeconds
from sim.schedules import Order, build_order, get_schedule
from sim.schedules.actions import U
from sim.schedules.order import in_levels, make_order
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
    order, width = in_levels(program.order), len(replicas)
    require_own_step(order)
    costs = replace(program.costs, optimizer_s=np.max([each.program.costs.optimizer_s for each in replicas], axis=0))
    program = replace(program, order=order, costs=costs)
    computes = [each.program.action_seconds()[0] for each in replicas]
    batch = max(1, AT_ONCE // (len(order) * width))
    times: list[float] = []
    for first in range(0, seeds, batch):
        drawn = range(first, min(first + batch, seeds))
        compute = np.empty((len(order), len(drawn) * width))
        for column, (number, k) in enumerate((number, k) for number in drawn for k in range(width)):
            compute[:, column] = _noisy(replicas[k], computes[k], jitter, (seed, number, k))
        seconds = program.seconds()._replace(compute=compute)
        on = seconds.switches()
        step, amounts = step_of(order, on), amounts_of(order, on, seconds)
        played = play_plans(step.graph, amounts, seconds.hidden_share, width=width)
        times += (played.times[step.graph.event[step.step]] + costs.step_setup_s).tolist()
    return np.array(times)


def noisy_program(pipeline: Replica, jitter: float, number: int, seed: int = 0) -> Program:
    """The program of one pipeline in step `number`, as `noisy_steps` draws it for the first replica."""
    program = pipeline.program
    require_own_step(program.order)
    return replace(program, drawn_s=_noisy(pipeline, program.action_seconds()[0], jitter, (seed, number, 0)))


def require_own_step(order: Order) -> None:
    """Refuse schedules whose steps overlap."""
    if steps_overlap(order):
        raise ScheduleError(
            f"schedule {order.schedule!r} lets steps overlap, so noise is simulated on one pipeline of it. "
            "Leave out contention, --unfold and slow GPUs in different replicas, or choose a "
            "schedule with a flush, such as 1f1b or zb_h1"
        )


def steps_overlap(order: Order) -> bool:
    """Whether ranks begin the next step without waiting for the others."""
    return is_staggered(order.schedule) or bool((order.kind == U).any())


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


WARM_UP = 4
"""Steps before those that count: the pipeline fills, and ranks fall into step."""
ROW = 20
"""Steps of a row that count; more are drawn in several rows."""


def overlapping_steps(program: Program, factors: Array, jitter: float, seeds: int, seed: int = 0) -> Array:
    """Step times of an asynchronous or staggered schedule drawn at random.  [s]

    Kernels vary as in `sim.engines.noise.noisy_steps`. Reductions, gathers and updates take what they take without
    noise.

    program : of one step, folded or not.
    factors : array (ranks, members). How many times as long each GPU takes for every kernel.
    seeds, seed : steps to draw, and the seed of them all.
    """
    alone = longest_path.run(replica(program, factors).program)
    step = _one_step(program.order)
    counted = min(ROW, seeds)
    # The last batches have no forwards of later ones between their backwards.
    number = WARM_UP + counted + -(-step.num_ranks // step.num_microbatches)
    row = in_levels(steps_in_a_row(step, number))
    pipeline = replica(program.on(row), factors)
    after = _after_each_step(alone, row, number)
    # Of an asynchronous schedule the reductions that nothing hides follow every batch.
    exposed = alone.step_time_s - alone.pipeline_end_s.max() if get_schedule(step.schedule).asynchronous else 0.0
    rows = -(-seeds // ROW)
    batch = max(1, AT_ONCE // len(row))
    times = []
    for first in range(0, rows, batch):
        drawn = range(first, min(first + batch, rows))
        compute = np.stack([_noisy_steps(pipeline, step, jitter, (seed, each)) for each in drawn], axis=1)
        seconds = pipeline.program.seconds()._replace(compute=compute)
        on = seconds.switches()
        graph, amounts, at = step_of(row, on).graph, amounts_of(row, on, seconds), places_of(row, on)
        amounts[at["pass"]] += after[:, np.newaxis]
        amounts[at["message"]] -= after[:, np.newaxis]  # which follows the pass and not what comes after it
        end = play_plans(graph, amounts, seconds.hidden_share).times[graph.event[: len(row)]] + amounts[at["pass"]]
        done = np.zeros((number, len(drawn)))
        np.maximum.at(done, row.microbatch // step.num_microbatches, end)
        times.append(np.diff(done, axis=0)[WARM_UP - 1 :][:counted].T.ravel() + exposed)
    return np.concatenate(times)[:seeds]


def steps_in_a_row(step: Order, number: int) -> Order:
    """So many steps as one order.

    step : unfolded; of an asynchronous schedule, one batch.
    """
    if get_schedule(step.schedule).asynchronous:
        return build_order(step.schedule, step.num_ranks, 1, step.num_microbatches, batches=number)
    rows = []
    for rank in range(step.num_ranks):
        row = np.tile(step.row(rank), (number, 1))
        row[:, 2] += np.repeat(np.arange(number), len(row) // number) * step.num_microbatches
        rows.append(row)
    size = (step.num_stages, number * step.num_microbatches)
    return make_order(step.schedule, rows, *size, copies=step.copies, per_flush=step.per_flush)


def _one_step(order: Order) -> Order:
    if get_schedule(order.schedule).asynchronous:
        fold = order.fold
        assert fold is not None, "an asynchronous order is folded to a batch"
        return build_order(order.schedule, order.num_ranks, 1, order.num_microbatches, batches=1)
    return order if order.fold is None else order.fold.unfold()


def _after_each_step(alone: Timeline, row: Order, number: int) -> Array:
    """What each action is followed by on its rank: after the last of a step its reduction, update and gather.  [s]

    Asynchronous schedules have updates of their own.
    """
    costs, after = alone.program.costs, np.zeros(len(row))
    between = np.zeros(row.num_ranks) + alone.program.between_flushes_s  # stands behind each flush of the row already
    if get_schedule(row.schedule).asynchronous:
        return after
    for rank in range(row.num_ranks):
        here = row.of_rank(rank)
        length = (here.stop - here.start) // number
        tied = costs.tied_embedding_s if rank in row.ends else 0.0
        update = float((costs.optimizer_s + alone.exposed_gather_s).max())  # the longest, as in `finish_step`
        after[here.start + length - 1 : here.stop : length] = (
            alone.exposed_reduce_s[rank] + tied + update + costs.step_setup_s - between[rank]
        )
    return after


def _noisy_steps(pipeline: Replica, step: Order, jitter: float, key: tuple[int, int]) -> Array:
    """Compute of every action of a row, each step of it with a generator of its own.  [s]"""
    row, m = pipeline.program.order, step.num_microbatches

    def names(order: Order) -> Array:
        return np.asarray((order.stage * 8 + order.kind) * m + order.microbatch % m)

    of_step = np.argsort(names(step))
    same = of_step[np.searchsorted(names(step), names(row), sorter=of_step)]
    which = row.microbatch // m
    drawn = np.stack([factors_of(step, pipeline.relative, jitter, (*key, each)) for each in range(which.max() + 1)])
    compute, _, _ = pipeline.program.action_seconds()
    return np.asarray(compute + pipeline.kernels * (drawn[which, same] - 1.0))
