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
    level : array (tasks). Tasks wait for those of lower levels alone; the tasks of a stream run in the order of levels.
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
    level: IntArray
    waiter: IntArray
    source: IntArray
    lag: IntArray
    from_end: Array

    def __len__(self) -> int:
        return len(self.what)

    def lanes(self) -> Iterator[tuple[int, int, IntArray]]:
        """Yield rank, stream and its tasks in turn, stream by stream."""
        here, lane = self.by_lane(self.sequence)
        for tasks in np.split(here, np.flatnonzero(np.diff(lane)) + 1) if len(here) else ():
            yield int(self.rank[tasks[0]]), int(self.stream[tasks[0]]), tasks

    def by_lane(self, sequence: IntArray) -> tuple[IntArray, IntArray]:
        """Tasks stream by stream, each in turn, and the number of each one's stream."""
        here = sequence[self.stream[sequence] != NO_STREAM]
        lane = self.rank[here] * (int(self.stream.max()) + 1) + self.stream[here]
        by_lane = np.argsort(lane.astype(np.min_scalar_type(int(lane.max(initial=0)))), kind="stable")
        return here[by_lane], lane[by_lane]

    @property
    def sequence(self) -> IntArray:
        """Tasks in an order in which they can run."""
        return np.argsort(self.level, kind="stable")


@dataclass
class TaskList:
    """Collects tasks and their waits as arrays."""

    added: list[tuple[slice, dict[str, Any]]] = field(default_factory=list)
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
        """Add tasks and return their numbers.

        Tasks wait for those alone that stand in an earlier phase, or in the same at an earlier place, or there in an
        earlier slot.
        """
        begin, self.count = self.count, self.count + len(rank)
        given = {"what": what, "rank": rank, "stream": stream, "amount": amount, "place": place, "slot": slot,
                 "action": action, "rule": rule, "phase": phase, "block": block}  # fmt: skip
        self.added.append((slice(begin, self.count), given))
        return np.arange(begin, self.count)

    def wait(self, waiter: Any, source: Any, lag: Any = 0, *, from_end: bool = True) -> None:
        """Let tasks wait for the end or the begin of others plus a lag; a source below 0 is nothing to wait for."""
        waiter, source, lag = np.broadcast_arrays(*(np.asarray(each, dtype=np.int32) for each in (waiter, source, lag)))
        there = source >= 0
        self.waits.append((waiter[there], source[there], lag[there], np.full(int(there.sum()), from_end)))

    def last_on(self, stream: int) -> tuple[IntArray, IntArray]:
        """Return the ranks that have such a stream, and the last task on each."""
        stands = {name: self._column(name) for name in ("stream", "rank", "phase", "place", "slot")}
        here = np.flatnonzero(stands["stream"] == stream)
        here = here[np.lexsort([stands[name][here] for name in ("slot", "place", "phase", "rank")])]
        rank = stands["rank"][here]
        last = np.flatnonzero(np.diff(rank, append=-1))
        return rank[last], here[last]

    def tasks(self) -> Tasks:
        """All tasks with their waits."""
        column = {name: self._column(name) for name in self.added[0][1]}
        slot, place = column.pop("slot"), column.pop("place")
        places, slots = int(place.max()) + 1, int(slot.max()) + 1
        stands = (column["phase"].astype(np.int64) * places + place) * slots + slot
        _, level = different(stands)
        waiter, source, lag, from_end = (np.concatenate(each) for each in zip(*self.waits, strict=True))
        return Tasks(**column, level=level, waiter=waiter, source=source, lag=lag, from_end=from_end)

    def _column(self, name: str) -> IntArray:
        """One value of every task."""
        column = np.empty(self.count, dtype=np.int32)  # of a long order these are most of what is kept
        for where, given in self.added:
            column[where] = given[name]
        return column


@dataclass(frozen=True)
class Graph:
    """Events of tasks, each the later of two others, each plus a lag; level by level, event 0 begins the step.

    event : array (tasks). The event with which each task begins.
    source : array (2, events). The two events that each waits for.
    lag : array (2, 2, events). The two amounts of which the lag after each of them is the sum.
    rule : array (events). MAX, BLEND or MINUS.
    ends : array (levels). Where each level of events ends; the events of a level wait for those of lower ones alone.
    phases : the first level of each phase, and how many levels there are.
    depth : blocks before the cut on which what comes later depends.
    blocks : array (blocks back, events), or None where nothing is folded. The events of each block, alike in turn.
    """

    tasks: Tasks
    event: IntArray
    source: IntArray
    lag: IntArray
    rule: IntArray
    ends: IntArray
    phases: tuple[int, int, int, int, int]
    depth: int
    blocks: IntArray | None

    def first(self, phase: int) -> int:
        """The first event of a phase, or how many there are."""
        return int(self.ends[self.phases[phase] - 1])

    @property
    def is_wide(self) -> bool:
        """Whether so many events could happen at once that arrays of them beat a loop, for one plan too."""
        return len(self.rule) > WIDE * len(self.ends)

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int]]:
        """Both sources and the rule of every event."""
        return self.source[0].tolist(), self.source[1].tolist(), self.rule.tolist()

    @cached_property
    def by_level(self) -> tuple[IntArray, IntArray]:
        """Sources and, (2, …), lags level by level: of each level first all first ones, then all second ones."""
        widths = np.diff(self.ends, prepend=0)
        begin, width = np.repeat(self.ends - widths, widths), np.repeat(widths, widths)
        place, size = np.arange(len(begin)) + begin, 2 * len(begin)
        sources, lags = np.empty(size, dtype=np.intp), np.empty((2, size), dtype=np.int32)
        for side in range(2):
            sources[place + side * width] = self.source[side]
            lags[:, place + side * width] = self.lag[:, side]
        return sources, lags

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Different pairs of amounts whose sum is a lag, (2, pairs); and which of them each lag of `by_level` is."""
        one, other = self.by_level[1]
        first, second = different(one), different(other)
        width = len(second[0])
        found, which = different(first[1] * width + second[1])
        return np.stack([first[0][found // width], second[0][found % width]]), which


def build_graph(tasks: Tasks, seen: int = 0, least_depth: int = 1) -> Graph:
    """Make events of tasks: add the waits of each stream's own order, and split many waits into pairs.

    seen : blocks of a fold that repeat before its cut; 0: nothing is folded.
    least_depth : blocks on which what comes later depends at least.
    """
    sequence = tasks.sequence
    by_lane, lane = tasks.by_lane(sequence)
    follows = np.flatnonzero(np.diff(lane) == 0)
    behind, before = by_lane[follows + 1], by_lane[follows]
    waiter, source, count = tasks.waiter, tasks.source, len(tasks)
    follower = np.zeros(count, dtype=np.int64)
    follower[behind] = 1
    own = np.bincount(waiter, minlength=count)
    by_waiter = np.argsort(waiter, kind="stable")
    number = np.empty(len(waiter), dtype=np.int64)  # of a task's waits, which each is; the first is for its stream
    number[by_waiter] = np.arange(len(waiter)) - (np.cumsum(own) - own)[waiter[by_waiter]]
    number += follower[waiter]
    chains = _Chains(tasks.level, sequence, own + follower)

    size, event = int(chains.ends[-1]), chains.root
    sources, lag = np.zeros((2, size), dtype=np.int32), np.zeros((2, 2, size), dtype=np.int32)
    side, where = chains.leaves(behind, np.zeros(len(behind), dtype=np.int64))
    sources[side, where], lag[1, side, where] = event[before], tasks.amount[before]
    side, where = chains.leaves(waiter, number)
    sources[side, where], lag[0, side, where] = event[source], tasks.lag
    lag[1, side, where] = np.where(tasks.from_end, tasks.amount[source], 0)
    where, earlier = chains.links
    sources[0, where] = earlier
    rule = np.zeros(size, dtype=np.int8)
    rule[event] = tasks.rule

    begins = np.append(chains.first[sequence], size)[np.searchsorted(tasks.phase[sequence], range(4))]
    phases = [*np.searchsorted(chains.ends, begins, side="right").tolist(), len(chains.ends)]
    depth, blocks = least_depth, None
    if seen:
        waiter, source = np.concatenate([behind, waiter]), np.concatenate([before, source])
        mine, back = tasks.block[waiter], tasks.block[source]
        here = (mine >= AFTER) & (back >= 0) & (tasks.rule[waiter] != MINUS)
        reaches = np.where(mine >= 0, back - mine, back + 1)[here]
        depth, blocks = max(least_depth, int(reaches.max(initial=1))), _events_by_block(tasks, event, by_lane, seen)
    return Graph(tasks, event, sources, lag, rule, chains.ends, tuple(phases), depth, blocks)


class _Chains:
    """The events of tasks: the latest of many moments is a chain of pairs, level by level; event 0 begins the step.

    A task with n waits has n - 1 events, one at least: the first is the later of two waits, each other one that of the
    event before it and of one wait more. With the last the task begins.

    first, root : arrays (tasks). The first and the last event of each task.
    links : the events that wait for another event of the same task.
    ends : array. Where each level of events ends, the begin of the step the first.
    """

    def __init__(self, level_of: IntArray, sequence: IntArray, waits: IntArray) -> None:
        events = np.maximum(waits - 1, 1)
        task = np.repeat(sequence, events[sequence])
        begin = np.cumsum(events[sequence]) - events[sequence]
        turn = np.arange(len(task)) - np.repeat(begin, events[sequence])
        level = level_of[task] * (int(turn.max()) + 1) + turn
        in_turn = np.argsort(level, kind="stable")
        number = np.empty(len(task), dtype=np.int64)
        number[in_turn] = 1 + np.arange(len(task))
        self._number, self._begin = number, np.empty(len(sequence), dtype=np.int64)
        self._begin[sequence] = begin
        self.first, self.root = number[self._begin], number[self._begin + events - 1]
        later = np.flatnonzero(turn > 0)
        self.links = number[later], number[later - 1]
        self.ends = np.append(1, 2 + np.flatnonzero(np.diff(level[in_turn], append=-1)))

    def leaves(self, task: IntArray, number: IntArray) -> tuple[IntArray, IntArray]:
        """Sides and events that wait for the first, second and so on of what a task waits for."""
        return np.minimum(number, 1), self._number[self._begin[task] + np.maximum(number - 1, 0)]


def different(numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the different numbers, none below 0, in turn, and which of them each is."""
    bound = int(numbers.max()) + 1
    if bound > 8 * len(numbers):
        found, which = np.unique(numbers, return_inverse=True)
        return found, which
    there = np.zeros(bound, dtype=bool)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def _events_by_block(tasks: Tasks, event: IntArray, by_lane: IntArray, seen: int) -> IntArray:
    """Events of each block, (blocks back, events), in the same turn in all; up to the first that has others."""
    here = by_lane[tasks.block[by_lane] >= 0]
    back = tasks.block[here]
    here = here[np.argsort(back.astype(np.min_scalar_type(seen)), kind="stable")]
    counts = np.bincount(back, minlength=seen)
    alike = int((counts == counts[0]).argmin()) or seen
    return np.asarray(event[here[: alike * counts[0]]].reshape(alike, -1))


class Played(NamedTuple):
    """When the events of a graph happen.

    times : array (events). Events of a fold's last blocks stand where they are after all repetitions. [s]
    seen : array (blocks back, events) or None. When these happened as they were played. [s]
    blocks, seconds : of the steady state, how many blocks a period has and how long it takes; 0: none was reached.
    """

    times: FloatArray
    seen: FloatArray | None
    blocks: int
    seconds: float

    def as_played(self, graph: Graph) -> FloatArray:
        """When events happened as they were played, before repetitions were put in.  [s]"""
        if self.seen is None or graph.blocks is None:
            return self.times
        times = self.times.copy()
        times[graph.blocks[: graph.depth]] = self.seen
        return times


def play(graph: Graph, amounts: FloatArray, share: float = 0.0, left_out: int = 0) -> Played | None:
    """Time the events of one plan.

    amounts : seconds. [s]
    share : weight of what a BLEND waits for first.
    left_out : blocks that a fold leaves out.

    Returns None where a folded graph has not reached its steady state.
    """
    if graph.blocks is not None and len(graph.blocks) <= graph.depth:
        return None
    times, seen, blocks, seconds = np.zeros(len(graph.rule)), None, 0, 0.0
    if graph.blocks is not None:
        _play_phases(graph, amounts, share, times, FOLDED, WHOLE)
        starts = times[graph.blocks]
        blocks, seconds = steady_state(starts, graph.depth)
        if not blocks:
            return None
        seen = starts[: graph.depth]
        back = np.arange(len(seen))
        like = (back - left_out) % blocks  # the block seen that stands at the same place in a period
        periods = (left_out - back + like) // blocks
        times[graph.blocks[: graph.depth]] = starts[like] + (periods * seconds)[:, np.newaxis]
    _play_phases(graph, amounts, share, times, FOLDED if graph.blocks is None else WHOLE, END)
    _play_phases(graph, amounts, share, times, END, TOGETHER + 1)
    return Played(times, seen, blocks, seconds)


def _play_phases(graph: Graph, amounts: FloatArray, share: float, times: FloatArray, first: int, stop: int) -> None:
    """Fill in the times of the events of some phases of one plan."""
    if graph.is_wide:
        one, other = graph.by_level[1]
        _play_levels(graph, amounts[one] + amounts[other], None, share, times, first, stop)
        return
    start, end, special = graph.first(first), graph.first(stop), graph.first(END)
    happened = times[:start].tolist()
    for begin, until in ((start, min(end, special)), (max(start, special), end)):
        ones, others, rules = (each[begin:until] for each in graph.lists)
        one_lag, other_lag = (amounts[graph.lag[0, :, begin:until]] + amounts[graph.lag[1, :, begin:until]]).tolist()
        happens = happened.append
        if until <= special:
            for one, other, x, y in zip(ones, others, one_lag, other_lag, strict=True):
                x += happened[one]
                y += happened[other]
                happens(x if x > y else y)
            continue
        for one, other, x, y, rule in zip(ones, others, one_lag, other_lag, rules, strict=True):
            x, y = x + happened[one], y + happened[other]
            happens(max(x, y) if rule == MAX else share * x + (1.0 - share) * y if rule == BLEND else x - y)
    times[:end] = happened


WIDE = 12
"""Events of an average level from which arrays of them beat a loop."""
AT_ONCE = 256
"""Plans that are played at once: as many as stay in the processor's cache."""


def play_plans(graph: Graph, amounts: FloatArray, share: Any = 0.0, width: int = 1) -> FloatArray:
    """Time the events of many plans at once, without a fold; (events, plans).  [s]

    amounts : as those of `play`, with a last axis over plans. [s]
    width : replicas that go through phase TOGETHER as one: so many plans side by side, with the amounts of the first.
        Times are then (events, plans / width), and of use in that phase.
    """
    (one, other), which = graph.pairs
    lags = amounts[one] + amounts[other]
    plans = lags.shape[1]
    times = np.zeros((len(graph.rule), plans))
    _play_levels(graph, lags, which, share, times, FOLDED, TOGETHER)
    if width > 1:
        met, lags = graph.first(TOGETHER), lags[:, ::width]
        times[:met, : plans // width] = times[:met].reshape(met, -1, width).max(axis=2)
        times = times[:, : plans // width]
    _play_levels(graph, lags, which, share, times, TOGETHER, TOGETHER + 1)
    return times


def _play_levels(
    graph: Graph, lags: FloatArray, which: IntArray | None, share: Any, times: FloatArray, first: int, stop: int
) -> None:
    """Fill in the times of the events of some phases level by level, (events) or (events, plans).

    which : the place of each lag of `Graph.by_level` in `lags`; None: they are as there.
    """
    sources, ends, special = graph.by_level[0], graph.ends.tolist(), graph.first(END)
    begins, until = graph.phases[first], graph.phases[stop]
    for begin, end in zip(ends[begins - 1 : until - 1], ends[begins:until], strict=True):
        here, width = slice(2 * begin, 2 * end), end - begin
        both = times.take(sources[here], axis=0)
        both += lags[here] if which is None else lags.take(which[here], axis=0)
        one, other = both[:width], both[width:]
        np.maximum(one, other, out=times[begin:end])
        if begin >= special and graph.rule[begin:end].any():
            rule = graph.rule[begin:end].reshape(-1, *[1] * (times.ndim - 1))
            blend = share * one + (1.0 - share) * other
            times[begin:end] = np.where(rule == BLEND, blend, np.where(rule == MINUS, one - other, times[begin:end]))


def steady_state(starts: FloatArray, depth: int) -> tuple[int, float]:
    """Return (blocks, seconds) after which the events of blocks repeat; 0 where they do not yet.

    All that comes later depends on the last `depth` blocks alone. If these happen as those `blocks` before them did,
    only later, so will all others.

    starts : array (blocks back, events). When events happen. [s]
    depth : blocks on which the next ones depend.
    """
    tolerance = ROUNDING * np.abs(starts).max()
    for blocks in range(1, len(starts) - depth + 1):
        shift = starts[:depth] - starts[blocks : blocks + depth]
        if shift.max() - shift.min() <= tolerance:
            return blocks, float(shift.mean())
    return 0, 0.0
