"""Plans named by fields that no priced plan has.

The fields are put on the best plans that agree with the rest; what must follow (dp, chunks of a schedule, sequence
parallelism without tensor parallelism) follows.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.search.plans.layouts import RECOMPUTES, SCHEDULES, completed_plan, expert_degrees
from sim.search.plans.space import Fields
from sim.search.result import SearchResult
from sim.specs import Scenario

FASTEST, LEANER = 6, 18
"""Plans that the named fields are put on: the fastest, and of those that none beats in time and memory, as the fields
may need more memory."""


def try_unpriced(result: SearchResult, named: Fields) -> tuple[Estimate | None, str, int]:
    """(the fastest plan with these fields that can be run, else why none can, how many were tried)."""
    answers: list[Estimate] = []
    reasons: dict[str, None] = {}
    tried = set()
    for place in _bases(result, named):
        base = result.scenario_at(place)
        try:
            scenario = _completed(base, named)
            if scenario.plan in tried:
                continue
            tried.add(scenario.plan)
            answer = estimate(scenario).require_fit()
        except FlopcastError as error:
            # A mistake without the name of the record that found it.
            reasons[str(error).removeprefix("Scenario: ").removeprefix("ParallelPlan: ").removeprefix("plan: ")] = None
            continue
        if answer.largest.total <= result.memory_limit_bytes:
            answers.append(answer)
        else:
            reasons[f"it needs {answer.largest.total / 1e9:.1f} GB, more than the memory limit"] = None
    if answers:
        return min(answers, key=lambda answer: answer.step_time_s), "", len(tried)
    absent = _absent(result, named)
    first = next(iter(reasons), "no plan is like it")
    return None, f"{absent}: {first}" if absent else first, len(tried)


def _bases(result: SearchResult, named: Fields) -> list[int]:
    """Places of the best plans that have as many of the fields as there are, fast ones and lean ones."""
    shared: dict[str, Any] = {}
    for name, value in named.items():
        if _exists(result, {**shared, name: value}):
            shared[name] = value
    chosen = result.select(shared, FASTEST)
    if not chosen.fit:
        return [] if chosen.leanest is None else [chosen.leanest]
    front = result.pareto(shared)
    spread = np.unique(np.linspace(0, len(front) - 1, min(LEANER, len(front))).round().astype(int))
    return list(dict.fromkeys([*chosen.best.tolist(), *front[spread].tolist()]))


def _completed(base: Scenario, named: Fields) -> Scenario:
    """The base with these fields, and with what they force on those that nothing was said of."""
    return base.replace(plan=completed_plan(base.plan, base.model.num_layers, named))


def _exists(result: SearchResult, fields: Fields) -> bool:
    """Whether a plan with these fields was priced."""
    return result.select(fields, 1).priced > 0


def _absent(result: SearchResult, named: Fields) -> str:
    """Which of the fields, alone or together, no priced plan has; empty where that says nothing about rules."""
    for name, value in named.items():
        if _exists(result, {name: value}):
            continue
        # Degrees that deal the experts evenly may be missing because --ep named others.
        even = (value,) if value not in expert_degrees(result.space.scenario) else ()
        searched = {"cp": (), "ep": even, "schedule": SCHEDULES, "recompute": RECOMPUTES}.get(name, (value,))
        if value not in searched:
            return ""  # which is no rule against it
        there = result.values([name])[name]
        return f"no plan has {name} {value} (the rules leave {', '.join(map(str, there))})"
    for many in range(2, len(named) + 1):
        for names in combinations(named, many):
            if not _exists(result, {name: named[name] for name in names}):
                return f"no plan has {' and '.join(f'{name} {named[name]}' for name in names)} at once"
    return ""
