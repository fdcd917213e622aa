"""How a plan differs from the best: what it loses, by cause, and what each technique saves on the way to a better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.search.candidate import ROUNDING, Candidate
from sim.search.confirm import run_best
from sim.search.plans.space import Fields
from sim.search.result import SearchResult, Selection
from sim.specs import Scenario

TECHNIQUES: dict[str, tuple[str, ...]] = {
    "layout": ("tp", "cp", "pp", "dp", "etp"),
    "expert parallelism": ("ep",),
    "micro-batch": ("microbatch_size",),
    "schedule": ("schedule", "num_chunks", "sequence_slices", "microbatch_group"),
    "recomputation": ("recompute", "recompute_modules", "recompute_method", "recompute_num_layers"),
    "sequence parallelism": ("sequence_parallel",),
    "ZeRO": ("zero_stage",),
    "host memory": ("optimizer_offload", "offloaded_layers"),
    "stages": ("pipeline_layout", "uneven_layers", "embedding_as_layer", "head_as_layer", "vocabulary_over_stages"),
}
"""Fields of the plan that change together."""
TOGETHER = 3
"""Most techniques that are changed at once, before all that are left are."""
MOST_RUNS = 40
"""Plans with given fields that the exact engine runs at most to find the best of them."""


def best_of(result: SearchResult, named: Fields) -> tuple[Selection, Candidate | None]:
    """The plans with some fields, and the best of them by the exact engine; None where none fits."""
    _, chosen, found = run_best(result, named, 1, MOST_RUNS)
    return chosen, found.best[0] if found.best else None


def loss_of(result: SearchResult, answer: Estimate) -> float:
    """What an answer loses against the best, as a share, by the objective: time, cost or memory."""
    best = result.best[0]
    return replace(best, answer=answer).worth(result.objective) / best.worth(result.objective) - 1.0


def losses_by_cause(result: SearchResult, answer: Estimate) -> dict[str, float]:
    """Seconds by cause that an answer takes more than the best, largest first. [s]

    Where the cost is what counts, seconds on as many GPUs as the best has.
    """
    best = result.best[0].answer
    return seconds_apart(answer, best, answer.num_gpus / best.num_gpus if result.objective == "cost" else 1.0)


def seconds_apart(more: Estimate, less: Estimate, scale: float = 1.0) -> dict[str, float]:
    """Seconds by cause that one answer, times a scale, has more than another, largest first. [s]"""
    there, here = more.breakdown.seconds, less.breakdown.seconds
    return dict(sorted(((cause, scale * there[cause] - here[cause]) for cause in there), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class Step:
    """Techniques that were changed together on the way from one plan to another.

    changes : field to its values before and after.
    answer : of the plan with them.
    saved_s : by them, of the step time. [s]
    causes : seconds by cause that they save, largest first; negative where they cost. [s]
    """

    techniques: tuple[str, ...]
    changes: Mapping[str, tuple[Any, Any]]
    answer: Estimate
    saved_s: float
    causes: dict[str, float]


def steps_between(start: Estimate, goal: Estimate, memory_limit_bytes: float) -> tuple[Step, ...]:
    """Change what differs between two plans one technique at a time, always the one that then saves most.

    What a technique saves depends on what was changed before it. Plans on the way keep all rules, fit in memory and
    are no slower than the one before; where no single change leads to such a plan, two are made at once, or more.

    start, goal : both on the exact engine.
    """
    steps: list[Step] = []
    here = start
    left = [name for name in TECHNIQUES if _differing(start.scenario, goal.scenario, (name,))]
    while left:
        names, answer = _next(here, goal, left, memory_limit_bytes)
        changes = _differing(here.scenario, goal.scenario, names)
        steps.append(Step(names, changes, answer, here.step_time_s - answer.step_time_s, seconds_apart(here, answer)))
        left = [name for name in left if name not in names]
        here = answer
    return tuple(steps)


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
    changes = {field: new for field, (_, new) in _differing(here, goal, names).items()}
    return here.replace(plan=here.plan.replace(**changes))


def _differing(start: Scenario, goal: Scenario, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Fields of some techniques in which the plans of two scenarios differ, with both values."""
    fields = [field for name in names for field in TECHNIQUES[name]]
    pairs = {field: (getattr(start.plan, field), getattr(goal.plan, field)) for field in fields}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
