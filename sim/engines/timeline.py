"""When everything happened in one step: a table of tasks, and what follows from it for every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import ActionFloats, Array, FloatArray, IntArray, RankFloats
from sim.engines.max_plus import TOGETHER
from sim.engines.program import Program, without_flush
from sim.engines.tasks import BUCKET, COMPUTE, GATHER, JOIN, ONCE, REDUCE, Step
from sim.schedules import Order
from sim.schedules.actions import KINDS
from sim.schedules.passes import updates_per_rank
from sim.units import show_time

WHATS = (*map(str, KINDS), "gather", "reduce", "reduce", "tied", "update", "gather", "setup")
"""Names of what tasks are, by their codes."""
STREAMS = ("compute", "data parallel", "gradients", "once a step")
"""Names of streams, by their codes."""


class TaskTable(NamedTuple):
    """Tasks that take time, one a row: the order's actions first, in their turn, then all others.

    rank, stream, what : arrays. Streams by their codes in `STREAMS`, and names of `WHATS`.
    action : array. The action that a task is, or whose weights or gradients it moves; −1 for what comes once a step.
    begin_s, end_s : arrays. Where a fold leaves repetitions out, tasks before its cut are as they were played. [s]
    """

    rank: IntArray
    stream: IntArray
    what: Array
    action: IntArray
    begin_s: FloatArray
    end_s: FloatArray

    def where(self, chosen: Array) -> TaskTable:
        """The rows that are chosen."""
        return TaskTable(*(column[chosen] for column in self))


@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """One training step.

    step_time_s : when the slowest rank has updated; without a flush, from batch to batch. [s]
    pipeline_end_s : when each rank's last action, send included, and what it moves at visits have ended; counted from
        its own first action where ranks do not wait for each other between steps. [s]
    exposed_reduce_s : gradient reduction of each rank that no backward hid. [s]
    exposed_gather_s : weight gather of each rank that no forward hid. [s]
    waited_s : how long each rank waited for what is moved at visits; None: nothing is. [s]
    step, begin_s, end_s : the step's tasks, and when each begins and ends. [s]
    """

    program: Program
    engine: str
    step_time_s: float
    pipeline_end_s: RankFloats
    exposed_reduce_s: RankFloats
    exposed_gather_s: RankFloats
    waited_s: RankFloats | None
    step: Step
    begin_s: FloatArray
    end_s: FloatArray

    def __repr__(self) -> str:
        """One line: the fields hold every task of the step."""
        order = self.program.order
        step = show_time(self.step_time_s)
        return f"<Timeline {order.schedule}: {order.num_ranks} ranks, {step} a step, by {self.engine}>"

    @property
    def updates(self) -> float:
        """Weight updates in a step: one, but for asynchronous schedules that update after every micro-batch."""
        return max(1.0, updates_per_rank(self.program.order))

    @property
    def start(self) -> ActionFloats:
        """Begin of every action, as in `program.order`. [s]"""
        return self.begin_s[: len(self.program.order)]

    @property
    def end(self) -> ActionFloats:
        """End of every action, the send that blocks its rank included. [s]"""
        return self.end_s[: len(self.program.order)]

    @property
    def begun_s(self) -> RankFloats:
        """When each rank's step begins: with all others at 0, unless ranks do not wait for each other.  [s]"""
        return _begun(self.step, self.begin_s, self.program.order.num_ranks)

    @property
    def tasks(self) -> TaskTable:
        """The table of all tasks that were played."""
        return _table(self.program.order, self.step, self.begin_s, self.end_s)

    def to_frame(self) -> Any:
        """Every task that was played as a pandas table: rank, stream, kind, stage, micro-batch, start and end. [s]

        Stage and micro-batch are those of the weights or gradients that a task moves; −1 for what comes once a step.
        """
        tasks, order = self.tasks, self.program.order
        import pandas as pd

        there = tasks.action >= 0
        columns = {
            "rank": tasks.rank,
            "stream": np.array(STREAMS)[tasks.stream],
            "kind": tasks.what,
            "stage": np.where(there, order.stage[tasks.action], -1),
            "microbatch": np.where(there, order.microbatch[tasks.action], -1),
        }
        return pd.DataFrame({**columns, "start_s": tasks.begin_s, "end_s": tasks.end_s})


def timeline_of(
    program: Program,
    engine: str,
    step: Step,
    begin: FloatArray,
    end: FloatArray,
    waited: RankFloats | None,
    period_s: float | None = None,
) -> Timeline:
    """What was played of a step, for every rank.

    begin, end : arrays (tasks) [s]
    waited : array (ranks) or None. As of Timeline. [s]
    period_s : of a folded order, how long the repetition of a block takes: without a flush, a step. [s]
    """
    costs, fold, num_ranks = program.costs, program.order.fold, program.order.num_ranks
    played = step, begin, end
    if step.update is None or step.regather is None:
        if period_s is None or fold is None or not fold.endless:
            period_s = float(begin[step.step])  # so many batches as the order holds
        lasts, exposed = period_s, costs.reduce_s
        if program.hide_grad_reduce:  # otherwise each update's reduction is part of it, and so of the period
            updates = max(1.0, updates_per_rank(program.order))
            step_s, exposes = without_flush(period_s, costs.reduce_s, updates, costs.hidden_share, True)
            lasts, exposed = float(step_s), exposes / updates
        busy = np.full(num_ranks, period_s)
        return Timeline(program, engine, lasts + costs.step_setup_s, busy, exposed, costs.gather_s, None, *played)
    done, ended = begin[step.done], float(begin[step.step]) + costs.step_setup_s
    ends, exposed = done - _begun(step, begin, num_ranks), begin[step.ready] - done
    return Timeline(program, engine, ended, ends, exposed, (end - begin)[step.regather], waited, *played)


def _begun(step: Step, begin: FloatArray, num_ranks: int) -> RankFloats:
    """When each rank's step begins: with all others at 0, unless ranks do not wait for each other.  [s]"""
    return np.zeros(num_ranks) if step.since is None else np.asarray(begin[step.ready] - begin[step.since])


def _table(order: Order, step: Step, begin: FloatArray, end: FloatArray) -> TaskTable:
    """Rows of the tasks of a step that take time.

    A reduction is one row, from the begin of its body to the end of its last bucket. What of a rank's reductions
    nothing hides occupies the rank once its pipeline is done.
    """
    tasks, count = step.graph.tasks, len(order)
    begin, end = begin.copy(), end.copy()
    begin[step.bodies] = np.where(end > begin, begin, np.inf)[step.bodies]
    begin[step.bodies] = np.minimum(begin[step.bodies], begin[step.buckets])
    end[step.bodies] = end[step.buckets]
    shown = (end > begin) & (tasks.what != BUCKET) & (tasks.what != JOIN)
    shown[:count] = True
    columns = [tasks.rank, tasks.stream, tasks.what, tasks.action, begin, end]
    if step.update is not None:
        beside = np.zeros(len(tasks), dtype=bool)
        beside[step.bodies] = True
        shown &= beside | (tasks.what != REDUCE)
        late = _begun(step, begin, order.num_ranks)[tasks.rank] * (tasks.phase == TOGETHER)
        columns[4:] = begin + late, end + late
    rows = [each[shown] for each in columns]
    if step.update is not None:
        late = np.flatnonzero(begin[step.ready] > begin[step.done])
        codes = [np.full_like(late, each) for each in (ONCE, REDUCE, -1)]
        more = (late, *codes, begin[step.done][late], begin[step.ready][late])
        rows = [np.concatenate(each) for each in zip(rows, more, strict=True)]
    rows[2] = np.array(WHATS)[rows[2]]
    return TaskTable(*rows)


def waits_at_visits(
    order: Order,
    step: Step,
    amounts: FloatArray,
    begin: FloatArray,
    moved: FloatArray,
    durations: FloatArray,
    repeated: IntArray,
) -> RankFloats:
    """How long each rank waits for what it moves at visits, in the pipeline and behind it.  [s]

    An action waits for the gather of its visit from when it could begin without; a rank that reduces gradients itself,
    from the end of the pass that gives them; and at the end of the pipeline for all that is still moved.

    amounts : array (amounts) [s]
    begin, moved : arrays (tasks). When tasks begin as they were played; and those before a fold's cut after all
        repetitions. [s]
    durations : array (tasks) [s]
    repeated : array (actions). How many actions of the step each stands for.
    """
    tasks, count = step.graph.tasks, len(order)
    gathers, passes = tasks.what[tasks.source] == GATHER, tasks.stream[tasks.waiter] == COMPUTE
    others = np.flatnonzero(passes & ~gathers)
    could = np.zeros(count)

    def wait(waiter: IntArray, source: IntArray, from_end: Any, lag: Any) -> None:
        happened = np.where(tasks.phase[waiter] > 0, moved[source], begin[source])
        np.maximum.at(could, waiter, happened + from_end * durations[source] + lag)

    wait(tasks.waiter[others], tasks.source[others], tasks.from_end[others], amounts[tasks.lag[others]])
    follows = np.flatnonzero(order.previous >= 0)
    wait(follows, order.previous[follows], True, 0.0)
    held, waited = np.unique(tasks.waiter[passes & gathers]), np.zeros(count)
    waited[held] = begin[held] - could[held]
    keeps = np.flatnonzero(np.isin(tasks.source, step.buckets) & (tasks.stream[tasks.waiter] == COMPUTE))
    closes, bucket = tasks.waiter[keeps] - 1, tasks.source[keeps]
    over = begin[bucket] + durations[bucket] + amounts[tasks.lag[keeps]]
    waited[closes] += np.maximum(over - begin[closes] - durations[closes], 0.0)
    last = order.first[1:] - 1
    behind = begin[step.done] - begin[last] - durations[last]
    return np.asarray(np.bincount(order.rank, waited * repeated, order.num_ranks) + behind)
