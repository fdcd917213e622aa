"""Gradient reductions and weight gathers on shared links: once a step behind the pipeline, or with every update.

With a flush a rank reduces once it is done, or stage by stage beside its last backwards, and all gather together what
ZeRO updated. Without one each update stands in the order: its reduction, unless that goes on beside what follows, the
optimizer, and its gather, one after the other, whatever other ranks send meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import simpy

from sim.arrays import Array
from sim.engines.linked import Linked, Process
from sim.engines.wire import Message, Wire
from sim.pricing.scenario import StageCosts
from sim.schedules import Order
from sim.schedules.actions import F, U
from sim.traffic.streams import Traffic


class SumsOnLinks:
    """The reductions and gathers of one play, and how long they took."""

    def __init__(self, play: Linked) -> None:
        self.play, self.environment, order = play, play.environment, play.order
        self.in_order = bool((order.kind == U).any())
        self.last = {} if self.in_order else _last_gradients(order)
        self.begun = {task: play.environment.event() for task in self.last}
        self.ended = {task: play.environment.event() for task in self.last}
        self.reduced = np.zeros(order.num_stages)
        self.beside = play.program.hide_grad_reduce
        if self.beside and not self.in_order:
            for number in np.flatnonzero(play.program.costs.reduce_s > 0).tolist():
                play.environment.process(self._beside(number))

    def begin(self, task: int) -> None:
        """An action begins, with whose gradients a stage's reduction may."""
        if task in self.begun:
            self.begun[task].succeed()

    def finish(self, task: int) -> None:
        """It has ended."""
        if task in self.ended:
            self.ended[task].succeed()

    def behind(self, number: int) -> Process:
        """Gradients of all stages of a rank, once it has nothing else to do."""
        traffic, costs, order = self.play.traffic, self.play.program.costs, self.play.order
        if self.in_order or self.beside or not costs.reduce_s[number]:
            return
        begin = self.environment.now
        yield self.play.move(int(traffic.reduce[number]), float(costs.reduce_s[number]))
        here = order.rank_of_stage == number
        self.reduced[here] = (self.environment.now - begin) * costs.reduce_share[here]

    def _beside(self, number: int) -> Process:
        """Gradients stage by stage, from the last backward on each, as the graph of tasks has it."""
        play, costs = self.play, self.play.program.costs
        for task, stage in self.last.items():
            if play.order.rank_of_stage[stage] != number:
                continue
            yield self.begun[task]
            begin, seconds = self.environment.now, float(costs.reduce_s[number] * costs.reduce_share[stage])
            yield play.move(int(play.traffic.reduce[number]), seconds)
            self.reduced[stage] = self.environment.now - begin
            if not self.ended[task].processed:
                yield self.ended[task]
            late = play.end[task] + min(float(costs.reduce_tail_s[number]), seconds) - self.environment.now
            if late > 0:
                yield self.environment.timeout(late)

    def update(self, task: int, number: int) -> Process:
        """One update of an order without a flush, as `Program.seconds` puts it together."""
        play, costs = self.play, self.play.program.costs
        reduce, gather = float(costs.reduce_s[number]), float(costs.gather_s[number])
        reduction = play.move(int(play.traffic.reduce[number]), reduce)
        if not self.beside:
            yield reduction
        optimizer = float(play.compute_s[task]) - gather - reduce * (not self.beside)
        yield self.environment.timeout(max(optimizer, 0.0))
        yield play.move(int(play.traffic.gather[number]), gather)

    def costs(self) -> StageCosts:
        """The play's costs with reductions and gathers as long as they took."""
        play, order = self.play, self.play.order
        costs, traffic = play.program.costs, play.traffic
        if self.in_order:
            reduce, gather = (
                _average(play.wire.messages, table, alone)
                for table, alone in ((traffic.reduce, costs.reduce_s), (traffic.gather, costs.gather_s))
            )
            return replace(costs, reduce_s=reduce, gather_s=gather)
        took = np.bincount(order.rank_of_stage, self.reduced, minlength=order.num_ranks).astype(float)
        share = np.divide(
            self.reduced, took[order.rank_of_stage], out=np.zeros(order.num_stages), where=self.reduced > 0
        )
        return replace(costs, reduce_s=took, reduce_share=share, gather_s=_gathers(costs.gather_s, traffic))


def _average(messages: Sequence[Message], streams: Array, alone: Array) -> Array:
    """What each rank's messages took on average once the pipeline was full: in the second half of all its own.  [s]

    Parameters
    ----------
    streams : array over ranks
        −1: the rank has none.
    alone : array over ranks
        What it takes then. [s]
    """
    took = alone.astype(float)
    for rank in np.flatnonzero(streams >= 0).tolist():
        each = [message.end_s - message.begin_s for message in messages if message.stream == streams[rank]]
        took[rank] = np.mean(each[len(each) // 2 :])
    return took


def _gathers(alone: Array, traffic: Traffic) -> Array:
    """Seconds of the ranks' weight gathers, all begun at once. [s]"""
    environment, took = simpy.Environment(), alone.astype(float)
    wire = Wire(environment, traffic)
    arrivals = {
        rank: wire.move(int(traffic.gather[rank]), float(took[rank])) for rank in np.flatnonzero(traffic.gather >= 0)
    }
    environment.run()
    for rank, arrival in arrivals.items():
        took[rank] = arrival.value
    return took


def _last_gradients(order: Order) -> dict[int, int]:
    """The last gradient action on every stage, in the order of the ranks: action -> stage."""
    gradients = np.flatnonzero((order.kind != F) & (order.kind != U))
    stages, from_end = np.unique(order.stage[gradients][::-1], return_index=True)
    last = gradients[::-1][from_end]
    return {int(task): int(stage) for task, stage in sorted(zip(last.tolist(), stages.tolist(), strict=True))}
