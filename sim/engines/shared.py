"""The engine of shared cores: ranks that are processes of one machine take turns on its processors.

Training on CPUs may run more processes than there are cores. A bubble is then not idle: while one rank waits, the
others run faster.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import Array
from sim.engines.program import Program
from sim.engines.step_end import step_end
from sim.engines.timeline import Played, Timeline, finish_step, step_begin, waits
from sim.engines.visits import Streams, slowed_by
from sim.errors import SpecError
from sim.schedules.actions import U
from sim.schedules.passes import visits_of

_ROUNDING = 1e-13
"""Work that may be left of an action when it ends, relative to the time since the step began."""


def run(program: Program) -> Timeline:
    """Simulate the step under processor sharing.

    While k processes compute on C cores each proceeds at the rate min(1, C / k) [1]_. A pipeline rank stands for the
    `twins` processes of its tensor- and data-parallel group, which do the same at the same time. C need not be whole:
    two hyperthreads of one core, or two cores that share a memory bus, are worth less than two. Delivery of a send that
    does not occupy its rank, and waiting for messages within an action, take time but no core. Without `cores` in the
    program nothing is shared.

    .. [1] Kleinrock 1967, "Time-shared systems: a theoretical treatment", Journal of the ACM 14(2): egalitarian
       processor sharing, here with several servers.
    """
    if program.order.fold is not None:
        program = program.on(program.order.fold.unfold())
    order = program.order
    if (order.kind == U).any():
        raise SpecError(f"engine shared plays steps that end; schedule {order.schedule!r} does not: use dag or des")
    ranks = order.num_ranks
    start, end = np.zeros(len(order)), np.zeros(len(order))
    rows = [np.flatnonzero(order.rank == rank).tolist() for rank in range(ranks)]
    kinds = [order.needs] if order.pair_needs is None else [order.needs, order.pair_needs]
    needs = np.stack([order.abroad(kind) for kind in kinds], axis=1).tolist()
    lost = np.zeros(len(order)) if program.costs.visits is None else slowed_by(order, program.costs.visits)
    delivery = (program.release_s - (program.occupy_s - lost)).tolist()
    idle = (np.zeros(len(order)) if program.idle is None else program.idle).tolist()
    work = (program.occupy_s - lost - np.asarray(idle)).tolist()
    arrived = [np.inf] * len(order)
    reduce = finish_step(program, "shared", None, np.zeros(ranks)).exposed_reduce_s
    streams, visits = None if program.stream is None else Streams(order, program.stream), visits_of(order)
    held: dict[int, float] = {}  # rank -> until when its stream keeps it from going on
    opened: set[int] = set()
    pipeline_end, reduced = np.zeros(ranks), np.zeros(ranks)
    position = [0] * ranks
    left: dict[int, float] = {}  # rank -> work left of what it computes
    pausing: dict[int, float] = {}  # rank -> when its wait for messages within an action is over
    now = 0.0

    def finish(rank: int) -> None:
        at = position[rank]
        position[rank] += 1
        if at == len(rows[rank]):
            reduced[rank] = now
            return
        task = rows[rank][at]
        end[task] = pipeline_end[rank] = now + lost[task]
        arrived[task] = now + delivery[task]
        if streams is not None:
            held[rank] = float(end[task])
            if visits.closes[task]:
                held[rank] = float(streams.close(rank, task, start[task], end[task]))
            streams.note(rank, task)
            if at + 1 == len(rows[rank]):  # its reductions after the pipeline follow all that is moved
                held[rank] = pipeline_end[rank] = max(held.get(rank, now), float(streams.until[task]))

    while True:
        for rank in [rank for rank, until in pausing.items() if until <= now]:
            del pausing[rank]
            finish(rank)
        waits = list(pausing.values())
        for rank, row in enumerate(rows):
            at = position[rank]
            if rank in left or rank in pausing or at > len(row):
                continue
            if held.get(rank, 0.0) > now:
                waits.append(held[rank])
                continue
            if at == len(row):
                left[rank] = float(reduce[rank])
                continue
            there = max((arrived[need] for need in needs[row[at]] if need >= 0), default=now)
            if there <= now:
                if streams is not None and visits.opens[row[at]] and row[at] not in opened:
                    opened.add(row[at])
                    held[rank] = float(streams.open(rank, row[at], held.get(rank, 0.0), now))
                    if held[rank] > now:
                        waits.append(held[rank])
                        continue
                start[row[at]] = now
                left[rank] = work[row[at]]
            else:
                waits.append(there)
        next_message = min(waits, default=np.inf)
        if not left:
            if next_message == np.inf:
                break
            now = next_message
            continue
        rate = speed(len(left) * program.twins, program.cores)
        shortest = min(left.values())
        ends = now + shortest / rate
        passed = shortest if ends <= next_message else (next_message - now) * rate
        now = min(ends, next_message)
        left = {rank: amount - passed for rank, amount in left.items()}
        for rank in [rank for rank, amount in left.items() if amount <= _ROUNDING * now]:
            del left[rank]
            at = position[rank]
            pause = idle[rows[rank][at]] if at < len(rows[rank]) else 0.0
            if pause > 0:
                pausing[rank] = now + pause
            else:
                finish(rank)
    return _finish(program, Played.of(start, end, streams), pipeline_end, reduced)


def speed(processes: float, cores: float | None) -> float:
    """Of its full speed, what each of so many processes runs at on `cores` cores."""
    return 1.0 if cores is None or processes <= cores else cores / processes


def _finish(program: Program, played: Played, pipeline_end: Array, reduced: Array) -> Timeline:
    """The update after the pipeline: every rank at once, again sharing the cores."""
    begin = step_begin(program, played.start)
    pipeline_end, reduced = pipeline_end - begin, reduced - begin
    alone = finish_step(program, "shared", None, pipeline_end)
    costs = program.costs
    after = share_out(costs.optimizer_s + alone.exposed_gather_s, program.twins, program.cores)
    stretch = after / np.maximum(costs.optimizer_s + alone.exposed_gather_s, 1e-300)
    return Timeline(
        program,
        "shared",
        played.start,
        played.end,
        pipeline_end,
        reduced - pipeline_end,
        alone.exposed_gather_s * stretch,
        float(step_end(reduced, costs.tied_embedding_s, after, program.order.ends)) + costs.step_setup_s,
        waits(program.order, played),
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
