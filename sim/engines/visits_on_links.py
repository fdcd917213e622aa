"""What ranks move at visits on shared links: one thing after the other beside compute, whose messages meet others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simpy

from sim.arrays import ActionPlanFloats, Array, Ints
from sim.engines.linked import Linked, Process
from sim.pricing.visits import VisitSeconds
from sim.schedules import Order
from sim.schedules.actions import F
from sim.schedules.passes import Visits, asks_of, visits_of

_PASSES = np.array([0, 1, 2, 2, 0])
"""Which pass of `VisitSeconds.early` each kind of action is; only the first three open visits."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What the actions of an order ask of their rank's stream; arrays (actions), or (actions, plans). [s]

    visits : of the order.
    asks : of an action that opens a visit, those whose weights are asked for then (`sim.schedules.passes.asks_of`); and
        of which plans, one array after the other.
    gather, early : of an action that opens a visit, as of `sim.pricing.visits.VisitSeconds`.
    reduce, tail : of an action that closes one, the same.
    queues : whether a visit waits for its turn on the stream; those that move nothing do not.
    ahead : whether it is asked for when a visit before begins.
    beside : whether gradients are reduced while the rank goes on; array (plans).
    """

    visits: Visits
    asks: tuple[tuple[Ints, Array], ...]
    gather: ActionPlanFloats
    early: ActionPlanFloats
    reduce: ActionPlanFloats
    tail: ActionPlanFloats
    queues: Array
    ahead: Array
    beside: Array


def stream_of(order: Order, visits: VisitSeconds) -> Stream:
    """What an order asks of the streams, where visits to its stages, (stages) or (stages, plans), move so much."""
    found, axes = visits_of(order), [1] * (visits.reduce.ndim - 1)
    back = (order.kind != F).astype(np.int64)
    place = (back, order.stage)
    opens, closes = found.opens.reshape(-1, *axes), found.closes.reshape(-1, *axes)
    gather, reduce = visits.gather[place] * opens, visits.reduce[order.stage]
    gives_back = reduce * (opens & (back > 0).reshape(-1, *axes))
    return Stream(
        found,
        _asks(order, visits),
        gather,
        visits.early[_PASSES[order.kind], order.stage] * opens,
        reduce * closes,
        visits.tail[order.stage] * closes,
        queues=(gather > 0) | (gives_back > 0),
        ahead=visits.ahead | (gather == 0),
        beside=visits.beside,
    )


def _asks(order: Order, visits: VisitSeconds) -> tuple[tuple[Ints, Array], ...]:
    """Where the visits to come are asked for.

    A rank that waits for its reductions would wait for gathers before them too: it asks one visit ahead.
    """
    one, further = asks_of(order, 1), asks_of(order, visits.prefetched)
    if one is further:
        return ((one, np.ones_like(visits.beside)),)
    return tuple((asks, where) for asks, where in ((one, ~visits.beside), (further, visits.beside)) if where.any())


class VisitsOnLinks:
    """What ranks move at visits: one thing after the other beside compute, whose messages share links.

    waited : how long the stream alone kept each action waiting, or its rank after it. [s]
    """

    def __init__(self, play: Linked) -> None:
        visits = play.program.costs.visits
        assert visits is not None
        assert play.traffic.visits is not None
        self.play, self.stream, self.environment = play, stream_of(play.order, visits), play.environment
        order, self.wires = play.order, play.traffic.visits.tolist()
        self.waited = np.zeros(len(order))
        self.asked = [simpy.Store(play.environment) for _ in range(order.num_ranks)]
        self.done: list[list[float]] = [[] for _ in range(order.num_ranks)]
        self.count = [0] * order.num_ranks
        self.after = np.zeros(len(order), dtype=np.int64)  # how much its rank has asked for, after each action
        self.ready: dict[int, tuple[simpy.Event, simpy.Event]] = {}
        self.rest: dict[int, simpy.Event] = {}
        self.ended: dict[int, simpy.Event] = {}
        self.is_last = np.zeros(len(order), dtype=bool)
        self.is_last[order.first[1:] - 1] = True
        for rank, first in enumerate(order.first[:-1].tolist()):
            play.environment.process(self._serve(rank))
            self._ask(first, rank)

    def until(self) -> Array:
        """After each action, when its rank's stream is done with all that was asked for. [s]"""
        order = self.play.order
        times = [np.array([0.0, *each]) for each in self.done]
        return np.concatenate([times[rank][self.after[order.of_rank(rank)]] for rank in range(order.num_ranks)])

    def _serve(self, rank: int) -> Process:
        """One thing after the other, as it was asked for."""
        while True:
            steps = yield self.asked[rank].get()
            yield from steps
            self.done[rank].append(self.environment.now)

    def _put(self, rank: int, steps: Process) -> None:
        self.count[rank] += 1
        self.asked[rank].put(steps)

    def _weights(self, rank: int, first: float, rest: float) -> tuple[simpy.Event, simpy.Event]:
        """Ask for weights; events for when the visit may begin, and when its first pass may end."""
        events = self.environment.event(), self.environment.event()

        def steps() -> Process:
            for event, seconds in zip(events, (first, rest), strict=True):
                if seconds > 0:
                    self.play.events += 2
                    yield self.play.wire.move(self.wires[rank], seconds)
                event.succeed()

        self._put(rank, steps())
        return events

    def _ask(self, action: int, rank: int) -> None:
        """Ask ahead for the weights of the visit that an action opens."""
        stream = self.stream
        if stream.queues[action] and stream.ahead[action]:
            early = float(stream.early[action])
            self.ready[action] = self._weights(rank, float(stream.gather[action]) - early, early)

    def ask_late(self, task: int, rank: int) -> None:
        """Ask for weights only when the rank has nothing else to do."""
        if self.stream.visits.opens[task] and not self.stream.ahead[task]:
            self.ready[task] = self._weights(rank, float(self.stream.gather[task]), 0.0)

    def open(self, task: int, rank: int) -> Process:
        """Wait for the weights of a visit."""
        stream, now = self.stream, self.environment.now
        if not stream.visits.opens[task]:
            return
        if (ready := self.ready.pop(task, None)) is not None:
            yield ready[0]
            self.rest[task] = ready[1]
        self.waited[task] = self.environment.now - now

    def begun(self, task: int, rank: int) -> None:
        """Ask for the next visit's weights, and hand in gradients that are reduced beside what is done."""
        stream = self.stream
        for asks, _ in stream.asks:
            for opens in asks[:, task].tolist():
                if opens >= 0:
                    self._ask(opens, rank)
        if stream.reduce[task] > 0 and stream.beside:
            ended = self.ended[task] = self.environment.event()
            self._put(rank, self._beside(task, rank, ended))
        self.after[task] = self.count[rank]

    def _beside(self, task: int, rank: int, ended: simpy.Event) -> Process:
        self.play.events += 2
        yield self.play.wire.move(self.wires[rank], float(self.stream.reduce[task]))
        if not ended.processed:
            yield ended
        late = self.play.end[task] + float(self.stream.tail[task]) - self.environment.now
        if late > 0:
            yield self.environment.timeout(late)

    def finish(self, task: int) -> Process:
        """Wait for weights that a visit's first pass needs before its end, and for what is lost beside the stream."""
        if task in self.rest:
            rest = self.rest.pop(task)
            if not rest.processed:
                yield rest
        yield self.environment.timeout(self.play.lost[task])

    def close(self, task: int, rank: int) -> Process:
        """Reduce gradients while the rank waits."""
        if task in self.ended:
            self.ended.pop(task).succeed()
        elif self.stream.reduce[task] > 0:
            now, done = self.environment.now, self.environment.event()

            def steps() -> Process:
                self.play.events += 2
                yield self.play.wire.move(self.wires[rank], float(self.stream.reduce[task]))
                done.succeed()

            self._put(rank, steps())
            self.after[task] = self.count[rank]
            yield done
            self.waited[task] += (self.environment.now - now) * (not self.is_last[task])
