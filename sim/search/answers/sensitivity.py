"""What each value of each axis of a plan costs: the best plan that has it, and why it is not the best of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.search.answers.among import best_among, causes_apart, column, confirmed_already, loss_of, none_fits
from sim.search.candidate import Candidate, ScheduleBest
from sim.search.plans.columns import SCHEDULES
from sim.search.result import SearchResult
from sim.search.schedules.by_schedule import WithFields

AXES = (
    "num_gpus", "tp", "cp", "pp", "ep", "microbatch_size", "num_chunks", "schedule", "recompute", "sequence_parallel",
    "zero_stage",
)  # fmt: skip
"""Axes that are looked at; dp follows from the others."""
FEW_RUNS = 8
"""Plans of each value that the exact engine runs at most under a schedule that is not priced."""


@dataclass(frozen=True, slots=True)
class ValueCost:
    """One value of an axis.

    best : the best plan that has it; None where none fits.
    ruled_out : why none does.
    loss : of that plan against the best of all, as a share, by the objective.
    causes : seconds by cause that it takes more, largest first. [s]
    """

    axis: str
    value: Any
    best: Candidate | None
    ruled_out: str | None
    loss: float | None
    causes: dict[str, float]
    is_best: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        answer = None if self.best is None else self.best.answer
        return {
            "axis": self.axis,
            "value": self.value,
            "is_best": self.is_best,
            "step_time_s": None if answer is None else answer.step_time_s,
            "loss": self.loss,
            "losses_s": self.causes,
            "plan": None if answer is None else answer.scenario.plan.model_dump(mode="json"),
            "ruled_out": self.ruled_out,
        }


def sensitivity(result: SearchResult, progress: Callable[[int, int], None] | None = None) -> tuple[ValueCost, ...]:
    """For every value of every axis of more than one, the best plan that has it, against the best of all.

    Parameters
    ----------
    progress : callable, optional
        Called with (values done, values in all).
    """
    known, ranking = confirmed_already(result), result.ranking()
    best = result.best[0]

    def worth(each: Candidate) -> float:
        return each.worth(result.objective)

    values = {axis: column(result, axis) for axis in AXES}
    distinct = {axis: np.unique(found).tolist() for axis, found in values.items()}
    wanted = [(axis, value) for axis in AXES if len(distinct[axis]) > 1 for value in _in_order(axis, distinct[axis])]
    # The best plan's own schedule may be one that is not priced: then its other plans are looked for too.
    schedule = best.scenario.plan.schedule
    under = None if schedule in SCHEDULES else WithFields(result, schedule)
    rows = [_searched(result, each) for each in result.schedules if not each.asynchronous]
    there = {each.value for each in rows}
    wanted = [pair for pair in wanted if not (pair[0] == "schedule" and SCHEDULES[pair[1]] in there)]
    for number, (axis, value) in enumerate(wanted, start=1):
        which = values[axis] == value
        own = _own(best, axis) == (SCHEDULES[value] if axis == "schedule" else value)
        found = best if own else best_among(result, which, known, ranking)
        if not own and under is not None and axis != "schedule":
            other = under.best({axis: value}, FEW_RUNS).best
            found = min((each for each in (found, other) if each is not None), key=worth, default=None)
        rows.append(_cost(result, axis, value, which, found, best, own))
        if progress is not None:
            progress(number, len(wanted))
    return tuple(sorted(rows, key=lambda each: AXES.index(each.axis)))


def _cost(
    result: SearchResult, axis: str, value: Any, which: np.ndarray, found: Candidate | None, best: Candidate, own: bool
) -> ValueCost:
    shown = SCHEDULES[value] if axis == "schedule" else value
    if found is None:
        return ValueCost(axis, shown, None, none_fits(result, which), None, {})
    loss = loss_of(result, found.answer)
    return ValueCost(axis, shown, found, None, loss, causes_apart(result, found.answer), own)


def _searched(result: SearchResult, found: ScheduleBest) -> ValueCost:
    """A schedule that was searched beside those that are priced."""
    if found.best is None:
        return ValueCost("schedule", found.schedule, None, found.reason, None, {})
    answer, best = found.best.answer, result.best[0].scenario
    own = answer.scenario.plan == best.plan and answer.scenario.stack == best.stack
    return ValueCost(
        "schedule", found.schedule, found.best, None, loss_of(result, answer), causes_apart(result, answer), own
    )


def _own(best: Candidate, axis: str) -> Any:
    plan = best.scenario.plan
    return plan.num_gpus if axis == "num_gpus" else getattr(plan, axis)


def _in_order(axis: str, values: list[Any]) -> list[Any]:
    """Choices from the least to the most of the technique."""
    return sorted(values, key=("none", "selective", "full").index) if axis == "recompute" else values
