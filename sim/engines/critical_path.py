"""The exact engine: the longest path through an order's actions, of one plan or of many that share the order."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sim.arrays import ActionFloats, ActionPlanFloats, Array, Ints, PlanFloats
from sim.engines.program import Program
from sim.engines.timeline import Timeline, finish_step
from sim.schedules import Order
from sim.schedules.actions import W
from sim.schedules.fold import ROUNDING


def run(program: Program) -> Timeline:
    """Start every action as soon as its rank is free and what it needs has arrived.

    Exact for deterministic durations: the step time is the longest path through the actions' dependencies.
    """
    program, start, end, period = play_folded(program, longest_path)
    return finish_step(program, "dag", start, end, period_s=period)


def longest_path(program: Program) -> tuple[Array, Array]:
    """Earliest start and end of every action. [s]"""
    start = earliest_starts(program.order, program.occupy_s, program.release_s)
    return start, start + program.occupy_s


Play = Callable[[Program], tuple[ActionFloats, ActionFloats]]


def play_folded(program: Program, play: Play) -> tuple[Program, Array, Array, float | None]:
    """Start and end of every action of a step, repetitions that were left out counted in.

    Parameters
    ----------
    play : Program -> (start, end)
        Times all actions in the program's arrays. [s]

    Returns
    -------
    program : Program
        With as many micro-batches in its arrays as it took to reach the steady state.
    start, end : arrays over its actions
        [s]
    period_s : float or None
        Of an order without end, the time from batch to batch in the steady state. [s]
    """
    while True:
        start, end = play(program)
        order, fold = program.order, program.order.fold
        if fold is None:
            return program, start, end, None
        (blocks,), (seconds,) = steady_state(order, start[:, np.newaxis])
        if not blocks:
            program = program.on(fold.rebuild(2 * fold.kept))
            continue
        if fold.endless:
            return program, start, end, float(seconds / blocks)
        if fold.times % blocks:
            program = program.on(fold.rebuild(fold.kept + fold.times % blocks * fold.period))
            continue
        later = fold.times // blocks * seconds * (np.arange(len(order)) >= fold.cuts[order.rank])
        return program, start + later, end + later, None


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


@lru_cache(maxsize=64)
def _blocks_seen(order: Order) -> Ints:
    """Flat indices of the blocks of a folded order but for weight gradients, (blocks back, actions)."""
    fold = order.fold
    assert fold is not None
    blocks = [fold.block(back) for back in range(fold.seen)]
    return np.stack([block[order.kind[block] != W] for block in blocks])


def steady_state(order: Order, start: ActionPlanFloats) -> tuple[Ints, PlanFloats]:
    """(blocks, seconds) after which the starts of a folded order repeat, of every plan; 0 where they do not yet.

    All that comes later depends on the last `depth` blocks alone; where these begin as those `blocks` before them did,
    only later, so will all others. Weight gradients follow from what is before them and are not looked at.
    """
    fold, plans = order.fold, start.shape[1]
    assert fold is not None
    length, seconds = np.zeros(plans, dtype=np.int64), np.zeros(plans)
    if fold.seen <= fold.depth:
        return length, seconds
    starts = start[_blocks_seen(order)]
    tolerance = ROUNDING * np.abs(starts).max(axis=(0, 1))
    for blocks in range(1, fold.seen - fold.depth + 1):
        later = starts[: fold.depth] - starts[blocks : blocks + fold.depth]
        here = (later.max(axis=(0, 1)) - later.min(axis=(0, 1)) <= tolerance) & (length == 0)
        length[here], seconds[here] = blocks, later.mean(axis=(0, 1))[here]
        if length.all():
            break
    return length, seconds
