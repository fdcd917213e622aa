"""When everything happened in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.engines.program import Program
from sim.engines.step_end import end_of_step, reduction_times, without_flush
from sim.engines.visits import Streams
from sim.errors import SpecError
from sim.notebook import NotebookDisplay
from sim.schedules import Order
from sim.schedules.actions import Kind, U
from sim.schedules.fold import Fold
from sim.schedules.passes import last_first_visits, last_gradients, updates_per_rank
from sim.schedules.registry import is_staggered
from sim.units import show_time


@dataclass(frozen=True, slots=True)
class Played:
    """When everything happened before the step's end; arrays over actions. [s]

    start, end : of every action.
    until : after it, when its rank's stream is done with all it was asked for; None: there are no streams.
    waited : how long that stream alone kept it waiting, or its rank after it.
    """

    start: Array
    end: Array
    until: Array | None = None
    waited: Array | None = None

    @classmethod
    def of(cls, start: Array, end: Array, streams: Streams | None) -> Played:
        """With what the streams of visits did."""
        return cls(start, end) if streams is None else cls(start, end, streams.until, streams.waited)

    def later(self, seconds: Array, fold: Fold, blocks: int) -> Played:
        """With every action so much later, as repetitions that are left out come before it; `blocks` of them are a
        period, and the last one stands for them all."""
        if self.until is None or self.waited is None:
            return Played(self.start + seconds, self.end + seconds)
        waited, last = self.waited.copy(), fold.block(0)
        mean = np.mean([waited[fold.block(back)] for back in range(blocks)], axis=0)
        waited[last] = (waited[last] + fold.times * mean) / (1 + fold.times)
        return Played(self.start + seconds, self.end + seconds, self.until + seconds, waited)

    def done(self, order: Order) -> Array:
        """When each rank, and all that it moves, is done. [s]"""
        done = np.zeros(order.num_ranks)
        np.maximum.at(done, order.rank, self.end)
        if self.until is not None:
            np.maximum.at(done, order.rank, self.until)
        return done


@dataclass(frozen=True, slots=True, repr=False)
class Timeline(NotebookDisplay):
    """One training step.

    start, end : of every action, as in `program.order`; None where an engine gives totals only. [s]
    pipeline_end_s : when each rank's last action, send included, and what it moves at visits have ended; counted from
        its own first action where ranks do not wait for each other between steps. [s]
    exposed_reduce_s : gradient reduction of each rank that no backward hid. [s]
    exposed_gather_s : weight gather of each rank that no forward hid. [s]
    step_time_s : when the slowest rank has updated; without a flush, from batch to batch. [s]
    waited_s : how long each rank waited for what is moved at visits. [s]
    """

    program: Program
    engine: str
    start: Array | None
    end: Array | None
    pipeline_end_s: Array
    exposed_reduce_s: Array
    exposed_gather_s: Array
    step_time_s: float
    waited_s: Array | None = None

    def __repr__(self) -> str:
        """One line: the fields hold every action of the step."""
        order = self.program.order
        step = show_time(self.step_time_s)
        return f"<Timeline {order.schedule}: {order.num_ranks} ranks, {step} a step, by {self.engine}>"

    @property
    def updates(self) -> float:
        """Weight updates in a step: one, but for asynchronous schedules that update after every micro-batch."""
        order = self.program.order
        return max(1.0, updates_per_rank(order))

    def to_frame(self) -> Any:
        """Every action that was played as a pandas table: rank, kind, stage, micro-batch, start and end. [s]

        Raises
        ------
        SpecError
            The engine gives totals only.
        """
        if self.start is None or self.end is None:
            raise SpecError(f"engine {self.engine} gives totals, not a time for every action; use dag, des or shared")
        import pandas as pd

        order = self.program.order
        kinds = np.array([kind.value for kind in Kind])[order.kind]
        columns = {"rank": order.rank, "kind": kinds, "stage": order.stage, "microbatch": order.microbatch}
        return pd.DataFrame({**columns, "start_s": self.start, "end_s": self.end})


def finish_step(
    program: Program,
    engine: str,
    played: Played | None,
    pipeline_end: Array | None = None,
    period_s: float | None = None,
    reduced: Array | None = None,
) -> Timeline:
    """What follows the pipeline: gradient reduction, tied embedding, update, weight gather.

    Parameters
    ----------
    played : Played or None
    pipeline_end_s : array over ranks, where there are no starts and ends
        [s]
    period_s : float, optional
        Of an order without flush, from batch to batch. [s]
    reduced : array over ranks, optional
        When the reductions beside the backwards are done, where there are no starts and ends; otherwise each rank is
        taken to have worked without a pause up to its end. [s]
    """
    costs = program.costs
    start, end = (None, None) if played is None else (played.start, played.end)
    if period_s is None and end is not None and (program.order.kind == U).any():
        period_s = float(end.max())  # so many batches as the order holds
    if period_s is not None:
        return _without_flush(program, engine, start, end, period_s)
    waited = None
    if played is None:
        assert pipeline_end is not None
        absolute = pipeline_end
        begun, done = _without_waiting(program, pipeline_end)
    else:
        absolute = played.done(program.order)
        pipeline_end = absolute - step_begin(program, played.start)
        begun, done = played.start, played.end
        waited = waits(program.order, played)
    updated, exposed, gather = end_of_step(
        pipeline_end,
        costs.reduce_s,
        costs.gather_s,
        costs.optimizer_s,
        tied_embedding=costs.tied_embedding_s,
        hidden_share=costs.hidden_share,
        overlap_reduce=program.hide_grad_reduce,
        overlap_gather=program.hide_gather,
        ends=program.order.ends,
        reduced_after=lambda: (reduction_end(program, begun, done) if reduced is None else reduced) - absolute,
        gather_window=lambda: gather_window(program),
    )
    step_time = float(updated) + costs.step_setup_s
    return Timeline(program, engine, start, end, pipeline_end, exposed, gather, step_time, waited)


def waits(order: Order, played: Played) -> Array | None:
    """How long each rank waits for what it moves at visits, in the pipeline and behind it.  [s]"""
    if played.waited is None:
        return None
    ended = np.zeros(order.num_ranks)
    np.maximum.at(ended, order.rank, played.end)
    waited = np.bincount(order.rank, played.waited * order.weight, order.num_ranks)
    return np.asarray(waited + played.done(order) - ended)


def _without_flush(program: Program, engine: str, start: Array | None, end: Array | None, period_s: float) -> Timeline:
    """Batch follows batch; updates are in the order."""
    costs, ranks = program.costs, program.order.num_ranks
    busy = np.full(ranks, period_s)
    timeline = Timeline(
        program, engine, start, end, busy, costs.reduce_s, costs.gather_s, period_s + costs.step_setup_s
    )
    if not program.hide_grad_reduce:  # each update's reduction is part of it, and so of the period
        return timeline
    step, exposed = without_flush(period_s, costs.reduce_s, timeline.updates, costs.hidden_share, True)
    step_time = float(step) + costs.step_setup_s
    return Timeline(program, engine, start, end, busy, exposed / timeline.updates, costs.gather_s, step_time)


def step_begin(program: Program, start: Array) -> Array:
    """When each rank's step begins: with all others at 0, or, where none waits for the others, its first action. [s]"""
    begin = np.zeros(program.order.num_ranks)
    if is_staggered(program.order.schedule):
        begin[:] = np.inf
        np.minimum.at(begin, program.order.rank, start)
        if program.stream is not None:
            begin -= program.stream.first_waits(program.order)
    return begin


def _without_waiting(program: Program, pipeline_end: Array) -> tuple[Array, Array]:
    """Start and end of every action if each rank had worked without a pause up to its end. [s]"""
    order = program.order
    worked = np.cumsum(program.occupy_s)
    end = worked - worked[order.first[1:] - 1][order.rank] + pipeline_end[order.rank]
    return end - program.occupy_s, end


def reductions(program: Program, start: Array, end: Array) -> tuple[Array, Array]:
    """Begin and end of each stage's gradient reduction where it runs beside the backwards of its rank. [s]"""
    order, costs = program.order, program.costs
    last = last_gradients(order)
    there = last >= 0
    begins, ends = reduction_times(
        order, last, start[last], end[last], costs.reduce_s, costs.reduce_share, costs.reduce_tail_s
    )
    found = np.zeros((2, order.num_stages))
    found[:, order.stage[last[there]]] = begins[there], ends[there]
    return found[0], found[1]


def reduction_end(program: Program, start: Array, end: Array) -> Array:
    """When each rank's gradient reductions are done where they run beside its backwards. [s]"""
    done = np.full(program.order.num_ranks, -np.inf)
    np.maximum.at(done, program.order.rank_of_stage, reductions(program, start, end)[1])
    return done


def gather_window(program: Program) -> Array:
    """Forward seconds of each rank before it needs the last of its gathered weights."""
    order = program.order
    worked = np.concatenate([[0.0], np.cumsum(program.compute_s)])
    return np.asarray(worked[last_first_visits(order) + 1] - worked[order.first[:-1]])
