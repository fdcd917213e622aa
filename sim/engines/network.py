"""The event-driven engine with a network: whatever ranks send each other shares the machine's links.

As in `des` each rank is a process that waits for what it needs, works, and tells the others. What it tells them travels
over the *wire*, which knows how fast every message under way is and wakes the processes whose messages have arrived.

Collectives within an action are one message each kind: those that compute waits for at its beginning, one after the
other, those beside compute from its beginning on. Kinds that can meet nothing keep the times of the formulas.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy

from sim.engines.linked import Linked, Process
from sim.engines.linked_step import Played, finish_step, play_folded
from sim.engines.overlapped import collectives
from sim.engines.program import Program
from sim.engines.sums_on_links import SumsOnLinks
from sim.engines.timeline import Timeline
from sim.engines.visits_on_links import VisitsOnLinks
from sim.engines.wire import Message
from sim.schedules.actions import B, F, I, U
from sim.traffic.streams import Traffic

MOST_ACTIONS = 20_000
"""Of an order without a flush whose batches have not settled into a rhythm by then, the later ones are averaged."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A step whose traffic shared the network.

    timeline : with reductions and gathers as long as they took.
    messages : all that were simulated, as they arrived.
    meetings : how many of them met others on a link too narrow for all.
    events : what the simulation worked through.
    """

    timeline: Timeline
    messages: tuple[Message, ...]
    meetings: int
    events: int


def run(program: Program, traffic: Traffic) -> Shared:
    """Simulate a step on a machine whose links are shared.

    Of a stream one message is under way at a time, as on one queue of a communicator; the others wait. Weights that
    ranks gather after the update meet each other, but not what else is under way then; of an order without a flush
    updates stand between the other actions, and what they reduce and gather meets all that is under way.
    """
    last: list[_Play] = []

    def play(program: Program) -> Played:
        last[:] = [_Play(program, traffic)]
        return last[0].play()

    program, played, period = play_folded(program, play, MOST_ACTIONS)
    timeline = finish_step(replace(program, costs=last[0].sums.costs()), played, period)
    wire = last[0].wire
    return Shared(timeline, tuple(wire.messages), wire.meetings, last[0].events)


class _Play(Linked):
    """One play of an order: a process for every rank."""

    def __init__(self, program: Program, traffic: Traffic) -> None:
        super().__init__(program, traffic)
        order = self.order
        stream = np.where(order.kind == F, traffic.forward[order.stage], -1)
        self.stream = np.where((order.kind == B) | (order.kind == I), traffic.backward[order.stage], stream).tolist()
        alone = np.array([each.alone_s for each in traffic.streams] + [0.0])
        self.occupies, self.compute = (self.occupy_s - self.lost).tolist(), self.compute_s.tolist()
        # From an action's start until its message may leave; without one, until its result is there.
        self.leaves = np.maximum(self.release_s - alone[self.stream], 0.0).tolist()
        self.inside = collectives(order, traffic, self.wire.can_meet)
        self.is_update = (order.kind == U).tolist()
        none = np.full(len(order), -1) if order.pair_needs is None else order.pair_needs
        self.begins_pair = (none >= 0).tolist()
        kinds = [order.needs] if order.pair_needs is None else [order.needs, order.pair_needs]
        self.needs = np.stack([order.abroad(kind) for kind in kinds], axis=1).tolist()
        awaited = {need for pair in self.needs for need in pair if need >= 0}
        self.arrived = {task: self.environment.event() for task in sorted(awaited)}
        self.sums = SumsOnLinks(self)
        self.visits = None if program.costs.visits is None else VisitsOnLinks(self)

    def play(self) -> Played:
        """When everything happens."""
        order, environment = self.order, self.environment
        for number in range(order.num_ranks):
            environment.process(self._rank(range(*order.of_rank(number).indices(len(order))), number))
        environment.run()
        assert not self.wire.is_busy, "flows are left that nobody was told of"
        if self.visits is None:
            return Played(self.start, self.end)
        return Played(self.start, self.end, self.visits.until(), self.visits.waited)

    def _rank(self, tasks: range, number: int) -> Process:
        environment, visits = self.environment, self.visits
        sent: simpy.Event | None = None  # what the first of a pair gives, while the second computes
        for task in tasks:
            if visits is not None:
                visits.ask_late(task, number)
            for need in self.needs[task]:
                if need >= 0:
                    yield self.arrived[need]
            if visits is not None:
                yield from visits.open(task, number)
            self.start[task] = environment.now
            self.events += 2
            if visits is not None:
                visits.begun(task, number)
            self.sums.begin(task)
            if self.is_update[task]:
                yield from self.sums.update(task, number)
            else:
                sent = yield from self._act(task, sent)
            if visits is not None:
                yield from visits.finish(task)
            self.end[task] = environment.now
            self.sums.finish(task)
            if visits is not None:
                yield from visits.close(task, number)
        yield from self.sums.behind(number)

    def _act(self, task: int, before: simpy.Event | None) -> Generator[Any, Any, simpy.Event | None]:
        """Compute and send; returns a send that its rank still has to wait for.

        What both of a pair give leaves when both have computed. Where sends block, the rank is taken for the first
        one's as long as it takes alone, and waits for the rest before it sends what the second gives.
        """
        environment, blocks = self.environment, self.program.costs.p2p_blocks and self.stream[task] >= 0
        done = 0.0  # of the action's seconds
        if self.inside[task]:
            yield from self._exchange(task)
            done = self.compute[task]
        sent = None
        if task in self.arrived or blocks:
            sent = environment.process(self._send(task, done, before))
        if blocks and not self.begins_pair[task]:
            yield sent
            return None
        yield environment.timeout(max(self.occupies[task] - done, 0.0))
        if before is not None:
            yield before
        return sent if blocks else None

    def _exchange(self, task: int) -> Process:
        """Compute with the collectives within it, which take longer where they meet others."""
        environment, inside = self.environment, self.inside[task]
        begin, rest = environment.now, self.compute[task]
        waits = [each for each in inside if not each.beside]
        moving = [self.wire.move(each.stream, each.seconds) for each in waits[:1]]
        # Of one group those beside compute queue behind those that it waits for.
        beside = [(each, self.wire.move(each.stream, each.seconds)) for each in inside if each.beside]
        free = {each.stream: begin for each, _ in beside}
        for each in waits:
            self.events += 1
            rest -= each.seconds
            free[each.stream] = yield moving.pop() if moving else self.wire.move(each.stream, each.seconds)
        yield environment.timeout(max(rest, 0.0))
        end = environment.now
        for each, arrival in beside:
            self.events += 1
            arrived_s = yield arrival
            end += each.late(arrived_s - free[each.stream])
        yield environment.timeout(max(end - environment.now, 0.0))

    def _send(self, task: int, done: float, before: simpy.Event | None) -> Process:
        """Deliver what an action gives: latency, the way over the wire, and what the receivers do with it.

        before : a send that its rank has to wait for before this one.
        """
        environment, number = self.environment, self.stream[task]
        leaves = max(self.leaves[task] - done, 0.0)
        if number < 0:
            yield environment.timeout(leaves)
        elif before is not None:
            yield environment.timeout(leaves)
            yield before
            leaves = 0.0
        if number >= 0:
            stream = self.traffic.streams[number]
            yield environment.timeout(leaves + stream.before_s)
            yield self.wire.move(number, stream.transfer_s)
            if stream.after_s:
                yield environment.timeout(stream.after_s)
        self.events += 2
        if task in self.arrived:
            self.arrived[task].succeed()
