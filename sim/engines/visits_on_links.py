"""What ranks move at visits on shared links: the streams of `sim.engines.visits`, whose messages meet others."""

from __future__ import annotations

import numpy as np
import simpy

from sim.arrays import Array
from sim.engines.linked import Linked, Process


class VisitsOnLinks:
    """What ranks move at visits: the streams of `sim.engines.visits`, whose messages share links.

    waited : as of `Streams`. [s]
    """

    def __init__(self, play: Linked) -> None:
        assert play.program.stream is not None
        assert play.traffic.visits is not None
        self.play, self.stream, self.environment = play, play.program.stream, play.environment
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
