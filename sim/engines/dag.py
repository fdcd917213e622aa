"""The exact engine: the longest path through the order, one visit an action."""

from __future__ import annotations

import numpy as np

from sim.engines.program import Program
from sim.engines.timeline import Timeline, finish_step


def run(program: Program) -> Timeline:
    """Start every action as soon as its rank is free and what it needs has arrived.

    Exact for deterministic durations: the step time is the longest path through the actions' dependencies.
    """
    order = program.order
    occupy, release = program.occupy.tolist(), program.release.tolist()
    previous, needs = order.previous.tolist(), order.needs.tolist()
    rank_of = order.rank.tolist()
    # A need on the same rank is met by the order itself, without a send.
    arrival = [-1 if need >= 0 and rank_of[need] == rank_of[task] else need for task, need in enumerate(needs)]
    start = [0.0] * len(occupy)
    for task in order.topological.tolist():
        before, need = previous[task], arrival[task]
        free = start[before] + occupy[before] if before >= 0 else 0.0
        if need >= 0:
            here = start[need] + release[need]
            if here > free:
                free = here
        start[task] = free
    starts = np.array(start)
    ends = starts + program.occupy
    pipeline_end = np.zeros(order.num_ranks)
    np.maximum.at(pipeline_end, order.rank, ends)
    return finish_step(program, "dag", starts, ends, pipeline_end)
