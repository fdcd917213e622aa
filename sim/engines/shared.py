"""The engine of shared cores: ranks that are processes of one machine take turns on its processors.

Training on CPUs may run more processes than there are cores. A bubble is then not idle: while one rank waits, the
others run faster.
"""

from __future__ import annotations

import numpy as np

from sim.engines.program import Program
from sim.engines.timeline import Timeline, finish_step

Array = np.ndarray
_DONE = 1e-12
"""Work that is left of an action when it ends, relative to the action: rounding."""


def run(program: Program) -> Timeline:
    """Simulate the step under processor sharing.

    While k processes compute on C cores each proceeds at the rate min(1, C / k) [1]_. A pipeline rank stands for the
    `twins` processes of its tensor- and data-parallel group, which do the same at the same time. C need not be whole:
    two hyperthreads of one core, or two cores that share a memory bus, are worth less than two. Delivery of a send that
    does not occupy its rank takes time, but no core. Without `cores` in the program nothing is shared.

    .. [1] Kleinrock 1967, "Time-shared systems: a theoretical treatment", Journal of the ACM 14(2): egalitarian
       processor sharing, here with several servers.
    """
    order = program.order
    ranks = order.num_ranks
    start, end = np.zeros(len(order)), np.zeros(len(order))
    delivery = program.release - program.occupy  # negative where others may begin before the sender is free: not here
    rows = [np.flatnonzero(order.rank == rank).tolist() for rank in range(ranks)]
    needs = [
        need if need >= 0 and order.rank[need] != order.rank[task] else -1
        for task, need in enumerate(order.needs.tolist())
    ]
    arrived = np.full(len(order), np.inf)
    position = [0] * ranks
    left = np.full(ranks, np.nan)  # work left of the action a rank is at; nan: it waits
    reduce = np.asarray(finish_step(program, "shared", start, end, np.zeros(ranks)).exposed_reduce, dtype=float)
    pipeline_end, reduced = np.zeros(ranks), np.zeros(ranks)
    now = 0.0
    while True:
        for rank in range(ranks):
            row, at = rows[rank], position[rank]
            if not np.isnan(left[rank]) or at > len(row):
                continue
            if at == len(row):
                left[rank] = reduce[rank]
            elif needs[row[at]] < 0 or arrived[needs[row[at]]] <= now:
                start[row[at]] = now
                left[rank] = program.occupy[row[at]]
        active = ~np.isnan(left)
        waits = [
            arrived[needs[rows[rank][position[rank]]]]
            for rank in range(ranks)
            if not active[rank] and position[rank] < len(rows[rank])
        ]
        next_arrival = min((time for time in waits if time > now), default=np.inf)
        if not active.any():
            if next_arrival == np.inf:
                break
            now = next_arrival
            continue
        rate = speed(int(active.sum()) * program.twins, program.cores)
        passed = min(float(left[active].min()) / rate, next_arrival - now)
        now = next_arrival if now + passed >= next_arrival else now + passed
        left[active] -= passed * rate
        for rank in np.flatnonzero(active).tolist():
            task = rows[rank][position[rank]] if position[rank] < len(rows[rank]) else -1
            size = program.occupy[task] if task >= 0 else reduce[rank]
            if left[rank] > _DONE * max(size, now):
                continue
            left[rank] = np.nan
            position[rank] += 1
            if task < 0:
                reduced[rank] = now
                continue
            end[task] = pipeline_end[rank] = now
            arrived[task] = now + delivery[task]
    return _finish(program, start, end, pipeline_end, reduced)


def speed(processes: float, cores: float | None) -> float:
    """Of its full speed, what each of so many processes runs at on `cores` cores."""
    return 1.0 if cores is None or processes <= cores else cores / processes


def _finish(program: Program, start: Array, end: Array, pipeline_end: Array, reduced: Array) -> Timeline:
    """The update after the pipeline: every rank at once, again sharing the cores."""
    alone = finish_step(program, "shared", start, end, pipeline_end)
    costs = program.costs
    tied = max(reduced[0], reduced[-1]) + costs.tied_embedding if costs.tied_embedding else 0.0
    ready = float(max(reduced.max(), tied))
    after = share_out(costs.optimizer + alone.exposed_gather, program.twins, program.cores)
    stretch = after / np.maximum(costs.optimizer + alone.exposed_gather, 1e-300)
    return Timeline(
        program,
        "shared",
        start,
        end,
        pipeline_end,
        reduced - pipeline_end,
        alone.exposed_gather * stretch,
        ready + float(after.max()),
    )


def share_out(work: Array, twins: int, cores: float | None) -> Array:
    """When each rank ends, all having begun together with so much work.  [s]"""
    ends = np.zeros(len(work))
    now = done = 0.0
    order = np.argsort(work)
    for place, rank in enumerate(order):
        now += (work[rank] - done) / speed((len(work) - place) * twins, cores)
        done = float(work[rank])
        ends[rank] = now
    return ends
