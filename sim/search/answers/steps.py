"""From one plan to a better one, a technique at a time: what each of them saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.search.candidate import ROUNDING
from sim.search.plans.columns import OVERLAPS
from sim.specs import Scenario

TECHNIQUES: dict[str, tuple[str, ...]] = {
    "layout": ("tp", "cp", "pp", "dp"),
    "expert parallelism": ("ep",),
    "micro-batch": ("microbatch_size",),
    "schedule": ("schedule", "num_chunks", "sequence_slices"),
    "recomputation": ("recompute",),
    "sequence parallelism": ("sequence_parallel",),
    "ZeRO": ("zero_stage",),
    "overlaps": OVERLAPS,
}
"""What changes together: fields of the plan, and of the stack."""
TOGETHER = 3
"""Most techniques that are changed at once, before all that are left are."""


@dataclass(frozen=True, slots=True)
class Step:
    """Techniques that were changed together.

    changes : field to its values before and after.
    answer : of the plan with them.
    saved_s : by them, of the step time. [s]
    causes : seconds by cause that they save, largest first; negative where they cost. [s]
    """

    techniques: tuple[str, ...]
    changes: dict[str, tuple[Any, Any]]
    answer: Estimate
    saved_s: float
    causes: dict[str, float]


def steps_between(start: Estimate, goal: Estimate, memory_limit_bytes: float) -> tuple[Step, ...]:
    """Change what differs between two plans one technique at a time, always the one that then saves most.

    What a technique saves depends on what was changed before it. Plans on the way keep all rules, fit in memory and
    are no slower than the one before; where no single change leads to such a plan, two are made at once, or more.

    Parameters
    ----------
    start, goal : Estimate
        Both on the exact engine.
    """
    steps: list[Step] = []
    here = start
    left = [name for name in TECHNIQUES if _differ(start.scenario, goal.scenario, name)]
    while left:
        names, answer = _next(here, goal, left, memory_limit_bytes)
        fields = [field for name in names for field in TECHNIQUES[name]]
        values = [(_value(here.scenario, field), _value(goal.scenario, field)) for field in fields]
        changes = {field: pair for field, pair in zip(fields, values, strict=True) if pair[0] != pair[1]}
        steps.append(Step(names, changes, answer, here.step_time_s - answer.step_time_s, seconds_apart(here, answer)))
        left = [name for name in left if name not in names]
        here = answer
    return tuple(steps)


def seconds_apart(more: Estimate, less: Estimate) -> dict[str, float]:
    """Seconds by cause that one answer has more than another, largest first. [s]"""
    there, here = more.breakdown.seconds, less.breakdown.seconds
    return dict(sorted(((cause, there[cause] - here[cause]) for cause in there), key=lambda item: -item[1]))


def _next(here: Estimate, goal: Estimate, left: Sequence[str], limit: float) -> tuple[tuple[str, ...], Estimate]:
    """The techniques that are changed next, and the answer with them."""
    for many in range(1, min(TOGETHER, len(left) - 1) + 1):
        tried: list[tuple[tuple[str, ...], Estimate]] = []
        for names in combinations(left, many):
            try:
                answer = estimate(_with(here.scenario, goal.scenario, names))
            except FlopcastError:
                continue
            if answer.largest.total <= limit:
                tried.append((names, answer))
        best = min(tried, key=lambda item: item[1].step_time_s, default=None)
        if best is not None and best[1].step_time_s <= here.step_time_s * (1 + ROUNDING):
            return best
    return tuple(left), goal


def _with(here: Scenario, goal: Scenario, names: Sequence[str]) -> Scenario:
    """Some techniques of the goal on this scenario."""
    fields = [field for name in names for field in TECHNIQUES[name]]
    plan = {field: getattr(goal.plan, field) for field in fields if field not in OVERLAPS}
    stack = {field: getattr(goal.stack, field) for field in fields if field in OVERLAPS}
    return here.replace(plan=here.plan.replace(**plan), stack=here.stack.replace(**stack) if stack else here.stack)


def _value(scenario: Scenario, field: str) -> Any:
    return getattr(scenario.stack if field in OVERLAPS else scenario.plan, field)


def _differ(start: Scenario, goal: Scenario, name: str) -> bool:
    return any(_value(start, field) != _value(goal, field) for field in TECHNIQUES[name])
