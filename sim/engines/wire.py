"""The wire: flows under way in a simulation of events, how fast each is, and who waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import simpy

from sim.costs.streams import Stream, Traffic
from sim.network.contention import SLACK
from sim.network.flow_network import FlowNetwork
from sim.network.flows import FloatArray, Flows, IntArray


class Wire:
    """Flows under way, and who waits for them.

    A flow that leaves every link enough for the others runs at full speed, and its end is known when it begins. Only
    flows that meet on a link which cannot carry them all go into the `FlowNetwork`, from then on until they are done.
    """

    def __init__(self, environment: simpy.Environment, traffic: Traffic) -> None:
        capacity, self._flows = shared_links(traffic.streams, traffic.health)
        self._environment = environment
        self._network = FlowNetwork(capacity)
        self._room = (capacity * (1 + SLACK)).tolist()
        self._loads = [list(zip(f.link.tolist(), f.load.tolist(), strict=True)) for f in self._flows]
        self._asked = [0.0] * len(capacity)
        self._on_link: list[dict[int, None]] = [{} for _ in capacity]
        self._queue: list[deque[tuple[float, simpy.Event]]] = [deque() for _ in traffic.streams]
        self._alone: dict[int, tuple[float, simpy.Event]] = {}  # stream -> its flow's end, at full speed
        self._meeting: dict[int, int] = {}  # number in the network -> stream
        self._wake_at = np.inf
        self.moves = self.meetings = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return any(self._queue)

    def move(self, stream: int, seconds: float) -> simpy.Event:
        """An event for the time when so many seconds' worth at full speed will have been moved."""
        arrived = self._environment.event()
        self._queue[stream].append((seconds, arrived))
        if len(self._queue[stream]) == 1:
            self._catch_up()
            self._begin(stream)
            self._plan()
        return arrived

    def _begin(self, stream: int) -> None:
        """Start the first message in a stream's queue."""
        now, (seconds, arrived) = self._environment.now, self._queue[stream][0]
        self.moves += 1
        self._alone[stream] = now + seconds, arrived
        crowd: dict[int, None] = {}
        for link, load in self._loads[stream]:
            self._on_link[link][stream] = None
            self._asked[link] += load
            if self._asked[link] > self._room[link]:
                crowd.update(self._on_link[link])
        if crowd and self._network.now < now:
            self._network.advance(now)  # nothing is under way there, or it would be in the present already
        for each in crowd:
            if each in self._alone:
                left = max(0.0, self._alone.pop(each)[0] - now)
                self._meeting[int(self._network.add(self._flows[each], left)[0])] = each
                self.meetings += 1
        if stream in self._alone:
            done = self._environment.timeout(seconds)
            done.callbacks.append(lambda _: self._alone_until_now(stream, arrived))

    def _alone_until_now(self, stream: int, arrived: simpy.Event) -> None:
        if stream in self._alone and self._alone[stream][1] is arrived:  # it has met nobody
            del self._alone[stream]
            self._catch_up()
            self._finish(stream)
            self._plan()

    def _finish(self, stream: int) -> None:
        """Tell those who wait for a stream's first message, and start its next."""
        for link, load in self._loads[stream]:
            del self._on_link[link][stream]
            self._asked[link] = self._asked[link] - load if self._on_link[link] else 0.0
        self._queue[stream].popleft()[1].succeed()
        if self._queue[stream]:
            self._begin(stream)

    def _catch_up(self) -> None:
        """Bring the flows that meet to the present, and finish those that are done."""
        if not self._meeting:
            return
        now, ended = self._environment.now, []
        while self._network.next_completion() <= now * (1 + 1e-15):
            ended += self._network.advance(self._network.next_completion()).tolist()
        self._network.advance(max(now, self._network.now))
        for stream in [self._meeting.pop(number) for number in ended]:  # numbers are given out again from here on
            self._finish(stream)

    def _plan(self) -> None:
        """Wake up when the next of the flows that meet will be done."""
        self._wake_at = planned = self._network.next_completion() if self._meeting else np.inf
        if np.isfinite(planned):
            wake = self._environment.timeout(max(0.0, planned - self._environment.now))
            wake.callbacks.append(lambda _: self._wake(planned))

    def _wake(self, planned: float) -> None:
        if planned == self._wake_at:  # otherwise a flow has come or gone since, and another wake-up is due
            self._catch_up()
            self._plan()


def shared_links(streams: Sequence[Stream], health: FloatArray) -> tuple[FloatArray, tuple[Flows, ...]]:
    """The links on which streams can meet, without those that never decide.

    A stream has at most one flow under way. A link that carries all its streams at full speed together holds nobody
    back; nor does one of which another asks as much of every stream, so that many links alike are one. What remains of
    a stream gets a link of its own besides, so that it is never faster than alone.

    Returns
    -------
    capacity : array
        1 for each link that remains.
    flows : tuple of Flows
        One a stream, its bytes counted in seconds at full speed; without links where nothing can hold it back.
    """
    stream = np.repeat(np.arange(len(streams)), [len(each.link) for each in streams])
    link = np.concatenate([np.zeros(0, dtype=int), *(each.link for each in streams)])
    load = np.concatenate([np.zeros(0), *(each.occupies for each in streams)]) / health[link]
    busy = np.bincount(link, load, minlength=len(health))[link] > 1 + SLACK
    order = np.lexsort((stream[busy], link[busy]))
    stream, link, load = stream[busy][order], link[busy][order], np.round(load[busy][order], 12)
    cuts = np.flatnonzero(np.diff(link)) + 1
    by_streams: dict[bytes, tuple[IntArray, list[FloatArray]]] = {}
    for who, loads in zip(np.split(stream, cuts), np.split(load, cuts), strict=True):
        by_streams.setdefault(who.tobytes(), (who, []))[1].append(loads)
    entries: list[list[tuple[int, float]]] = [[] for _ in streams]
    count = 0
    for who, rows in by_streams.values():
        for loads in _greatest(np.array(rows)):
            for number, part in zip(who.tolist(), loads.tolist(), strict=True):
                entries[number].append((count, part))
            count += len(who) > 0
    for each in entries:
        if each:
            each.append((count, 1.0))
            count += 1
    flows = tuple(
        Flows(
            1,
            np.zeros(len(each), dtype=int),
            np.array([number for number, _ in each], dtype=int),
            np.array([part for _, part in each], dtype=float),
            np.array([streams[number].entitled]),
        )
        for number, each in enumerate(entries)
    )
    return np.ones(count), flows


def _greatest(rows: FloatArray) -> FloatArray:
    """The rows that no other row reaches in every place."""
    rows = np.unique(rows, axis=0)
    kept = np.empty((0, rows.shape[1]))
    for row in rows[np.argsort(-rows.sum(axis=1), kind="stable")]:
        if not (kept >= row).all(axis=1).any():
            kept = np.concatenate([kept, row[np.newaxis]])
    return kept
