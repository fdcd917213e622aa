"""The wire: flows under way in a simulation of events, how fast each is, and who waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import simpy

from sim.costs.traffic import Stream, Traffic
from sim.network.contention import SLACK
from sim.network.flow_network import FlowNetwork
from sim.network.flows import FloatArray, Flows


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
        for each in crowd:
            if each in self._alone:
                self._network.advance(max(now, self._network.now))
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
        for number in ended:
            self._finish(self._meeting.pop(number))

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
    """The links on which streams can meet, links alike as one: what is left of each, and every stream as a flow.

    A stream has at most one flow under way. A link that carries all its streams at full speed together holds nobody
    back and is left out; links that are taken alike and have the same left are one. What remains of a stream gets a
    link of its own besides, so that it is never faster than alone.

    Returns
    -------
    capacity : array
        Of the links that remain, in units of a sound link.
    flows : tuple of Flows
        One a stream, its bytes counted in seconds at full speed; without links where nothing can hold it back.
    """
    stream = np.repeat(np.arange(len(streams)), [len(each.link) for each in streams])
    link = np.concatenate([each.link for each in streams]) if streams else np.zeros(0, dtype=int)
    occupies = np.concatenate([each.occupies for each in streams]) if streams else np.zeros(0)
    asked = np.bincount(link, occupies, minlength=len(health))
    busy = asked[link] > health[link] * (1 + 1e-9)
    order = np.lexsort((stream[busy], link[busy]))
    stream, link, occupies = (values[busy][order] for values in (stream, link, occupies))
    rows: dict[tuple[bytes, bytes, float], int] = {}
    entries: list[list[tuple[int, float]]] = [[] for _ in streams]
    cuts = np.flatnonzero(np.diff(link)) + 1
    bounds = zip([0, *cuts.tolist()], [*cuts.tolist(), len(link)], strict=True) if len(link) else ()
    for begin, end in bounds:
        left = float(health[link[begin]])
        here, loads = stream[begin:end], np.round(occupies[begin:end], 12)
        key = (here.tobytes(), loads.tobytes(), left)
        if key in rows:
            continue
        rows[key] = len(rows)
        for number, load in zip(here.tolist(), loads.tolist(), strict=True):
            entries[number].append((rows[key], load))
    capacity = [key[2] for key in rows]
    for each in entries:
        if each:
            each.append((len(capacity), 1.0))
            capacity.append(1.0)
    flows = tuple(
        Flows(
            1,
            np.zeros(len(each), dtype=int),
            np.array([number for number, _ in each], dtype=int),
            np.array([load for _, load in each], dtype=float),
            np.array([streams[number].entitled]),
        )
        for number, each in enumerate(entries)
    )
    return np.array(capacity), flows
