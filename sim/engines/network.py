"""The event-driven engine with a network: whatever ranks send each other shares the machine's links.

Passes send when they have computed, and their receivers wait for what arrives. Collectives in a pass are one message
each kind: those that compute waits for at its begin, one after the other, those beside compute from its begin on. What
a rank moves on streams of its own (weights and gradients at visits of its chunks, reductions) is a message a task.

The tasks are those of every engine. A message takes as long as the *wire* says, which knows how fast every message that
is under way moves, and wakes those who wait for what has arrived. Kinds that can meet nothing keep their times.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.arrays import FloatArray, RankFloats
from sim.engines.des import Moments, Process, Simulation, play_folded
from sim.engines.program import Program
from sim.engines.tasks import COMPUTE, DATA, GATHER, GRADIENTS, Step
from sim.engines.timeline import Timeline
from sim.engines.wire import Wire
from sim.errors import ScheduleError
from sim.schedules import Order
from sim.schedules.actions import B, F, I, U
from sim.traffic.exchanges import ROWS
from sim.traffic.streams import Traffic


class RunningCollective(NamedTuple):
    """What one kind of group moves within an action. [s]

    hidden_share : of what it takes longer than alone within its budget, the share that compute hides.
    """

    stream: int
    beside: bool
    seconds: float
    budget: float
    hidden_share: float

    def late(self, took: float) -> float:
        """How much longer the action is because this took longer than alone, slack in its budget used up first."""
        slack = max(min(took, self.budget) - self.seconds, 0.0)  # what the compute that may hide it has room for
        return took - self.seconds - self.hidden_share * slack


def collectives(order: Order, traffic: Traffic, can_meet: Callable[[int], bool]) -> list[tuple[RunningCollective, ...]]:
    """Collectives within each action that could meet other traffic."""
    found: dict[tuple[int, int], tuple[RunningCollective, ...]] = {}
    for kind, which in ROWS.items():
        for stage, rank in enumerate(order.rank_of_stage.tolist()):
            each = []
            for inside in traffic.inside:
                exchange, stream = inside.exchange, int(inside.stream[rank])
                alone = exchange.seconds[which, stage]
                seconds, budget = float(alone.sum()), float(exchange.budget[which, stage].sum())
                if seconds > 0 and can_meet(stream):
                    share = traffic.streams[stream].delay_hidden_share
                    if share is None:
                        share = float(alone @ exchange.hidden_share[which, stage]) / seconds
                    each.append(RunningCollective(stream, exchange.beside, seconds, budget, share))
            found[kind, stage] = tuple(each)
    return [found.get(key, ()) for key in zip(order.kind.tolist(), order.stage.tolist(), strict=True)]


class LinkedPlay(Simulation):
    """One play of a step whose messages share links.

    wire : the messages, under way and arrived.
    """

    def __init__(self, program: Program, step: Step, amounts: FloatArray, traffic: Traffic) -> None:
        order, tasks, count = program.order, step.graph.tasks, len(program.order)
        self.order, self.costs, self.step, self.traffic = order, program.costs, step, traffic
        carried = np.full(len(tasks), -1)
        for stream, table in ((DATA, traffic.visits), (GRADIENTS, traffic.reduce)):
            if table is not None:
                here = tasks.stream == stream
                carried[here] = table[tasks.rank[here]]
        super().__init__(tasks, amounts, float(program.costs.hidden_share), (tasks.stream == COMPUTE) | (carried >= 0))
        self.wire, self._carried = Wire.over(self.environment, traffic), carried.tolist()
        self._receivers: dict[int, list[int]] = {}
        self._readers: dict[int, list[tuple[int, float]]] = {}
        self._take_what_messages_tell(count)
        self._gathered = {
            waiter: self.environment.event() for waits in self._readers.values() for waiter, early in waits if early > 0
        }
        (compute, occupy, release), stretch = program.action_seconds(), program.slowed_s()
        sends = np.where(order.kind == F, traffic.forward[order.stage], -1)
        sends = np.where((order.kind == B) | (order.kind == I), traffic.backward[order.stage], sends)
        alone = np.array([each.alone_s for each in traffic.streams] + [0.0])[sends]
        self._stretch, self._occupy, self._compute = stretch.tolist(), (occupy - stretch).tolist(), compute.tolist()
        # From a pass's begin until its message may leave; without one, until its result is there.
        self._leaves, self._sends = np.maximum(release - alone, 0.0).tolist(), sends.tolist()
        self._inside = collectives(order, traffic, self.wire.can_meet)
        self._begins_pair = [False] * count if order.pair_needs is None else (order.pair_needs >= 0).tolist()
        self._unsent: dict[int, simpy.Event | None] = {}  # what the first of a pair gives, while the second computes

    def _take_what_messages_tell(self, count: int) -> None:
        """Take waits for messages out of the others, in a step of so many passes.

        What passes give arrives when its message does, and weights when they are moved, not so long after anything.
        """
        for source, waits in enumerate(self._waiters):
            kept = []
            for waiter, lag, from_end in waits:
                if waiter < count and source < count:
                    self._receivers.setdefault(source, []).append(waiter)
                elif self._carried[source] >= 0 and waiter < count and self.tasks.what[source] == GATHER:
                    self._readers.setdefault(source, []).append((waiter, -lag))
                else:
                    kept.append((waiter, lag, from_end))
            self._waiters[source] = kept

    def blend_of(self, task: int, first: float, second: float) -> float:
        """When a rank's gradients are summed: the share that nothing hides follows its last pass."""
        rank = int(self.tasks.rank[task])
        moved = np.flatnonzero((self.tasks.stream == GRADIENTS) & (self.tasks.rank == rank)).tolist()
        took = sum(self.end[each] - self.begin[each] for each in moved)
        alone = min(sum(self.durations[each] for each in moved), took)
        stream, share = int(self.traffic.reduce[rank]), self.share
        of_delay = self.traffic.streams[stream].delay_hidden_share if stream >= 0 else None
        if took > alone and of_delay is not None:
            share += (of_delay - share) * (1.0 - alone / took)
        second = self.begin[self.step.done[rank]] + took
        return share * first + (1.0 - share) * second

    def work(self, task: int) -> Process:
        """Compute and send, update, or move a message."""
        if not self.unsure[task]:
            yield from super().work(task)
            return
        if task >= len(self.order):
            yield from self._move(task)
        else:
            yield from self._pass(task)
        self.finish(task, self.environment.now)

    def move(self, stream: int, seconds: float) -> simpy.Event:
        """Return the event when a stream has moved so many seconds' worth at full speed; −1: it takes just those."""
        on_links = stream >= 0 and seconds > 0.0
        return self.wire.move(stream, seconds) if on_links else self.environment.timeout(max(seconds, 0.0))

    def _move(self, task: int) -> Process:
        """Move a message; a visit may begin before the last of its weights are there."""
        left = self.durations[task]
        for waiter, early in sorted(self._readers.get(task, ()), key=lambda each: -each[1]):
            yield self.move(self._carried[task], left - early)
            left = early
            self._arrive(waiter)
        yield self.move(self._carried[task], left)
        for waiter, _ in self._readers.get(task, ()):
            if waiter in self._gathered:
                self._gathered[waiter].succeed()

    def _pass(self, task: int) -> Process:
        rank = int(self.order.rank[task])
        self._unsent[rank] = yield from self._compute_and_send(task, self._unsent.get(rank))
        if (gathered := self._gathered.get(task)) is not None and not gathered.processed:
            yield gathered  # the first pass of a visit needs the last of its weights before it ends
        yield self.environment.timeout(self._stretch[task])

    def _compute_and_send(self, task: int, before: simpy.Event | None) -> Generator[Any, Any, simpy.Event | None]:
        """Compute and send; return a send that the rank still has to wait for.

        What both of a pair give leaves when both have computed. Where sends block, the rank is taken for the first
        one's as long as it takes alone, and waits for the rest before it sends what the second gives.
        """
        environment, blocks = self.environment, bool(self.costs.p2p_blocks) and self._sends[task] >= 0
        done = 0.0  # of the pass's seconds
        if self._inside[task]:
            yield from self._exchange(task)
            done = self._compute[task]
        sent = None
        if task in self._receivers or blocks:
            sent = environment.process(self._send(task, done, before))
        if blocks and not self._begins_pair[task]:
            yield sent
            return None
        yield environment.timeout(max(self._occupy[task] - done, 0.0))
        if before is not None:
            yield before
        return sent if blocks else None

    def _exchange(self, task: int) -> Process:
        """Compute with the collectives within a pass, which take longer where they meet others."""
        environment, inside = self.environment, self._inside[task]
        begin, rest = environment.now, self._compute[task]
        waits = [each for each in inside if not each.beside]
        moving = [self.move(each.stream, each.seconds) for each in waits[:1]]
        # Those of one group beside compute queue behind those that it waits for.
        beside = [(each, self.move(each.stream, each.seconds)) for each in inside if each.beside]
        free = {each.stream: begin for each, _ in beside}
        for each in waits:
            rest -= each.seconds
            yield moving.pop() if moving else self.move(each.stream, each.seconds)
            free[each.stream] = environment.now
        yield environment.timeout(max(rest, 0.0))
        end = environment.now
        for each, arrival in beside:
            arrived_s = yield arrival
            end += each.late(arrived_s - free[each.stream])
        yield environment.timeout(max(end - environment.now, 0.0))

    def _send(self, task: int, done: float, before: simpy.Event | None) -> Process:
        """Deliver what a pass gives: latency, the way over the wire, and what the receivers do with it.

        done : what of the pass is over. [s]
        before : a send that the rank has to wait for before this one.
        """
        environment, number = self.environment, self._sends[task]
        leaves = max(self._leaves[task] - done, 0.0)
        if number >= 0 and before is not None:
            yield environment.timeout(leaves)
            yield before
            leaves = 0.0
        if number < 0:
            yield environment.timeout(leaves)
        else:
            stream = self.traffic.streams[number]
            yield environment.timeout(leaves + stream.before_s)
            yield self.move(number, stream.transfer_s)
            if stream.after_s:
                yield environment.timeout(stream.after_s)
        for receiver in self._receivers.get(task, ()):
            self._arrive(receiver)


@dataclass(frozen=True, slots=True)
class Shared:
    """A step whose traffic shared the network.

    timeline : with reductions and gathers as long as they took.
    meetings : how many messages met others on a link too narrow for all.
    """

    timeline: Timeline
    meetings: int


def run(program: Program, traffic: Traffic) -> Shared:
    """Simulate a step on a machine whose links are shared.

    One message of a stream is under way at a time, as on one queue of a communicator; the others wait. Weights that
    ranks gather after the update meet each other, but not what else is under way then.
    """
    if (program.order.kind == U).any():
        raise ScheduleError(
            f"schedule {program.order.schedule!r} has no flush, and links are shared only within steps that end. Leave "
            "contention and slow links out, or choose a schedule with a flush, such as 1f1b"
        )
    last: list[LinkedPlay] = []
    costs = replace(program.costs, gather_s=_gathered(program.costs.gather_s, traffic))

    def play(program: Program, step: Step, amounts: FloatArray) -> Moments:
        last[:] = [LinkedPlay(program, step, amounts, traffic)]
        return last[0].play()

    timeline = play_folded(replace(program, costs=costs), "network", play)
    return Shared(timeline, last[0].wire.meetings)


def _gathered(alone: RankFloats, traffic: Traffic) -> RankFloats:
    """Seconds of the ranks' weight gathers, all begun at once.  [s]"""
    environment, took = simpy.Environment(), alone.astype(float)
    wire = Wire.over(environment, traffic)
    arrivals = {
        rank: wire.move(int(traffic.gather[rank]), float(took[rank])) for rank in np.flatnonzero(traffic.gather >= 0)
    }
    environment.run()
    for rank, arrival in arrivals.items():
        took[rank] = arrival.value
    return took
