"""The event-driven engine: each rank is a SimPy process that waits for what it needs, works, and tells the others.

On its own it gives what the exact engine gives, an event at a time; it is the place for what a longest path cannot
see: shared links, jitter, stragglers, failures.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from sim.arrays import Array
from sim.engines.critical_path import play_folded
from sim.engines.program import Program
from sim.engines.timeline import Timeline, finish_step


def run(program: Program) -> Timeline:
    """Simulate the step."""
    program, start, end, period = play_folded(program, simulate)
    return finish_step(program, "des", start, end, period_s=period)


def simulate(program: Program) -> tuple[Array, Array]:
    """Start and end of every action. [s]"""
    order = program.order
    environment = simpy.Environment()
    occupy, release = program.occupy_s.tolist(), program.release_s.tolist()
    kinds = [order.needs] if order.pair_needs is None else [order.needs, order.pair_needs]
    needs = np.stack([order.abroad(kind) for kind in kinds], axis=1).tolist()
    arrived = {task: environment.event() for task in {need for pair in needs for need in pair} if task >= 0}
    start = np.zeros(len(order))
    end = np.zeros(len(order))

    def deliver(task: int) -> Generator[Any, Any, None]:
        yield environment.timeout(release[task])
        arrived[task].succeed()

    def rank(tasks: list[int]) -> Generator[Any, Any, None]:
        for task in tasks:
            for need in needs[task]:
                if need >= 0:
                    yield arrived[need]
            start[task] = environment.now
            if task in arrived:
                environment.process(deliver(task))
            yield environment.timeout(occupy[task])
            end[task] = environment.now

    for number in range(order.num_ranks):
        environment.process(rank(np.flatnonzero(order.rank == number).tolist()))
    environment.run()
    return start, end
