"""The event-driven engine: every stream of every rank is a SimPy process that takes its tasks in turn.

On its own it gives what the exact engine gives, an event at a time; it is the place for what a longest path cannot
see: shared links, shared cores, jitter, stragglers, failures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from sim.arrays import Array, FloatArray
from sim.engines.longest_path import repetitions
from sim.engines.max_plus import BLEND, FOLDED, NO_STREAM, TOGETHER, Graph, Tasks, steady_state
from sim.engines.program import Program
from sim.engines.tasks import Step, amounts_of, step_of, switches_of
from sim.engines.timeline import Timeline, timeline_of, waits_at_visits
from sim.errors import ScheduleError

MOST_ACTIONS = 1_000_000
"""An event of SimPy takes microseconds, an action some events: of more one would wait for half a minute and longer."""

Process = Generator[Any, Any, None]


Moments = tuple[FloatArray, FloatArray]
"""Begin and end of every task. [s]"""
Play = Callable[[Program, Step, FloatArray], Moments]
"""(program, its tasks, amounts) -> what was played."""


def run(program: Program) -> Timeline:
    """Simulate the step, event by event."""

    def play(program: Program, step: Step, amounts: FloatArray) -> Moments:
        order = program.order
        if len(order) > MOST_ACTIONS:
            raise ScheduleError(
                f"{len(order):,} actions are more than the {MOST_ACTIONS:,} that engine des plays event by event; "
                "engine dag gives the same times, or use a larger plan.microbatch_size"
            )
        return Simulation(step.graph.tasks, amounts, program.costs.hidden_share).play()

    return play_folded(program, "des", play)


def play_folded(program: Program, engine: str, play: Play) -> Timeline:
    """Play a step with as many micro-batches as it takes to reach the steady state of a fold."""
    while True:
        order, on, fold = program.order, switches_of(program), program.order.fold
        step, amounts = step_of(order, on), amounts_of(program, on)
        begin, end = play(program, step, amounts)
        blocks, period = (0, 0.0) if fold is None else _steady(step.graph, begin)
        if fold is None or (blocks and (fold.endless or fold.times % blocks == 0)):
            break
        more = fold.times % blocks * fold.period if blocks else fold.kept
        program = program.on(fold.rebuild(fold.kept + more))
    waited = None
    if program.costs.visits is not None:
        waited = waits_at_visits(order, step, amounts, begin, begin, end - begin, repetitions(order, blocks))
    if fold is None:
        return timeline_of(program, engine, step, begin, end, waited)
    later = (step.graph.tasks.phase > FOLDED) * (fold.times // blocks * period)
    return timeline_of(program, engine, step, begin + later, end + later, waited, period / blocks)


def _steady(graph: Graph, begin: FloatArray) -> tuple[int, float]:
    """Return (blocks, seconds) of the steady state of a folded order; 0 blocks where it has not come."""
    assert graph.blocks is not None
    times = np.zeros(len(graph.rule))
    times[graph.event] = begin
    return steady_state(times[graph.blocks], graph.depth)


class Simulation:
    """One play of the tasks of a step.

    What all replicas do together is played on a clock of its own, because ranks that do not wait for each other between
    steps count from their own begin.

    environment : the clock.
    begin, end : of every task, as they happen. [s]
    durations : of every task. [s]
    """

    def __init__(self, tasks: Tasks, amounts: FloatArray, share: float, unsure: Array | None = None) -> None:
        """Prepare a play.

        amounts : seconds. [s]
        share : weight of what a BLEND waits for first.
        unsure : array (tasks). Whether it turns out only when a task ends how long it takes; `work` then calls
            `finish`.
        """
        self.tasks, self.share, self.environment = tasks, share, simpy.Environment()
        self.begin, self.end = [0.0] * len(tasks), [0.0] * len(tasks)
        self.durations: list[float] = amounts[tasks.amount].tolist()
        self.unsure: list[bool] = (np.zeros(len(tasks), dtype=bool) if unsure is None else unsure).tolist()
        lags = amounts[tasks.lag]
        waits = np.flatnonzero(lags > -np.inf)  # of what moves nothing nobody waits for the begin either
        self._lacking = np.bincount(tasks.waiter[waits], minlength=len(tasks)).tolist()
        self._waiters: list[list[tuple[int, float, bool]]] = [[] for _ in range(len(tasks))]
        for wait in waits.tolist():
            told = (int(tasks.waiter[wait]), float(lags[wait]), bool(tasks.from_end[wait]))
            self._waiters[tasks.source[wait]].append(told)
        self._rule = {int(task): int(tasks.rule[task]) for task in np.flatnonzero(tasks.rule)}
        self._awaited = {task: tasks.source[tasks.waiter == task].tolist() for task in self._rule}
        self._moments: dict[tuple[int, int], float] = {}
        self._ready: dict[int, simpy.Event] = {}
        self._joins, self._together = (tasks.stream == NO_STREAM).tolist(), (tasks.phase == TOGETHER).tolist()

    def play(self) -> tuple[FloatArray, FloatArray]:
        """Return when each task begins and ends.  [s]"""
        lanes = [lane.tolist() for _, _, lane in self.tasks.lanes()]
        for together in (False, True):
            if together:
                self.environment = simpy.Environment()
            for lane in lanes:
                if self._together[lane[0]] == together:
                    self.environment.process(self._stream(lane))
            for task in np.flatnonzero(self.tasks.phase != TOGETHER).tolist() if together else ():
                self._tell(task, from_end=False, together=True)
                self._tell(task, from_end=True, together=True)
            self.environment.run()
        assert not any(self._lacking), "tasks are left that wait for what never happens"
        return np.array(self.begin), np.array(self.end)

    def work(self, task: int) -> Process:
        """Let a stream take the time of a task."""
        yield self.environment.timeout(self.durations[task])

    def finish(self, task: int, moment: float) -> None:
        """Note when a task ends, and let those know who wait for it."""
        self.end[task] = moment
        self._tell(task, from_end=True, together=self._together[task])

    def blend_of(self, task: int, first: float, second: float) -> float:
        """When a join happens that is a blend of two moments.  [s]"""
        return self.share * first + (1.0 - self.share) * second

    def _stream(self, lane: list[int]) -> Process:
        """Take the tasks of a stream in turn."""
        for task in lane:
            if self._lacking[task]:
                self._ready[task] = self.environment.event()
                yield self._ready[task]
            self._happen(task, self.environment.now)
            yield from self.work(task)

    def _happen(self, task: int, moment: float) -> None:
        """Note when a task begins, and let those know who wait for it."""
        self.begin[task] = moment
        self._tell(task, from_end=False, together=self._together[task])
        if not self.unsure[task]:
            self.finish(task, moment + self.durations[task])

    def _tell(self, source: int, *, from_end: bool, together: bool) -> None:
        moment = self.end[source] if from_end else self.begin[source]
        for waiter, lag, after_end in self._waiters[source]:
            if after_end != from_end or self._together[waiter] != together:
                continue
            if waiter in self._rule:
                self._moments[waiter, source] = moment + lag
            if moment + lag <= self.environment.now:
                self._arrive(waiter)
            else:
                due = self.environment.timeout(moment + lag - self.environment.now, waiter)
                due.callbacks.append(lambda event: self._arrive(event.value))

    def _arrive(self, task: int) -> None:
        """One of the things that a task waits for has happened."""
        self._lacking[task] -= 1
        if self._lacking[task]:
            return
        if task in self._ready:
            self._ready.pop(task).succeed()
        elif self._joins[task]:
            moment = self.environment.now
            if task in self._rule:
                first, second = (self._moments[task, source] for source in self._awaited[task])
                moment = self.blend_of(task, first, second) if self._rule[task] == BLEND else first - second
            self._happen(task, moment)
