"""Tasks on streams, timed as a max-plus linear system: for one plan, for columns of plans, and folded where it repeats.

A task begins when its stream is free and everything that it waits for has happened: at the latest of several moments,
each plus a lag. Such a system is linear in the max-plus algebra [1]_, so that its structure is built once from arrays
and played for any seconds, and a part that repeats is jumped over once it has reached its steady state. Nothing here
knows passes, ZeRO, chunks or how a step ends.

.. [1] Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and linearity", theorem 3.112 (cyclicity).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Array, FloatArray, IntArray

NO_STREAM = -1
"""Stream of joins: they take no time and wait for nobody's turn."""
ROUNDING = 1e-11
"""Share of the time since the step began below which differences are rounding."""
MAX, BLEND, MINUS = range(3)
"""How a task's begin follows from what it waits for: the latest; share · first + (1 − share) · second; first − second.
The last two are for phases END and TOGETHER alone, because they are not max-plus linear."""
AFTER, BEFORE = -1, -2
"""Blocks of tasks that stand in no block of a fold: after its cut, or before the first block that repeats."""
FOLDED, WHOLE, END, TOGETHER = range(4)
"""Phases of a step, played one after the other: up to a fold's cut, the rest of the pipeline, the end of each replica,
and what all replicas do together."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks on streams of ranks, and what each waits for. Amounts are indices into an array of seconds.

    what, rank, stream, action : arrays (tasks), in the caller's codes.
    amount : array (tasks). How long each task takes.
    rule : array (tasks). MAX, BLEND or MINUS.
    phase, block : arrays (tasks). The phase, and how many blocks before the last one seen; AFTER or BEFORE.
    sequence : array (tasks). An order in which they can run; the tasks of a stream run in this order.
    waiter, source, lag, from_end : arrays (waits). Task `waiter` begins no earlier than the amount `lag` after the end
        of task `source`, or after its begin. Waits for the task before on the same stream are not listed.
    """

    what: IntArray
    rank: IntArray
    stream: IntArray
    action: IntArray
    amount: IntArray
    rule: IntArray
    phase: IntArray
    block: IntArray
    sequence: IntArray
    waiter: IntArray
    source: IntArray
    lag: IntArray
    from_end: Array

    def __len__(self) -> int:
        return len(self.what)

    def lanes(self) -> Iterator[tuple[int, int, IntArray]]:
        """Yield rank, stream and its tasks in turn, stream by stream."""
        here = self.sequence[self.stream[self.sequence] != NO_STREAM]
        here = here[np.lexsort((self.stream[here], self.rank[here]))]
        bounds = np.flatnonzero(np.diff(self.rank[here]) | np.diff(self.stream[here])) + 1
        for tasks in np.split(here, bounds) if len(here) else ():
            yield int(self.rank[tasks[0]]), int(self.stream[tasks[0]]), tasks


@dataclass
class TaskList:
    """Collects tasks and their waits as arrays."""

    columns: dict[str, list[Array]] = field(default_factory=dict)
    waits: list[tuple[Array, Array, Array, Array]] = field(default_factory=list)
    count: int = 0

    def add(
        self,
        what: Any,
        rank: Any,
        stream: Any,
        amount: Any = 0,
        *,
        place: Any = 0,
        slot: Any = 0,
        action: Any = -1,
        rule: Any = MAX,
        phase: Any = WHOLE,
        block: Any = AFTER,
    ) -> IntArray:
        """Add tasks and return their numbers. Within a phase, `place` and then `slot` are a topological order."""
        rank = np.asarray(rank)
        given = {"what": what, "rank": rank, "stream": stream, "amount": amount, "place": place, "slot": slot,
                 "action": action, "rule": rule, "phase": phase, "block": block}  # fmt: skip
        for name, values in given.items():
            self.columns.setdefault(name, []).append(np.broadcast_to(values, rank.shape))
        self.count += len(rank)
        return np.arange(self.count - len(rank), self.count)

    def wait(self, waiter: Any, source: Any, lag: Any = 0, *, from_end: bool = True) -> None:
        """Let tasks wait for the end or the begin of others plus a lag; a source below 0 is nothing to wait for."""
        waiter, source, lag = np.broadcast_arrays(waiter, source, lag)
        there = source >= 0
        self.waits.append((waiter[there], source[there], lag[there], np.full(int(there.sum()), from_end)))

    def last_on(self, stream: int) -> tuple[IntArray, IntArray]:
        """Return the ranks that have such a stream, and the last task on each."""
        stands = {name: np.concatenate(self.columns[name]) for name in ("stream", "rank", "phase", "place", "slot")}
        here = np.flatnonzero(stands["stream"] == stream)
        here = here[np.lexsort([stands[name][here] for name in ("slot", "place", "phase", "rank")])]
        rank = stands["rank"][here]
        last = np.flatnonzero(np.diff(rank, append=-1))
        return rank[last], here[last]

    def tasks(self) -> Tasks:
        """All tasks with their waits."""
        column = {name: np.concatenate(values) for name, values in self.columns.items()}
        slot, place = column.pop("slot"), column.pop("place")
        waiter, source, lag, from_end = (np.concatenate(each) for each in zip(*self.waits, strict=True))
        sequence = np.lexsort((np.arange(self.count), slot, place, column["phase"]))
        return Tasks(**column, sequence=sequence, waiter=waiter, source=source, lag=lag, from_end=from_end)


class _Levels(NamedTuple):
    """Events renumbered level by level: those of a level wait for none of it.

    ends : array (levels). Where each ends; the first is the begin of the step. phases : the first level of each phase.
    source, pair : arrays (2, events), rule : array (events), as in `Graph`.
    to : array (events). The new number of each.
    """

    ends: list[int]
    phases: list[int]
    source: IntArray
    pair: IntArray
    rule: IntArray
    to: IntArray


@dataclass(frozen=True)
class Graph:
    """Events of tasks in a topological order, each the later of two others, each plus a lag; event 0 begins the step.

    event : array (tasks). The event with which each task begins.
    source, pair : arrays (2, events). The two events that it waits for, and the place of each lag in `pairs`.
    pairs : array (2, lags). The two amounts of which each different lag is the sum.
    rule : array (events). MAX, BLEND or MINUS.
    phases : the first event of each phase, and how many events there are.
    depth : blocks before the cut on which what comes later depends.
    blocks : array (blocks back, events), or None where nothing is folded. The events of each block, alike in turn.
    """

    tasks: Tasks
    event: IntArray
    source: IntArray
    pair: IntArray
    pairs: IntArray
    rule: IntArray
    phases: tuple[int, int, int, int, int]
    depth: int
    blocks: IntArray | None

    def lags(self, amounts: FloatArray) -> FloatArray:
        """Seconds of all different lags, (lags) or (lags, plans).  [s]"""
        return np.asarray(amounts[self.pairs[0]] + amounts[self.pairs[1]])

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int]]:
        """Both sources and the rule of every event."""
        return self.source[0].tolist(), self.source[1].tolist(), self.rule.tolist()

    @cached_property
    def levels(self) -> _Levels:
        """Events level by level, within their phases."""
        depth = [0]
        for one, other in zip(*(each[1:] for each in self.lists[:2]), strict=True):
            depth.append(1 + max(depth[one], depth[other]))
        deep = np.array(depth)
        for begin in self.phases[1:4]:
            if 0 < begin < len(deep):
                deep[begin:] += max(0, deep[:begin].max() - deep[begin:].min() + 1)
        by_depth = np.argsort(deep, kind="stable")
        to = np.empty_like(by_depth)
        to[by_depth] = np.arange(len(to))
        ends = np.append(np.flatnonzero(np.diff(deep[by_depth])) + 1, len(deep))
        phases = np.searchsorted(ends, self.phases, side="right").tolist()
        phases[0], phases[-1] = 1, len(ends)
        return _Levels(
            ends.tolist(), phases, to[self.source[:, by_depth]], self.pair[:, by_depth], self.rule[by_depth], to
        )


def build_graph(tasks: Tasks, seen: int = 0, least_depth: int = 1) -> Graph:
    """Make events of tasks: add the waits of each stream's own order, and split many waits into pairs.

    Parameters
    ----------
    seen : int
        Blocks of a fold that repeat before its cut; 0: nothing is folded.
    least_depth : int
        Blocks on which what comes later depends at least.
    """
    count, sequence = len(tasks), tasks.sequence
    by_lane = np.concatenate([np.zeros(0, dtype=np.int64), *(lane for _, _, lane in tasks.lanes())])
    follows = (np.diff(tasks.rank[by_lane]) == 0) & (np.diff(tasks.stream[by_lane]) == 0)
    behind, before = by_lane[1:][follows], by_lane[:-1][follows]
    waiter, source = np.concatenate([behind, tasks.waiter]), np.concatenate([before, tasks.source])
    lag = np.concatenate([np.zeros(len(behind), dtype=np.int64), tasks.lag])
    ended = np.concatenate([np.ones(len(behind), dtype=bool), tasks.from_end])
    position = np.empty(count, dtype=np.int64)
    position[sequence] = np.arange(count)
    by_waiter = np.argsort(position[waiter], kind="stable")
    waiter, source, lag, ended = waiter[by_waiter], source[by_waiter], lag[by_waiter], ended[by_waiter]
    took = np.where(ended, tasks.amount[source], 0)

    inputs = np.bincount(position[waiter], minlength=count)
    events = np.maximum(inputs - 1, 1)
    last = np.cumsum(events)
    event, size = last[position], int(last[-1]) + 1
    number = np.arange(len(waiter)) - (np.cumsum(inputs) - inputs)[position[waiter]]
    where = event[waiter] - events[position[waiter]] + np.maximum(number, 1)
    side = (number > 0).astype(np.int64)
    sources, one, other = np.zeros((3, 2, size), dtype=np.int64)
    goes_on = np.ones(size, dtype=bool)
    goes_on[0], goes_on[last - events + 1] = False, False
    goes_on = np.flatnonzero(goes_on)
    sources[0, goes_on] = goes_on - 1  # the second and later events of a task go on from the one before
    sources[side, where], one[side, where], other[side, where] = event[source], lag, took
    width = int(max(one.max(), other.max())) + 1
    pairs, pair = np.unique(one * width + other, return_inverse=True)
    rule = np.zeros(size, dtype=np.int8)
    rule[event] = tasks.rule

    first = event - events[position] + 1
    begins = np.append(first[sequence], size)
    phases = begins[np.searchsorted(tasks.phase[sequence], range(5))].tolist()
    depth, blocks = least_depth, None
    if seen:
        here = (tasks.block[waiter] >= AFTER) & (tasks.block[source] >= 0) & (tasks.rule[waiter] != MINUS)
        mine, back = tasks.block[waiter][here], tasks.block[source][here]
        depth = max(least_depth, int(np.where(mine >= 0, back - mine, back + 1).max(initial=1)))
        blocks = _events_by_block(tasks, position, event, seen)
    return Graph(
        tasks,
        event,
        sources.astype(np.int32),
        pair.reshape(2, -1).astype(np.int32),
        np.stack(np.divmod(pairs, width)),
        rule,
        tuple(phases),
        depth,
        blocks,
    )


def _events_by_block(tasks: Tasks, position: IntArray, event: IntArray, seen: int) -> IntArray:
    """Events of each block, (blocks back, events), in the same turn in all; up to the first that has others."""
    here = np.flatnonzero(tasks.block >= 0)
    here = here[np.lexsort((position[here], tasks.stream[here], tasks.rank[here], tasks.block[here]))]
    counts = np.bincount(tasks.block[here], minlength=seen)
    alike = int((counts == counts[0]).argmin()) or seen
    return np.asarray(event[here[: alike * counts[0]]].reshape(alike, -1))


class Played(NamedTuple):
    """When the events of a graph happen.

    times : array (events[, plans]). Events of a fold's last blocks stand where they are after all repetitions. [s]
    seen : array (blocks back, events[, plans]) or None. When these happened as they were played. [s]
    blocks, seconds : of the steady state, how many blocks a period has and how long it takes; 0: none was reached.
    """

    times: FloatArray
    seen: FloatArray | None
    blocks: Any
    seconds: Any

    def as_played(self, graph: Graph) -> FloatArray:
        """When events happened as they were played, before repetitions were put in.  [s]"""
        if self.seen is None or graph.blocks is None:
            return self.times
        times = self.times.copy()
        times[graph.blocks[: graph.depth]] = self.seen
        return times


def play(graph: Graph, amounts: FloatArray, share: float = 0.0, left_out: int = 0) -> Played | None:
    """Time the events of one plan.

    Parameters
    ----------
    amounts : array
        Seconds. [s]
    share : float
        Weight of what a BLEND waits for first.
    left_out : int
        Blocks that a fold leaves out.

    Returns
    -------
    Played or None
        None where a folded graph has not reached its steady state.
    """
    lags, times, cut = graph.lags(amounts), [0.0], graph.phases[WHOLE]
    if graph.blocks is None:
        _play_events(graph, lags, share, times, len(graph.rule))
        return Played(np.array(times), None, 0, 0.0)
    if len(graph.blocks) <= graph.depth:
        return None
    _play_events(graph, lags, share, times, cut)
    early = np.array(times)
    starts = early[graph.blocks][:, :, np.newaxis]
    blocks, seconds = steady_state(starts, graph.depth)
    if not blocks[0]:
        return None
    moved = graph.blocks[: graph.depth]
    later = jump(graph, starts, left_out, blocks, seconds)[..., 0]
    for event, time in zip(moved.ravel().tolist(), later.ravel().tolist(), strict=True):
        times[event] = time
    _play_events(graph, lags, share, times, len(graph.rule))
    early[moved] = later
    return Played(np.concatenate([early, times[cut:]]), starts[: graph.depth, :, 0], int(blocks[0]), float(seconds[0]))


def _play_events(graph: Graph, lags: FloatArray, share: float, times: list[float], until: int) -> None:
    """Append the times of the next events of one plan, up to event `until`."""
    end = graph.phases[END]
    for stop in (min(until, end), until):
        here = slice(len(times), stop)
        ones, others, rules = (each[here] for each in graph.lists)
        first, second = lags[graph.pair[:, here]].tolist()
        happens = times.append
        if stop <= end:
            for one, other, x, y in zip(ones, others, first, second, strict=True):
                x += times[one]
                y += times[other]
                happens(x if x > y else y)
            continue
        for one, other, x, y, rule in zip(ones, others, first, second, rules, strict=True):
            x, y = x + times[one], y + times[other]
            happens(max(x, y) if rule == MAX else share * x + (1.0 - share) * y if rule == BLEND else x - y)


AT_ONCE = 256
"""Plans that are played at once: as many as stay in the processor's cache."""


def play_plans(
    graph: Graph,
    amounts: FloatArray,
    share: Any = 0.0,
    left_out: Any = 0,
    least: Any = None,
    *,
    width: int = 1,
    pipelines: tuple[IntArray, IntArray] | None = None,
) -> Played:
    """Time the events of many plans at once.

    Parameters
    ----------
    amounts : array (amounts, plans)
        Seconds. [s]
    share : array (plans)
        Weight of what a BLEND waits for first.
    left_out : array (plans)
        Blocks that each plan leaves out of a fold.
    least : array (plans), optional
        What a block takes at least, for plans that have not reached their steady state: then the times after the cut
        are lower bounds. [s]
    width : int
        Replicas that go through phase TOGETHER as one: so many plans side by side, with the amounts of the first.
    pipelines : (array (pipelines), array (plans)), optional
        One plan of each different pipeline, and the pipeline of each plan: what comes before phase END is played once
        for plans that are alike in it. `left_out` and `least` are then arrays over pipelines.

    Returns
    -------
    Played
        Times are NaN after the cut where the steady state has not come and `least` is not given. With replicas they are
        (events, plans / width), and of use in phase TOGETHER; blocks and seconds are those of pipelines.
    """
    levels, all_lags = graph.levels, graph.lags(amounts)
    lags = all_lags if pipelines is None else all_lags[:, pipelines[0]]
    plans = lags.shape[1]
    times = np.zeros((len(graph.rule), plans))
    seen, blocks, seconds = None, np.zeros(plans, dtype=np.int64), np.zeros(plans)
    _play_levels(graph, lags, share, times, FOLDED)
    if graph.blocks is not None:
        to = levels.to[graph.blocks]
        starts = times[to]
        blocks, seconds = steady_state(starts, graph.depth)
        rest = np.where(blocks > 0, 0.0, left_out * (np.nan if least is None else least))
        seen = starts[: graph.depth]
        times[to[: graph.depth]] = jump(graph, starts, np.where(blocks > 0, left_out, 0), blocks, seconds) + rest
    _play_levels(graph, lags, share, times, WHOLE)
    if pipelines is not None:
        times = times[:, pipelines[1]]
    lags = all_lags
    _play_levels(graph, lags, share, times, END)
    if width > 1:
        met, lags = levels.phases[TOGETHER], lags[:, ::width]
        before = levels.ends[met - 1]
        times[:before, : plans // width] = times[:before].reshape(before, -1, width).max(axis=2)
        times = times[:, : plans // width]
    _play_levels(graph, lags, share, times, TOGETHER)
    return Played(times[levels.to], seen, blocks, seconds)


def _play_levels(graph: Graph, lags: FloatArray, share: Any, times: FloatArray, phase: int) -> None:
    """Fill in the times of the events of a phase, (events by level, plans)."""
    levels = graph.levels
    first, stop = levels.phases[phase : phase + 2]
    (ones, others), (one_lag, other_lag) = levels.source, levels.pair
    begin = levels.ends[first - 1]
    for end in levels.ends[first:stop]:
        here = slice(begin, end)
        x, y = times.take(ones[here], axis=0), times.take(others[here], axis=0)
        x += lags.take(one_lag[here], axis=0)
        y += lags.take(other_lag[here], axis=0)
        np.maximum(x, y, out=times[here])
        if phase >= END and levels.rule[here].any():
            rule = levels.rule[here, np.newaxis]
            blend = share * x + (1.0 - share) * y
            times[here] = np.where(rule == BLEND, blend, np.where(rule == MINUS, x - y, times[here]))
        begin = end


def steady_state(starts: FloatArray, depth: int) -> tuple[IntArray, FloatArray]:
    """Return (blocks, seconds) after which the events of blocks repeat, of each plan; 0 where they do not yet.

    All that comes later depends on the last `depth` blocks alone. If these happen as those `blocks` before them did,
    only later, so will all others.

    Parameters
    ----------
    starts : array (blocks back, events, plans)
        When events happen. [s]
    depth : int
        Blocks on which the next ones depend.
    """
    seen, plans = len(starts), starts.shape[2]
    length, seconds = np.zeros(plans, dtype=np.int64), np.zeros(plans)
    tolerance = ROUNDING * np.abs(starts).max(axis=(0, 1))
    for blocks in range(1, seen - depth + 1):
        shift = starts[:depth] - starts[blocks : blocks + depth]
        here = (shift.max(axis=(0, 1)) - shift.min(axis=(0, 1)) <= tolerance) & (length == 0)
        length[here], seconds[here] = blocks, shift.mean(axis=(0, 1))[here]
        if length.all():
            break
    return length, seconds


def jump(graph: Graph, starts: FloatArray, left_out: Any, blocks: IntArray, seconds: FloatArray) -> FloatArray:
    """When the last `depth` blocks' events happen after so many more blocks; (blocks back, events, plans).  [s]"""
    back = np.arange(graph.depth)[:, np.newaxis]
    period = np.maximum(blocks, 1)
    like = (back - left_out) % period  # the block seen that stands at the same place in a period
    like = np.where(blocks > 0, like, back)
    periods = (left_out - back + like) // period
    return np.asarray(np.take_along_axis(starts, like[:, np.newaxis], axis=0) + (periods * seconds)[:, np.newaxis])
