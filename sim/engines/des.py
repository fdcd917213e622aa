"""The event-driven engine: each rank is a SimPy process that waits for what it needs, works, and tells the others.

On its own it gives what the exact engine gives, an event at a time; it is the place for what a longest path cannot
see: shared links, jitter, stragglers, failures.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from sim.engines.critical_path import play_folded
from sim.engines.program import Program
from sim.engines.timeline import Played, Timeline, finish_step
from sim.engines.visits import Streams
from sim.errors import ScheduleError
from sim.schedules.passes import visits_of

MOST_ACTIONS = 1_000_000
"""An event of SimPy takes microseconds, an action some events: of more one would wait for half a minute and longer."""


def run(program: Program) -> Timeline:
    """Simulate the step."""
    program, played, period = play_folded(program, simulate)
    return finish_step(program, "des", played, period_s=period)


def simulate(program: Program) -> Played:
    """Play every action."""
    order = program.order
    if len(order) > MOST_ACTIONS:
        raise ScheduleError(
            f"{len(order):,} actions are more than the {MOST_ACTIONS:,} that engine des plays event by event; engine "
            "dag gives the same times, or use a larger plan.microbatch_size"
        )
    environment = simpy.Environment()
    occupy, release = program.occupy_s.tolist(), program.release_s.tolist()
    kinds = [order.needs] if order.pair_needs is None else [order.needs, order.pair_needs]
    needs = np.stack([order.abroad(kind) for kind in kinds], axis=1).tolist()
    arrived = {task: environment.event() for task in {need for pair in needs for need in pair} if task >= 0}
    start = np.zeros(len(order))
    end = np.zeros(len(order))
    streams = None if program.stream is None else Streams(order, program.stream)
    visits = visits_of(order)

    def deliver(task: int) -> Generator[Any, Any, None]:
        yield environment.timeout(release[task])
        arrived[task].succeed()

    def rank(number: int, tasks: list[int]) -> Generator[Any, Any, None]:
        for task in tasks:
            idle = environment.now
            for need in needs[task]:
                if need >= 0:
                    yield arrived[need]
            if streams is not None and visits.opens[task]:
                begin = float(streams.open(number, task, idle, environment.now))
                yield environment.timeout(max(begin - environment.now, 0))
            start[task] = environment.now
            if task in arrived:
                environment.process(deliver(task))
            yield environment.timeout(occupy[task])
            end[task] = environment.now
            if streams is not None:
                if visits.closes[task]:
                    free = float(streams.close(number, task, start[task], end[task]))
                    yield environment.timeout(max(free - environment.now, 0))
                streams.note(number, task)

    for number in range(order.num_ranks):
        environment.process(rank(number, np.flatnonzero(order.rank == number).tolist()))
    environment.run()
    return Played.of(start, end, streams)
