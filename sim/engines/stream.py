"""Steps that overlap, played in a row: schedules whose ranks begin the next step without waiting for the others.

What one rank loses in such a step it may make up for in the next, so none can be drawn on its own. A row of them is one
order, and a step lasts from the end of the one before to its own.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import Array
from sim.engines import longest_path
from sim.engines.max_plus import play_plans
from sim.engines.noise import AT_ONCE, Replica, factors_of, replica
from sim.engines.program import Program
from sim.engines.tasks import amounts_of, places_of, step_of
from sim.engines.timeline import Timeline
from sim.schedules import Order, build_order, get_schedule
from sim.schedules.order import in_levels, make_order

WARM_UP = 4
"""Steps before those that count: the pipeline fills, and ranks fall into step."""
ROW = 20
"""Steps of a row that count; more are drawn in several rows."""


def overlapping_steps(program: Program, factors: Array, jitter: float, seeds: int, seed: int = 0) -> Array:
    """Step times of an asynchronous or staggered schedule drawn at random.  [s]

    Kernels vary as in `sim.engines.noise.noisy_steps`. Reductions, gathers and updates take what they take without
    noise.

    Parameters
    ----------
    program : Program
        Of one step, folded or not.
    factors : array (ranks, members)
        How many times as long each GPU takes for every kernel.
    jitter : float
    seeds, seed : int
        Steps to draw, and the seed of them all.
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
        compute = np.stack([_noisy(pipeline, step, jitter, (seed, each)) for each in drawn], axis=1)
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

    Parameters
    ----------
    step : Order
        Unfolded; of an asynchronous schedule, one batch.
    """
    if get_schedule(step.schedule).asynchronous:
        return build_order(step.schedule, step.num_ranks, 1, step.num_microbatches, batches=number)
    rows = []
    for rank in range(step.num_ranks):
        row = np.tile(step.row(rank), (number, 1))
        row[:, 2] += np.repeat(np.arange(number), len(row) // number) * step.num_microbatches
        rows.append(row)
    return make_order(step.schedule, rows, step.num_stages, number * step.num_microbatches, copies=step.copies)


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
    if get_schedule(row.schedule).asynchronous:
        return after
    for rank in range(row.num_ranks):
        here = row.of_rank(rank)
        length = (here.stop - here.start) // number
        tied = costs.tied_embedding_s if rank in row.ends else 0.0
        update = float((costs.optimizer_s + alone.exposed_gather_s).max())  # the longest, as in `finish_step`
        after[here.start + length - 1 : here.stop : length] = (
            alone.exposed_reduce_s[rank] + tied + update + costs.step_setup_s
        )
    return after


def _noisy(pipeline: Replica, step: Order, jitter: float, key: tuple[int, int]) -> Array:
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
