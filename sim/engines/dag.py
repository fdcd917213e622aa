"""The exact engine: the longest path through the order, one visit an action."""

from __future__ import annotations

import numpy as np

from sim.engines.program import Program
from sim.engines.steady import play_folded
from sim.engines.timeline import Timeline, finish_step
from sim.schedules import Order

Array = np.ndarray


def run(program: Program) -> Timeline:
    """Start every action as soon as its rank is free and what it needs has arrived.

    Exact for deterministic durations: the step time is the longest path through the actions' dependencies.
    """
    program, start, end, period = play_folded(program, longest_path)
    return finish_step(program, "dag", start, end, period_s=period)


def longest_path(program: Program) -> tuple[Array, Array]:
    """Earliest start and end of every action. [s]"""
    start = earliest_starts(program.order, program.occupy, program.release)
    return start, start + program.occupy


def earliest_starts(order: Order, occupy: Array, release: Array) -> Array:
    """Earliest start of every action.  [s]

    Parameters
    ----------
    order : Order
    occupy, release : arrays over actions, or over actions and columns
        As of Program; each column is a step of its own, and all are played at once. [s]
    """
    needs = order.abroad(order.needs)
    pairs = None if order.pair_needs is None else order.abroad(order.pair_needs)
    if order.levels is None and occupy.ndim == 1:
        return _single(order, occupy, release, needs, pairs)
    return _levels(order, occupy, release, needs, pairs)


def _single(order: Order, occupies: Array, releases: Array, needs: Array, pairs: Array | None) -> Array:
    """One action after the other."""
    occupy, release = occupies.tolist(), releases.tolist()
    previous, arrival = order.previous.tolist(), needs.tolist()
    pair = None if pairs is None else pairs.tolist()
    start = [0.0] * len(occupy)
    for task in order.topological.tolist():
        before, need = previous[task], arrival[task]
        free = start[before] + occupy[before] if before >= 0 else 0.0
        if need >= 0:
            here = start[need] + release[need]
            if here > free:
                free = here
        if pair is not None and pair[task] >= 0:
            free = max(free, start[pair[task]] + release[pair[task]])
        start[task] = free
    return np.array(start)


def _levels(order: Order, occupy: Array, release: Array, needs: Array, pairs: Array | None) -> Array:
    """All actions at once that could run at the same moment; arrays in the order in which they can run."""
    topological = order.topological
    place = np.empty(len(order) + 1, dtype=np.int64)
    place[topological], place[-1] = np.arange(len(order)), len(order)  # what is not awaited stands last, at time 0
    previous, need = place[order.previous[topological]], place[needs[topological]]
    pair = None if pairs is None else place[pairs[topological]]
    occupy, release = occupy[topological], release[topological]
    start = np.zeros(occupy.shape)
    free, arrived = np.zeros((2, len(order) + 1, *occupy.shape[1:]))
    levels = np.arange(1, len(order) + 1) if order.levels is None else order.levels
    begin = 0
    for end in levels.tolist():
        here = slice(begin, end)
        np.maximum(free[previous[here]], arrived[need[here]], out=start[here])
        if pair is not None:
            np.maximum(start[here], arrived[pair[here]], out=start[here])
        np.add(start[here], occupy[here], out=free[here])
        np.add(start[here], release[here], out=arrived[here])
        begin = end
    starts = np.empty(start.shape)
    starts[topological] = start
    return starts
