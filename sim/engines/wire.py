"""The wire: messages under way in a simulation of events, how fast each is, and who waits for it.

A flow is a stream of bytes over a set of links. Its path is not a sequence here but an incidence: how many bytes each
link carries for one byte of the flow.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from sim.arrays import FloatArray, IntArray
from sim.engines.order_facts import undominated
from sim.traffic.streams import Stream, Traffic

SLACK = 1e-9
"""Relative difference that rounding may make between a link's capacity and what is asked of it."""
_TIE = 1e-12
"""Relative difference below which two links are taken to saturate together."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows as a sparse matrix: entry e puts `load[e]` bytes on link `link[e]` for every byte of flow `flow[e]`.

    flow : ascending; flows are numbered 0 … num_flows − 1, and one without an entry uses no link.
    load : positive.
    share : what each flow is entitled to relative to the others on a saturated link.
    """

    num_flows: int
    flow: IntArray
    link: IntArray
    load: FloatArray
    share: FloatArray


def max_min_rates(flows: Flows, capacity: FloatArray) -> FloatArray:
    """Rates at which no flow can go faster without slowing one that is no faster (per share).  [bytes/s]

    Progressive filling: all rates rise together, in proportion to the flows' shares, until a link is full; its flows
    are frozen, the others rise on [1]_. Many links are filled at once: one that would be the first to saturate for
    every flow on it does so at that very level, because the level at which a link saturates never falls while flows
    are frozen below it. Rates are infinite for flows that use no link of finite capacity.

    .. [1] Bertsekas, Gallager 1992, "Data Networks", section 6.5.2.
    """
    links, link = np.unique(flows.link, return_inverse=True)
    free, rates = capacity[links].astype(float), np.full(flows.num_flows, np.inf)
    finite = np.isfinite(free[link])
    flow, link, load = flows.flow[finite], link[finite], flows.load[finite]
    while flow.size:
        demand = np.bincount(link, load * flows.share[flow], minlength=len(free))
        saturates = np.full(len(free), np.inf)
        np.divide(free, demand, out=saturates, where=demand > 0)
        first = np.flatnonzero(np.diff(flow, prepend=-1))
        entries = np.diff(first, append=len(flow))
        level = np.minimum.reduceat(saturates[link], first)
        saturates_elsewhere = saturates[link] > np.repeat(level, entries) * (1 + _TIE)
        full = np.bincount(link, saturates_elsewhere, minlength=len(free)) == 0
        frozen = np.maximum.reduceat(full[link], first)
        ids = flow[first[frozen]]
        rates[ids] = level[frozen] * flows.share[ids]
        gone = np.repeat(frozen, entries)
        used = np.bincount(link[gone], load[gone] * rates[flow[gone]], minlength=len(free))
        free = np.maximum(free - used, 0.0)
        flow, link, load = flow[~gone], link[~gone], load[~gone]
    return rates


class _Move:
    """A message at the head of its stream's queue: seconds' worth that are left, since when, at which rate."""

    __slots__ = ("arrived", "left", "met", "rate", "since", "version")

    def __init__(self, left: float, arrived: simpy.Event, now: float) -> None:
        self.left, self.arrived, self.since = left, arrived, now
        self.rate, self.version, self.met = 1.0, 0, False


class Wire:
    """Messages under way, and who waits for them.

    alone : array (streams). Rate of each with the machine to itself, in units of full speed.
    loads : array (links, streams). Share of each link that each stream takes at that rate.
    entitled : array (streams). Weight of each on links that are shared.

    One message of a stream is under way at a time. It moves at the rate that it has alone, but for those whose links
    are asked for more than they carry: these share them max-min fairly, by what each is entitled to. Sets of streams
    that meet come back step after step of a schedule, so their rates are kept.
    """

    def __init__(
        self, environment: simpy.Environment, alone: FloatArray, loads: FloatArray, entitled: FloatArray
    ) -> None:
        self._environment = environment
        self.alone, self._loads, self._share = alone, loads, entitled / alone
        self._uses = self._loads > 0
        self._links: list[IntArray] = [np.flatnonzero(column) for column in self._uses.T]
        self._parts = [self._loads[links, stream] for stream, links in enumerate(self._links)]
        self._asked = np.zeros(len(self._loads))
        self._on_link = np.zeros(len(self._loads), dtype=np.int64)
        self._active = np.zeros(len(alone), dtype=bool)
        self._slowed: tuple[int, ...] = ()
        self._rates: dict[bytes, tuple[tuple[int, ...], list[float]]] = {}
        self._queue: list[deque[tuple[float, simpy.Event]]] = [deque() for _ in alone]
        self._moves: list[_Move | None] = [None] * len(alone)
        self.meetings = 0

    @classmethod
    def over(cls, environment: simpy.Environment, traffic: Traffic) -> Wire:
        """Lay the streams of a step over the links of a machine."""
        entitled = np.array([each.entitled for each in traffic.streams])
        return cls(environment, *shared_links(traffic.streams, traffic.health), entitled)

    def can_meet(self, stream: int) -> bool:
        """Whether anything may ever change how long a stream's messages take."""
        return bool(len(self._links[stream])) or self.alone[stream] < 1.0

    def move(self, stream: int, seconds: float) -> simpy.Event:
        """An event for the time when so many seconds' worth at full speed will have been moved."""
        arrived = self._environment.event()
        self._queue[stream].append((seconds, arrived))
        if len(self._queue[stream]) == 1:
            self._begin(stream)
        return arrived

    def _begin(self, stream: int) -> None:
        """Start the first message in a stream's queue."""
        (seconds, arrived), links = self._queue[stream][0], self._links[stream]
        move = self._moves[stream] = _Move(seconds / float(self.alone[stream]), arrived, self._environment.now)
        self._active[stream] = True
        if len(links):
            self._asked[links] += self._parts[stream]
            self._on_link[links] += 1
            self._share_out()
        if move.version == 0:
            self._await(stream, move)

    def _await(self, stream: int, move: _Move) -> None:
        """Look at a message again when it should have arrived, unless its rate changes before."""
        move.version += 1
        version = move.version
        due = self._environment.timeout(move.left / move.rate)
        due.callbacks.append(lambda _: self._finish(stream) if move.version == version else None)

    def _finish(self, stream: int) -> None:
        """Tell those who wait for a stream's message, and start its next."""
        move, links = self._moves[stream], self._links[stream]
        assert move is not None
        move.version = -1
        self._moves[stream], self._active[stream] = None, False
        self._queue[stream].popleft()
        if len(links):
            self._on_link[links] -= 1
            self._asked[links] -= self._parts[stream]
            self._asked[links[self._on_link[links] == 0]] = 0.0  # what rounding has added up to
            if not self._queue[stream]:
                self._share_out()
        if self._queue[stream]:
            self._begin(stream)
        move.arrived.succeed(self._environment.now)

    def _share_out(self) -> None:
        """New rates for all that meet on links which cannot carry them, and for those that no longer do."""
        narrow = self._asked > 1.0 + SLACK
        if not narrow.any():
            meeting: tuple[int, ...] = ()
            rates: list[float] = []
        else:
            who = self._uses[narrow].any(axis=0) & self._active
            key = who.tobytes()
            if key not in self._rates:
                self._rates[key] = self._fair(np.flatnonzero(who))
            meeting, rates = self._rates[key]
        for stream in self._slowed:
            if stream not in meeting:
                self._set_rate(stream, 1.0)
        for stream, rate in zip(meeting, rates, strict=True):
            self._set_rate(stream, rate)
        self._slowed = meeting

    def _set_rate(self, stream: int, rate: float) -> None:
        move = self._moves[stream]
        if move is None or move.rate == rate:
            return
        now = self._environment.now
        move.left -= min((now - move.since) * move.rate, move.left)
        move.since, move.rate = now, rate
        if not move.met:
            move.met = True
            self.meetings += 1
        self._await(stream, move)

    def _fair(self, streams: IntArray) -> tuple[tuple[int, ...], list[float]]:
        """Max-min fair rates of streams that are under way together, in units of the rate of each alone."""
        loads = self._loads[:, streams]
        loads = np.concatenate([loads[loads.sum(axis=1) > 1.0], np.eye(len(streams))])
        flow, link = np.nonzero(loads.T)
        flows = Flows(len(streams), flow, link, loads[link, flow], self._share[streams])
        rates = max_min_rates(flows, np.ones(len(loads)))
        return tuple(streams.tolist()), np.where(rates > 1.0 - SLACK, 1.0, rates).tolist()


def shared_links(streams: Sequence[Stream], health: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How fast streams are alone, and the links on which they can meet, without those that never decide.

    A stream has at most one message under way. A link that carries all its streams at the rate each has alone holds
    nobody back; nor does one of which another asks as much of every stream, so that many links alike are one.

    Returns:
    alone : array over streams. Rate with the machine to itself, in units of full speed; below 1 where its own flows
        meet or a card is sick.
    loads : array (links, streams). Share of each link that remains which each stream takes at that rate.
    """
    stream = np.repeat(np.arange(len(streams)), [len(each.link) for each in streams])
    link = np.concatenate([np.zeros(0, dtype=int), *(each.link for each in streams)])
    load = np.concatenate([np.zeros(0), *(each.occupies for each in streams)]) / health[link]
    alone = alone_rates(streams, health)
    load = load * alone[stream]
    busy = np.bincount(link, load, minlength=len(health))[link] > 1 + SLACK
    order = np.lexsort((stream[busy], link[busy]))
    stream, link, load = stream[busy][order], link[busy][order], np.round(load[busy][order], 12)
    by_streams: dict[bytes, tuple[IntArray, list[FloatArray]]] = {}
    for here in runs(link):
        by_streams.setdefault(stream[here].tobytes(), (stream[here], []))[1].append(load[here])
    rows = []
    for who, alike in by_streams.values():
        for loads in undominated(np.array(alike)):
            row = np.zeros(len(streams))
            row[who] = loads
            rows.append(row)
    return alone, np.array(rows) if rows else np.zeros((0, len(streams)))


def runs(numbers: IntArray) -> list[slice]:
    """Where equal numbers stand side by side."""
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return [slice(first, last) for first, last in itertools.pairwise(bounds) if last > first]


def alone_rates(streams: Sequence[Stream], health: FloatArray) -> FloatArray:
    """Rates of streams with the machine to themselves, in units of full speed."""
    return np.array(
        [1.0 / max(1.0 / each.pace, float((each.occupies / health[each.link]).max(initial=0.0))) for each in streams]
    )
