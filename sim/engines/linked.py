"""What the processes share that play one order on a machine whose links are shared: the clock, the wire, the times."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from sim.engines.program import Program
from sim.engines.tasks import classes_of, slowed_at_visits
from sim.engines.wire import Wire
from sim.traffic.streams import Traffic

Process = Generator[Any, Any, None]


class Linked:
    """One play of an order.

    start, end : of every action, as they happen. [s]
    compute_s, occupy_s, release_s : of every action, as `Program.action_seconds` has them. [s]
    lost : of every action, what its rank loses beside what it moves at visits. [s]
    events : what the simulation worked through.
    """

    def __init__(self, program: Program, traffic: Traffic) -> None:
        self.environment = simpy.Environment()
        self.wire = Wire(self.environment, traffic)
        self.program, self.order, self.traffic = program, program.order, traffic
        self.start, self.end = np.zeros((2, len(program.order)))
        self.compute_s, self.occupy_s, self.release_s = program.action_seconds()
        visits, self.lost = program.costs.visits, np.zeros(len(program.order))
        if visits is not None:
            self.lost = slowed_at_visits(program.order, classes_of(program.order, each=True), visits)[1]
        self.events = 0

    def move(self, stream: int, seconds: float) -> simpy.Event:
        """An event for the time when a stream will have moved so many seconds' worth; without a stream it takes those.

        Parameters
        ----------
        stream : int
            −1: none.
        seconds : float
            At full speed. [s]
        """
        self.events += 2
        return self.environment.timeout(seconds) if stream < 0 else self.wire.move(stream, seconds)
