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

from sim.arrays import Array
from sim.engines.critical_path import play_folded
from sim.engines.overlapped import collectives
from sim.engines.program import Program
from sim.engines.timeline import Played, Timeline, finish_step
from sim.engines.visits import slowed_by
from sim.engines.wire import Message, Wire
from sim.errors import ScheduleError
from sim.pricing.scenario import StageCosts
from sim.schedules import Order
from sim.schedules.actions import B, F, I, U
from sim.traffic.streams import Traffic

Process = Generator[Any, Any, None]


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
    ranks gather after the update meet each other, but not what else is under way then.

    Raises
    ------
    ScheduleError
        As `check_order`.
    """
    order = program.order
    check_order(order, program.costs)
    room: list[_Room] = []

    def play(program: Program) -> Played:
        room[:] = [_Room(program, traffic)]
        return room[0].play()

    program, played, period = play_folded(program, play)
    last = room[0]
    took = np.bincount(order.rank_of_stage, last.reduced, minlength=order.num_ranks).astype(float)
    share = np.divide(last.reduced, took[order.rank_of_stage], out=np.zeros(order.num_stages), where=last.reduced > 0)
    costs = replace(program.costs, reduce_s=took, reduce_share=share, gather_s=_gathers(program, traffic))
    timeline = finish_step(replace(program, costs=costs), "network", played, period_s=period)
    return Shared(timeline, tuple(last.wire.messages), last.wire.meetings, last.events)


def check_order(order: Order, costs: StageCosts) -> None:
    """Refuse orders whose traffic is not laid out as flows.

    Raises
    ------
    ScheduleError
        An asynchronous schedule, one that runs two models, or pairs of actions with sends that block.
    """
    if (order.kind == U).any():
        raise ScheduleError(
            f"schedule {order.schedule!r} updates within its order, and its reductions are priced with the updates; "
            "contention is simulated for schedules with a flush, such as 1f1b"
        )
    if order.copies > 1:
        raise ScheduleError(
            f"schedule {order.schedule!r} sums gradients of two models on two ranks, which is not laid out as flows; "
            "leave contention out"
        )
    if order.pair_needs is not None and costs.p2p_blocks:
        raise ScheduleError(
            f"schedule {order.schedule!r} pairs forwards with backwards and stack sends block: contention is simulated "
            "for pairs where sends run beside compute; set stack.overlap_p2p=true"
        )


def _gathers(program: Program, traffic: Traffic) -> Array:
    """Seconds of the ranks' weight gathers, all begun at once. [s]"""
    if (traffic.gather < 0).all():
        return program.costs.gather_s
    environment, took = simpy.Environment(), program.costs.gather_s.copy()
    wire = Wire(environment, traffic)
    arrivals = {
        rank: wire.move(int(traffic.gather[rank]), float(took[rank])) for rank in np.flatnonzero(traffic.gather >= 0)
    }
    environment.run()
    for rank, arrival in arrivals.items():
        took[rank] = arrival.value
    return took


class _Room:
    """One play of an order."""

    def __init__(self, program: Program, traffic: Traffic) -> None:
        order = program.order
        self.environment = simpy.Environment()
        self.wire = Wire(self.environment, traffic)
        self.program, self.order, self.traffic = program, order, traffic
        self.start, self.end = np.zeros(len(order)), np.zeros(len(order))
        self.reduced = np.zeros(order.num_stages)
        self.events = 0
        stream = np.where(order.kind == F, traffic.forward[order.stage], -1)
        self.stream = np.where((order.kind == B) | (order.kind == I), traffic.backward[order.stage], stream).tolist()
        alone = np.array([each.alone_s for each in traffic.streams] + [0.0])
        lost = np.zeros(len(order)) if program.costs.visits is None else slowed_by(order, program.costs.visits)
        self.occupy_s, self.compute = (program.occupy_s - lost).tolist(), program.compute_s.tolist()
        self.lost = lost.tolist()
        self.visits = None if program.stream is None else _AtVisits(self)
        # From an action's start until its message may leave; without one, until its result is there.
        self.leaves = np.maximum(program.release_s - alone[self.stream], 0.0).tolist()
        self.inside = collectives(order, traffic, self.wire.can_meet)
        self.last = _last_gradients(order)
        self.begun = {task: self.environment.event() for task in self.last}
        self.ended = {task: self.environment.event() for task in self.last}

    def play(self) -> Played:
        """When everything happens."""
        order, environment = self.order, self.environment
        kinds = [order.needs] if order.pair_needs is None else [order.needs, order.pair_needs]
        self.needs = np.stack([order.abroad(kind) for kind in kinds], axis=1).tolist()
        awaited = {need for pair in self.needs for need in pair if need >= 0}
        self.arrived = {task: environment.event() for task in sorted(awaited)}
        for number in range(order.num_ranks):
            environment.process(self._rank(range(*order.of_rank(number).indices(len(order))), number))
            if self.program.hide_grad_reduce and self.traffic.reduce[number] >= 0:
                environment.process(self._reduce_beside(number))
        environment.run()
        assert not self.wire.is_busy, "flows are left that nobody was told of"
        if self.visits is None:
            return Played(self.start, self.end)
        return Played(self.start, self.end, self.visits.until(), self.visits.waited)

    def _rank(self, tasks: range, number: int) -> Process:
        environment, blocks = self.environment, self.program.costs.p2p_blocks
        for task in tasks:
            if self.visits is not None:
                self.visits.ask_late(task, number)
            for need in self.needs[task]:
                if need >= 0:
                    yield self.arrived[need]
            if self.visits is not None:
                yield from self.visits.open(task, number)
            self.start[task] = environment.now
            self.events += 2
            if self.visits is not None:
                self.visits.begun(task, number)
            if task in self.begun:
                self.begun[task].succeed()
            done = 0.0  # of the action's seconds
            if self.inside[task]:
                yield from self._exchange(task)
                done = self.compute[task]
            if task in self.arrived or (blocks and self.stream[task] >= 0):
                sent = environment.process(self._send(task, done))
                yield (
                    sent
                    if blocks and self.stream[task] >= 0
                    else environment.timeout(max(self.occupy_s[task] - done, 0.0))
                )
            else:
                yield environment.timeout(max(self.occupy_s[task] - done, 0.0))
            if self.visits is not None:
                yield from self.visits.finish(task)
            self.end[task] = environment.now
            if task in self.ended:
                self.ended[task].succeed()
            if self.visits is not None:
                yield from self.visits.close(task, number)
        if not self.program.hide_grad_reduce and self.traffic.reduce[number] >= 0:
            yield from self._reduce_after(number)

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

    def _send(self, task: int, done: float) -> Process:
        """Deliver what an action gives: latency, the way over the wire, and what the receivers do with it."""
        environment, number = self.environment, self.stream[task]
        leaves = max(self.leaves[task] - done, 0.0)
        if number < 0:
            yield environment.timeout(leaves)
        else:
            stream = self.traffic.streams[number]
            yield environment.timeout(leaves + stream.before_s)
            yield self.wire.move(number, stream.transfer_s)
            if stream.after_s:
                yield environment.timeout(stream.after_s)
        self.events += 2
        if task in self.arrived:
            self.arrived[task].succeed()

    def _reduce(self, number: int, seconds: float) -> simpy.Event:
        self.events += 2
        return self.wire.move(int(self.traffic.reduce[number]), seconds)

    def _reduce_after(self, number: int) -> Process:
        """Gradients of all stages of a rank, once it has nothing else to do."""
        begin = self.environment.now
        yield self._reduce(number, float(self.program.costs.reduce_s[number]))
        here = self.order.rank_of_stage == number
        self.reduced[here] = (self.environment.now - begin) * self.program.costs.reduce_share[here]

    def _reduce_beside(self, number: int) -> Process:
        """Gradients stage by stage, from the last backward on each, as `timeline.reduction_end` has it."""
        costs = self.program.costs
        for task, stage in self.last.items():
            if self.order.rank_of_stage[stage] != number:
                continue
            yield self.begun[task]
            begin, seconds = self.environment.now, float(costs.reduce_s[number] * costs.reduce_share[stage])
            yield self._reduce(number, seconds)
            self.reduced[stage] = self.environment.now - begin
            if not self.ended[task].processed:
                yield self.ended[task]
            late = self.end[task] + min(float(costs.reduce_tail_s[number]), seconds) - self.environment.now
            if late > 0:
                yield self.environment.timeout(late)


class _AtVisits:
    """What ranks move at visits: the streams of `sim.engines.visits`, whose messages share links.

    waited : as of `Streams`. [s]
    """

    def __init__(self, room: _Room) -> None:
        assert room.program.stream is not None
        assert room.traffic.visits is not None
        self.room, self.stream, self.environment = room, room.program.stream, room.environment
        order, self.wires = room.order, room.traffic.visits.tolist()
        self.waited = np.zeros(len(order))
        self.asked = [simpy.Store(room.environment) for _ in range(order.num_ranks)]
        self.done: list[list[float]] = [[] for _ in range(order.num_ranks)]
        self.count = [0] * order.num_ranks
        self.after = np.zeros(len(order), dtype=np.int64)  # how much its rank has asked for, after each action
        self.ready: dict[int, tuple[simpy.Event, simpy.Event]] = {}
        self.rest: dict[int, simpy.Event] = {}
        self.ended: dict[int, simpy.Event] = {}
        self.is_last = np.zeros(len(order), dtype=bool)
        self.is_last[order.first[1:] - 1] = True
        for rank, first in enumerate(order.first[:-1].tolist()):
            room.environment.process(self._serve(rank))
            self._ask(first, rank)

    def until(self) -> Array:
        """After each action, when its rank's stream is done with all that was asked for. [s]"""
        order = self.room.order
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
                    self.room.events += 2
                    yield self.room.wire.move(self.wires[rank], seconds)
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
        self.room.events += 2
        yield self.room.wire.move(self.wires[rank], float(self.stream.reduce[task]))
        if not ended.processed:
            yield ended
        late = self.room.end[task] + float(self.stream.tail[task]) - self.environment.now
        if late > 0:
            yield self.environment.timeout(late)

    def finish(self, task: int) -> Process:
        """Wait for weights that a visit's first pass needs before its end, and for what is lost beside the stream."""
        if task in self.rest:
            rest = self.rest.pop(task)
            if not rest.processed:
                yield rest
        yield self.environment.timeout(self.room.lost[task])

    def close(self, task: int, rank: int) -> Process:
        """Reduce gradients while the rank waits."""
        if task in self.ended:
            self.ended.pop(task).succeed()
        elif self.stream.reduce[task] > 0:
            now, done = self.environment.now, self.environment.event()

            def steps() -> Process:
                self.room.events += 2
                yield self.room.wire.move(self.wires[rank], float(self.stream.reduce[task]))
                done.succeed()

            self._put(rank, steps())
            self.after[task] = self.count[rank]
            yield done
            self.waited[task] += (self.environment.now - now) * (not self.is_last[task])


def _last_gradients(order: Order) -> dict[int, int]:
    """The last gradient action on every stage, in the order of the ranks: action -> stage."""
    gradients = np.flatnonzero((order.kind != F) & (order.kind != U))
    stages, from_end = np.unique(order.stage[gradients][::-1], return_index=True)
    last = gradients[::-1][from_end]
    return {int(task): int(stage) for task, stage in sorted(zip(last.tolist(), stages.tolist(), strict=True))}
