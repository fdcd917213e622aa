"""Ranks that are processes of one machine take turns on its processors.

Training on CPUs may run more processes than there are cores. A bubble is then not idle: while one rank waits, the
others run faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import simpy

from sim.arrays import FloatArray
from sim.engines.des import Moments, Process, Simulation, play_folded
from sim.engines.program import Program
from sim.engines.tasks import COMPUTE, REDUCE, REGATHER, UPDATE, Step
from sim.engines.timeline import Timeline
from sim.engines.wire import Wire
from sim.schedules.actions import B, F, I, U, W


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """Ranks of a program as processes of one machine.

    cores : how many of them compute at full speed at once; None: each has its own.
    twins : processes that a pipeline rank stands for, its tensor- and data-parallel group.
    idle_per_stage : of forward and of backward of each stage, what waits for messages and needs no core. [s]
    """

    program: Program
    cores: float | None
    twins: int = 1
    idle_per_stage: tuple[FloatArray, FloatArray] | None = None

    def run(self) -> Timeline:
        """Simulate the step under processor sharing.

        While k processes compute on C cores each proceeds at the rate min(1, C / k) [1]_. A pipeline rank stands for
        its `twins`, which do the same at the same time. C need not be whole: two hyperthreads of one core, or two cores
        that share a memory bus, are worth less than two. Delivery of a send that does not occupy its rank, and waiting
        for messages within an action, take time but no core.

        .. [1] Kleinrock 1967, "Time-shared systems: a theoretical treatment", Journal of the ACM 14(2): egalitarian
           processor sharing, here with several servers.
        """
        order = self.program.order
        assert not (order.kind == U).any(), "the job runs schedules with a flush"

        def play(program: Program, step: Step, amounts: FloatArray) -> Moments:
            return _OnCores(replace(self, program=program), step, amounts).play()

        whole = self.program if order.fold is None else self.program.on(order.fold.unfold())
        return play_folded(whole, "cores", play)

    def idle(self) -> FloatArray:
        """How long each action waits for messages and needs no core.  [s]"""
        order, costs = self.program.order, self.program.costs
        found = np.zeros((5, order.num_stages))
        if self.idle_per_stage is not None:
            found[F], found[B] = self.idle_per_stage
            backward = costs.backward_s
            split = np.divide(costs.weight_grad_s, backward, out=np.zeros_like(backward), where=backward > 0)
            found[I], found[W] = (1.0 - split) * found[B], split * found[B]
        return np.asarray(found[order.kind, order.stage])

    def wire(self, environment: simpy.Environment) -> Wire:
        """The cores as a link that all ranks share, each of which can take as much as its processes can use."""
        ranks, cores, twins = self.program.order.num_ranks, self.cores, self.twins
        alone = 1.0 if cores is None else min(1.0, cores / twins)
        loads = np.zeros((0, ranks)) if cores is None else np.full((1, ranks), alone * twins / cores)
        return Wire(environment, np.full(ranks, alone), loads, np.ones(ranks))


class _OnCores(Simulation):
    """A play in which passes, updates, and reductions that nothing overlaps need cores."""

    def __init__(self, processes: Processes, step: Step, amounts: FloatArray) -> None:
        program, tasks = processes.program, step.graph.tasks
        computes = (tasks.stream == COMPUTE) | np.isin(tasks.what, (UPDATE, REGATHER))
        reduces = tasks.what == REDUCE
        reduces[step.bodies] = False
        super().__init__(tasks, amounts, program.costs.hidden_share, computes | reduces)
        self.processes = processes
        idle, stretch = np.zeros((2, len(tasks)))
        idle[: len(program.order)], stretch[: len(program.order)] = processes.idle(), program.slowed_s()
        self.idle, self.stretch = idle.tolist(), stretch.tolist()
        self.cores, self.clock = processes.wire(self.environment), self.environment

    def work(self, task: int) -> Process:
        """Compute on a share of the cores, wait for messages, and be held up by what is moved beside."""
        if not self.unsure[task]:
            yield from super().work(task)
            return
        if self.clock is not self.environment:  # what all replicas do together has a clock of its own
            self.cores, self.clock = self.processes.wire(self.environment), self.environment
        rank = int(self.tasks.rank[task])
        yield self.cores.move(rank, self.durations[task] - self.idle[task] - self.stretch[task])
        if self.idle[task]:
            yield self.environment.timeout(self.idle[task])
        self.finish(task, self.environment.now + self.stretch[task])
        if self.stretch[task]:
            yield self.environment.timeout(self.stretch[task])
