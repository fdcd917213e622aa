"""The event-driven engine: each rank is a SimPy process that waits for what it needs, works, and tells the others.

On its own it gives what the exact engine gives, an event at a time; it is the place for what a longest path cannot
see: shared links, jitter, stragglers, failures.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from sim.engines.program import Program
from sim.engines.timeline import Timeline, finish_step


def run(program: Program) -> Timeline:
    """Simulate the step."""
    order = program.order
    environment = simpy.Environment()
    occupy, release = program.occupy.tolist(), program.release.tolist()
    needs = order.needs.tolist()
    rank_of = order.rank.tolist()
    awaited = {need for task, need in enumerate(needs) if need >= 0 and rank_of[need] != rank_of[task]}
    arrived = {task: environment.event() for task in awaited}
    start = np.zeros(len(order))
    end = np.zeros(len(order))

    def deliver(task: int) -> Generator[Any, Any, None]:
        yield environment.timeout(release[task])
        arrived[task].succeed()

    def rank(tasks: list[int]) -> Generator[Any, Any, None]:
        for task in tasks:
            if needs[task] in arrived and rank_of[needs[task]] != rank_of[task]:
                yield arrived[needs[task]]
            start[task] = environment.now
            if task in arrived:
                environment.process(deliver(task))
            yield environment.timeout(occupy[task])
            end[task] = environment.now

    for number in range(order.num_ranks):
        environment.process(rank(np.flatnonzero(order.rank == number).tolist()))
    environment.run()
    pipeline_end = np.zeros(order.num_ranks)
    np.maximum.at(pipeline_end, order.rank, end)
    return finish_step(program, "des", start, end, pipeline_end)
