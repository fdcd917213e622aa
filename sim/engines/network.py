"""The event-driven engine with a network: whatever ranks send each other shares the machine's links.

The tasks are those of every engine. A message takes as long as the *wire* says, which knows how fast every message that
is under way moves, and wakes those who wait for what has arrived. Kinds that can meet nothing keep their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import simpy

from sim.arrays import FloatArray, IntArray, RankFloats
from sim.engines.des import Moments, play_folded
from sim.engines.on_links import LinkedPlay
from sim.engines.program import Program
from sim.engines.tasks import Seconds, Step
from sim.engines.timeline import Timeline
from sim.engines.wire import Message, Wire
from sim.schedules.actions import U
from sim.traffic.streams import Traffic

MOST_ACTIONS = 20_000
"""Actions after which an order without a flush is cut off. If its batches have found no rhythm by then, the later ones
are averaged."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A step whose traffic shared the network.

    timeline : with reductions and gathers as long as they took.
    messages : all that were simulated, as they arrived.
    meetings : how many of them met others on a link too narrow for all.
    events : about how many events the simulation has worked through.
    """

    timeline: Timeline
    messages: tuple[Message, ...]
    meetings: int
    events: int


def run(program: Program, traffic: Traffic) -> Shared:
    """Simulate a step on a machine whose links are shared.

    One message of a stream is under way at a time, as on one queue of a communicator; the others wait. Weights that
    ranks gather after the update meet each other, but not what else is under way then; of an order without a flush
    updates stand between the other actions, and what they reduce and gather meets all that is under way.
    """
    last: list[LinkedPlay] = []
    in_order = bool((program.order.kind == U).any())
    if not in_order:
        costs = replace(program.costs, gather_s=_gathered(program.costs.gather_s, traffic))
        program = replace(program, costs=costs)

    def play(program: Program, seconds: Seconds, step: Step, amounts: FloatArray) -> Moments:
        last[:] = [LinkedPlay(program, seconds, step, amounts, traffic)]
        begin, end = last[0].play()
        waited = None if seconds.visits is None else last[0].waited()
        if in_order:
            program = _with_what_updates_took(program, last[0].wire.messages, traffic)
        return begin, end, waited, program

    timeline = play_folded(program, "network", play, MOST_ACTIONS)
    wire = last[0].wire
    return Shared(timeline, tuple(wire.messages), wire.meetings, last[0].events)


def _with_what_updates_took(program: Program, messages: Sequence[Message], traffic: Traffic) -> Program:
    """The program with reductions and gathers of updates as long as they took on average."""
    costs = program.costs
    reduce = _average(messages, traffic.reduce, costs.reduce_s)
    gather = _average(messages, traffic.gather, costs.gather_s)
    return replace(program, costs=replace(costs, reduce_s=reduce, gather_s=gather))


def _average(messages: Sequence[Message], streams: IntArray, alone: RankFloats) -> RankFloats:
    """What each rank's messages took on average once the pipeline was full: in the second half of all its own.  [s]

    Parameters
    ----------
    streams : array (ranks)
        −1: the rank has none.
    alone : array (ranks)
        What it takes then. [s]
    """
    took = alone.astype(float)
    for rank in np.flatnonzero(streams >= 0).tolist():
        each = [message.end_s - message.begin_s for message in messages if message.stream == streams[rank]]
        took[rank] = np.mean(each[len(each) // 2 :])
    return took


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
