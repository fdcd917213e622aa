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
from sim.engines.timeline import Timeline, finish_step
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

    def play(program: Program) -> tuple[Array, Array]:
        room[:] = [_Room(program, traffic)]
        return room[0].play()

    program, start, end, period = play_folded(program, play)
    last = room[0]
    took = np.bincount(order.rank_of_stage, last.reduced, minlength=order.num_ranks).astype(float)
    share = np.divide(last.reduced, took[order.rank_of_stage], out=np.zeros(order.num_stages), where=last.reduced > 0)
    costs = replace(program.costs, reduce_s=took, reduce_share=share, gather_s=_gathers(program, traffic))
    timeline = finish_step(replace(program, costs=costs), "network", start, end, period_s=period)
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
        self.occupy_s, self.compute = program.occupy_s.tolist(), program.compute_s.tolist()
        # From an action's start until its message may leave; without one, until its result is there.
        self.leaves = np.maximum(program.release_s - alone[self.stream], 0.0).tolist()
        self.inside = collectives(order, traffic, self.wire.can_meet)
        self.last = _last_gradients(order)
        self.begun = {task: self.environment.event() for task in self.last}
        self.ended = {task: self.environment.event() for task in self.last}

    def play(self) -> tuple[Array, Array]:
        """Start and end of every action. [s]"""
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
        return self.start, self.end

    def _rank(self, tasks: range, number: int) -> Process:
        environment, blocks = self.environment, self.program.costs.p2p_blocks
        for task in tasks:
            for need in self.needs[task]:
                if need >= 0:
                    yield self.arrived[need]
            self.start[task] = environment.now
            self.events += 2
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
            self.end[task] = environment.now
            if task in self.ended:
                self.ended[task].succeed()
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


def _last_gradients(order: Order) -> dict[int, int]:
    """The last gradient action on every stage, in the order of the ranks: action -> stage."""
    gradients = np.flatnonzero((order.kind != F) & (order.kind != U))
    stages, from_end = np.unique(order.stage[gradients][::-1], return_index=True)
    last = gradients[::-1][from_end]
    return {int(task): int(stage) for task, stage in sorted(zip(last.tolist(), stages.tolist(), strict=True))}
