"""The exact engine: the longest path through an order's actions, of one plan or of many that share the order."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from sim.arrays import ActionPlanFloats, Array, Ints, PlanFloats
from sim.engines.program import Program
from sim.engines.timeline import Played, Timeline, finish_step
from sim.engines.visits import Streams
from sim.schedules import Order
from sim.schedules.actions import W
from sim.schedules.fold import ROUNDING
from sim.schedules.passes import visits_of


def run(program: Program) -> Timeline:
    """Start every action as soon as its rank is free and what it needs has arrived.

    Exact for deterministic durations: the step time is the longest path through the actions' dependencies.
    """
    program, played, period = play_folded(program, longest_path)
    return finish_step(program, "dag", played, period_s=period)


def longest_path(program: Program) -> Played:
    """Earliest start and end of every action."""
    streams = None if program.stream is None else Streams(program.order, program.stream)
    start = earliest_starts(program.order, program.occupy_s, program.release_s, streams)
    return Played.of(start, start + program.occupy_s, streams)


Play = Callable[[Program], Played]


def play_folded(program: Program, play: Play, most_actions: int | None = None) -> tuple[Program, Played, float | None]:
    """When everything happens in a step, repetitions that were left out counted in.

    Parameters
    ----------
    play : Program -> Played
        Times all actions in the program's arrays.
    most_actions : int, optional
        For plays that need not reach a steady state: of an order without end that has not in so many, what a batch
        takes longer than in the longest path, on average over the later half of them.

    Returns
    -------
    program : Program
        With as many micro-batches in its arrays as it took to reach the steady state.
    played : Played
    period_s : float or None
        Of an order without end, the time from batch to batch in the steady state. [s]
    """
    while True:
        played = play(program)
        order, fold = program.order, program.order.fold
        if fold is None:
            return program, played, None
        until = None if played.until is None else played.until[:, np.newaxis]
        (blocks,), (seconds,) = steady_state(order, played.start[:, np.newaxis], until, program.further)
        if not blocks and fold.endless and most_actions is not None and len(order) > most_actions:
            late, half = played.start - longest_path(program).start, fold.seen // 2
            more = float((late[fold.block(0)] - late[fold.block(half)]).mean()) / half
            _, _, alone = play_folded(program, longest_path)
            assert alone is not None
            return program, played, alone + more
        if not blocks:
            program = program.on(fold.rebuild(2 * fold.kept))
            continue
        if fold.endless:
            return program, played, float(seconds / blocks)
        if fold.times % blocks:
            program = program.on(fold.rebuild(fold.kept + fold.times % blocks * fold.period))
            continue
        later = fold.times // blocks * seconds * (np.arange(len(order)) >= fold.cuts[order.rank])
        return program, played.later(later, fold, int(blocks)), None


def earliest_starts(order: Order, occupy: Array, release: Array, streams: Streams | None = None) -> Array:
    """Earliest start of every action.  [s]

    Parameters
    ----------
    order : Order
    occupy, release : arrays over actions, or over actions and columns
        As of Program; each column is a step of its own, and all are played at once. [s]
    streams : Streams, optional
        What ranks move at visits.
    """
    needs = order.abroad(order.needs)
    pairs = None if order.pair_needs is None else order.abroad(order.pair_needs)
    if order.levels is None and occupy.ndim == 1:
        return _single(order, occupy, release, needs, pairs, streams)
    return _levels(order, occupy, release, needs, pairs, streams)


def _single(
    order: Order, occupies: Array, releases: Array, needs: Array, pairs: Array | None, streams: Streams | None
) -> Array:
    """One action after the other."""
    occupy, release = occupies.tolist(), releases.tolist()
    previous, arrival = order.previous.tolist(), needs.tolist()
    pair = None if pairs is None else pairs.tolist()
    start, freed = [0.0] * len(occupy), [0.0] * len(occupy)
    rank, opens, closes = _at_visits(order, streams)
    for task in order.topological.tolist():
        before, need = previous[task], arrival[task]
        free = idle = freed[before] if before >= 0 else 0.0
        if need >= 0:
            here = start[need] + release[need]
            if here > free:
                free = here
        if pair is not None and pair[task] >= 0:
            free = max(free, start[pair[task]] + release[pair[task]])
        if streams is not None and opens[task]:
            free = float(streams.open(rank[task], task, idle, free))
        start[task], freed[task] = free, free + occupy[task]
        if streams is not None:
            if closes[task]:
                freed[task] = float(streams.close(rank[task], task, free, freed[task]))
            streams.note(rank[task], task)
    return np.array(start)


def _at_visits(order: Order, streams: Streams | None) -> tuple[list[int], list[bool], list[bool]]:
    """Ranks of the actions, and which of them open and close visits."""
    if streams is None:
        return [], [], []
    visits = visits_of(order)
    return order.rank.tolist(), visits.opens.tolist(), visits.closes.tolist()


def _levels(
    order: Order, occupy: Array, release: Array, needs: Array, pairs: Array | None, streams: Streams | None
) -> Array:
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
        if streams is not None:
            _open(streams, order, topological[here], free[previous[here]], start[here])
        np.add(start[here], occupy[here], out=free[here])
        np.add(start[here], release[here], out=arrived[here])
        if streams is not None:
            _close(streams, order, topological[here], start[here], free[here])
        begin = end
    starts = np.empty(start.shape)
    starts[topological] = start
    return starts


def _open(streams: Streams, order: Order, actions: Array, idle: Array, start: Array) -> None:
    """Let those of a level that open a visit wait for their streams."""
    opens = np.flatnonzero(visits_of(order).opens[actions])
    if len(opens):
        start[opens] = streams.open(order.rank[actions[opens]], actions[opens], idle[opens], start[opens])


def _close(streams: Streams, order: Order, actions: Array, start: Array, free: Array) -> None:
    """Let the ranks of those that close one wait for what does not go on beside them."""
    closes = np.flatnonzero(visits_of(order).closes[actions])
    if len(closes):
        free[closes] = streams.close(order.rank[actions[closes]], actions[closes], start[closes], free[closes])
    streams.note(order.rank[actions], actions)


@lru_cache(maxsize=64)
def _blocks_seen(order: Order) -> Ints:
    """Flat indices of the blocks of a folded order but for weight gradients, (blocks back, actions)."""
    fold = order.fold
    assert fold is not None
    blocks = [fold.block(back) for back in range(fold.seen)]
    return np.stack([block[order.kind[block] != W] for block in blocks])


def steady_state(
    order: Order, start: ActionPlanFloats, until: ActionPlanFloats | None = None, further: int = 0
) -> tuple[Ints, PlanFloats]:
    """(blocks, seconds) after which the starts of a folded order repeat, of every plan; 0 where they do not yet.

    All that comes later depends on the last `depth` blocks alone, and on what the ranks' streams have still to move
    (`until`); where these begin as those `blocks` before them did, only later, so will all others. Weight gradients
    follow from what is before them and are not looked at. Where streams are asked for weights `further` than one visit
    ahead, so many more blocks may matter.
    """
    fold, plans = order.fold, start.shape[1]
    assert fold is not None
    length, seconds = np.zeros(plans, dtype=np.int64), np.zeros(plans)
    depth = fold.depth + further
    if fold.seen <= depth:
        return length, seconds
    starts = start[_blocks_seen(order)]
    if until is not None:
        starts = np.concatenate([starts, until[_blocks_seen(order)]], axis=1)
    tolerance = ROUNDING * np.abs(starts).max(axis=(0, 1))
    for blocks in range(1, fold.seen - depth + 1):
        later = starts[:depth] - starts[blocks : blocks + depth]
        here = (later.max(axis=(0, 1)) - later.min(axis=(0, 1)) <= tolerance) & (length == 0)
        length[here], seconds[here] = blocks, later.mean(axis=(0, 1))[here]
        if length.all():
            break
    return length, seconds
