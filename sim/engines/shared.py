"""The engine of shared cores: ranks that are processes of one machine take turns on its processors.

Training on CPUs may run more processes than there are cores. A bubble is then not idle: while one rank waits, the
others run faster.
"""

from __future__ import annotations

import numpy as np
import simpy

from sim.arrays import FloatArray
from sim.engines.des import Process, Simulation
from sim.engines.program import Program
from sim.engines.tasks import COMPUTE, REDUCE, REGATHER, UPDATE, Step, amounts_of, classes_of, slowed_at_visits, step_of
from sim.engines.timeline import Timeline, timeline_of, waits_at_visits
from sim.errors import SpecError
from sim.schedules.actions import B, F, I, U, W

_ROUNDING = 1e-13
"""Work that may be left of a task when it ends, relative to the time since the step began."""


def run(program: Program) -> Timeline:
    """Simulate the step under processor sharing.

    While k processes compute on C cores each proceeds at the rate min(1, C / k) [1]_. A pipeline rank stands for the
    `twins` processes of its tensor- and data-parallel group, which do the same at the same time. C need not be whole:
    two hyperthreads of one core, or two cores that share a memory bus, are worth less than two. Delivery of a send that
    does not occupy its rank, and waiting for messages within an action, take time but no core. Without `cores` in the
    program nothing is shared.

    .. [1] Kleinrock 1967, "Time-shared systems: a theoretical treatment", Journal of the ACM 14(2): egalitarian
       processor sharing, here with several servers.
    """
    if program.order.fold is not None:
        program = program.on(program.order.fold.unfold())
    order, seconds = program.order, program.seconds()
    if (order.kind == U).any():
        raise SpecError(f"engine shared plays steps that end; schedule {order.schedule!r} does not: use dag or des")
    on = seconds.switches()
    step, amounts = step_of(order, on), amounts_of(order, on, seconds)
    begin, end = _OnCores(program, step, amounts).play()
    waited = None
    if seconds.visits is not None:
        waited = waits_at_visits(order, step, amounts, begin, begin, end - begin, order.weight)
    return timeline_of(program, "shared", step, begin, end, waited)


class _OnCores(Simulation):
    """A play in which passes, updates, and reductions that nothing overlaps need cores."""

    def __init__(self, program: Program, step: Step, amounts: FloatArray) -> None:
        tasks = step.graph.tasks
        computes = (tasks.stream == COMPUTE) | np.isin(tasks.what, (UPDATE, REGATHER))
        reduces = tasks.what == REDUCE
        reduces[step.bodies] = False
        super().__init__(tasks, amounts, program.costs.hidden_share, computes | reduces)
        self.program = program
        idle, stretch = np.zeros((2, len(tasks)))
        idle[: len(program.order)], stretch[: len(program.order)] = _idle(program), _stretch(program)
        self.idle, self.stretch = idle.tolist(), stretch.tolist()
        self.cores = _Cores(self.environment, program.twins, program.cores)

    def work(self, task: int) -> Process:
        """Compute on a share of the cores, wait for messages, and be held up by what is moved beside."""
        if not self.unsure[task]:
            yield from super().work(task)
            return
        if self.cores.environment is not self.environment:
            self.cores = _Cores(self.environment, self.program.twins, self.program.cores)
        yield self.cores.work(self.durations[task] - self.idle[task] - self.stretch[task])
        if self.idle[task]:
            yield self.environment.timeout(self.idle[task])
        self.finish(task, self.environment.now + self.stretch[task])
        if self.stretch[task]:
            yield self.environment.timeout(self.stretch[task])


def _idle(program: Program) -> FloatArray:
    """How long each action waits for messages and needs no core.  [s]"""
    order, costs = program.order, program.costs
    found = np.zeros((5, order.num_stages))
    if program.idle_per_stage is not None:
        found[F], found[B] = program.idle_per_stage
        backward = costs.backward_s
        split = np.divide(costs.weight_grad_s, backward, out=np.zeros_like(backward), where=backward > 0)
        found[I], found[W] = (1.0 - split) * found[B], split * found[B]
    return np.asarray(found[order.kind, order.stage])


def _stretch(program: Program) -> FloatArray:
    """By how much each action is held up by what is moved beside it.  [s]"""
    visits = program.costs.visits
    if visits is None:
        return np.zeros(len(program.order))
    classes = classes_of(program.order, at_visits=True)
    return np.asarray(slowed_at_visits(program.order, classes, visits)[1][classes.of])


class _Cores:
    """Cores that processes share alike; what computes is a group of `twins` processes."""

    def __init__(self, environment: simpy.Environment, twins: int, cores: float | None) -> None:
        self.environment, self._twins, self._cores = environment, twins, cores
        self._left: dict[simpy.Event, float] = {}
        self._since, self._version = environment.now, 0

    def work(self, seconds: float) -> simpy.Event:
        """An event for the time when so much will have been computed, at full speed in so many seconds."""
        done = self.environment.event()
        self._go_on()
        self._left[done] = seconds
        self._await()
        return done

    def _rate(self) -> float:
        processes = len(self._left) * self._twins
        return 1.0 if self._cores is None or processes <= self._cores else self._cores / processes

    def _go_on(self) -> None:
        """Take off what has been computed since the last change."""
        if self._left:
            passed = (self.environment.now - self._since) * self._rate()
            self._left = {done: left - passed for done, left in self._left.items()}
        self._since = self.environment.now

    def _await(self) -> None:
        """Look again when the shortest work should be done, unless something changes before."""
        self._version += 1
        if self._left:
            version = self._version
            due = self.environment.timeout(max(min(self._left.values()), 0.0) / self._rate())
            due.callbacks.append(lambda _: self._finish() if version == self._version else None)

    def _finish(self) -> None:
        self._go_on()
        least = min(self._left.values())
        for done in [done for done, left in self._left.items() if left <= max(least, _ROUNDING * self._since)]:
            del self._left[done]
            done.succeed()
        self._await()
