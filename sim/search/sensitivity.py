"""What each value of each axis of a plan costs: the best plan that has it, and why it is not the best of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.search.candidate import Candidate, facts_of
from sim.search.explain import best_of, loss_of, losses_by_cause
from sim.search.infeasible import none_fits
from sim.search.plans.layouts import RECOMPUTES, SCHEDULES
from sim.search.result import SearchResult
from sim.search.schedules.by_schedule import best_under

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
    is_best : whether the best plan of all has it.
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
        return {
            "axis": self.axis,
            "value": self.value,
            "is_best": self.is_best,
            **facts_of(self.best, "step_time_s"),
            "loss": self.loss,
            "losses_s": self.causes,
            **facts_of(self.best, "plan"),
            "ruled_out": self.ruled_out,
        }


def sensitivity(result: SearchResult) -> tuple[ValueCost, ...]:
    """The best plan with each value of each axis that has several, against the best of all."""
    best = result.best[0]
    plan = best.scenario.plan
    searched = [each for each in result.schedules if not each.asynchronous]
    rows = [_cost(result, "schedule", each.schedule, each.best, each.reason) for each in searched]
    named = {each.schedule for each in searched}
    wanted = [
        (axis, value)
        for axis, values in result.values(AXES).items()
        for value in (sorted(values, key=RECOMPUTES.index) if axis == "recompute" else values)
        if len(values) > 1 and not (axis == "schedule" and value in named)
    ]
    for axis, value in wanted:
        own = getattr(plan, axis) == value
        # The best plan's own schedule may be one that is not priced: then its other plans are looked for too.
        selection, found = (None, best) if own else best_of(result, {axis: value})
        if not own and plan.schedule not in SCHEDULES and axis != "schedule":
            others = (found, best_under(result, plan.schedule, {axis: value}, FEW_RUNS).best)
            there = [each for each in others if each is not None]
            found = min(there, key=lambda each: each.worth(result.objective), default=None)
        ruled_out = "" if found or selection is None else none_fits(result, selection)
        rows.append(_cost(result, axis, value, found, ruled_out))
    return tuple(sorted(rows, key=lambda each: AXES.index(each.axis)))


def _cost(result: SearchResult, axis: str, value: Any, found: Candidate | None, ruled_out: str | None) -> ValueCost:
    """What the best plan with a value costs; it is the best of all where that has the same plan and stack."""
    if found is None:
        return ValueCost(axis, value, None, ruled_out, None, {})
    answer, here, best = found.answer, found.scenario, result.best[0].scenario
    own = here.plan == best.plan and here.stack == best.stack
    return ValueCost(axis, value, found, None, loss_of(result, answer), losses_by_cause(result, answer), own)
