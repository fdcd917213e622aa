"""What each value of each axis of a plan costs: why not the best plan that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.search.by_schedule import search_under
from sim.search.candidate import facts_of
from sim.search.explain import Why, why_not
from sim.search.fields import RECOMPUTES, SCHEDULES
from sim.search.result import SearchResult

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

    why : the best plan that has it, and what that loses against the best of all; or why none fits.
    is_best : whether the best plan of all has it.
    """

    axis: str
    value: Any
    why: Why
    is_best: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "axis": self.axis,
            "value": self.value,
            "is_best": self.is_best,
            **facts_of(self.why.answer, "step_time_s"),
            "loss": self.why.loss,
            "losses_s": dict(self.why.losses),
            **facts_of(self.why.answer, "plan"),
            "ruled_out": self.why.ruled_out,
        }


def sensitivity(result: SearchResult) -> tuple[ValueCost, ...]:
    """The best plan with each value of each axis that has several, against the best of all."""
    best, found = result.best[0].scenario, dict[tuple[str, Any], Why]()
    for each in result.schedules:
        found["schedule", each.schedule] = Why.of_best(result, each.best, each.reason)
    for axis, values in result.values(AXES).items():
        for value in sorted(values, key=RECOMPUTES.index) if axis == "recompute" else values:
            if len(values) > 1 and (axis, value) not in found:
                found[axis, value] = _why(result, axis, value)
    own = best.plan, best.stack
    ran = {at: why.answer and (why.answer.scenario.plan, why.answer.scenario.stack) for at, why in found.items()}
    costs = [ValueCost(*at, why, ran[at] == own) for at, why in found.items()]
    return tuple(sorted(costs, key=lambda each: AXES.index(each.axis)))


def _why(result: SearchResult, axis: str, value: Any) -> Why:
    """Why not the best plan that has a value.

    The best plan's own schedule may be one that is not priced: then its other plans are looked for too.
    """
    best = result.best[0]
    if getattr(best.scenario.plan, axis) == value:
        return Why.of(result, best.answer, steps=False)
    why, schedule = why_not(result, {axis: value}, steps=False), best.scenario.plan.schedule
    if schedule in SCHEDULES or axis == "schedule":
        return why
    other = Why.of_best(result, search_under(result, schedule, {axis: value}, FEW_RUNS)[0].best)
    there = [each for each in (why, other) if each.answer is not None]
    return min(there, key=lambda each: each.loss or 0.0, default=why)
