"""Which plan should I run? Every feasible plan priced by the closed form, the best of them by the exact engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import InfeasiblePlan, SpecError, nearest
from sim.search.candidate import OBJECTIVES
from sim.search.confirm import MOST_RUNS, nothing_fits, run_best
from sim.search.fields import read_fixed
from sim.search.formula import price_space
from sim.search.result import SearchResult
from sim.search.room import DEFAULT, check_ways
from sim.search.space import Progress, build_space
from sim.search.stages import has_layouts, search_stages
from sim.specs import Scenario
from sim.specs.framework_plans import PlanRule, framework_words, plan_rules, related
from sim.specs.frameworks import framework_named
from sim.specs.loading import as_scenario

MOST_SHOWN = 10_000
"""Plans that a search shows at most: each is run exactly."""


def search(
    scenario: Scenario | Path | str,
    *,
    gpus: tuple[int, int] | None = None,
    memory_limit_bytes: float | None = None,
    objective: str = "step_time",
    top: int = 10,
    confirm: int = MOST_RUNS,
    room: Sequence[str] = DEFAULT,
    layouts: bool | None = None,
    fixed: Mapping[str, Any] | None = None,
    any_framework: bool = False,
    export_to: str | None = None,
    progress: Progress | None = None,
    require_fit: bool = True,
) -> SearchResult:
    """Price and memory-check every plan, and confirm the best by the exact engine.

    Parameters
    ----------
    scenario : Scenario or path
        Its plan says how many GPUs where `gpus` does not, or its cluster where it has no plan; model, cluster, training
        and stack are kept.
    gpus : (int, int), optional
        Fewest and most.
    memory_limit_bytes : float, optional
        Of one GPU. Default: all it has. [bytes]
    objective : str
        Of OBJECTIVES.
    top : int
        How many to return.
    confirm : int
        How many the exact engine runs at most, in the order of the closed form, which is never above it: fewer where
        the best `top` are proven before. Its times decide their order.
    room : sequence of str
        What plans may do that do not fit otherwise, from `sim.search.room.WAYS`. Empty: none, selective (the modules of
        the scenario's plan) and full recomputation only.
    layouts : bool, optional
        Also deal layers by balanced layouts (`sim.search.stages`). Default: where the framework is known to have them.
    fixed : mapping, optional
        Fields of the plan that every plan must have, each with its value or a tuple of values: {"tp": 8}. Default:
        context-parallel degrees are 1, the plan's own, and powers of two that leave pieces of 8,192 tokens.
    any_framework : bool
        Also plans that the framework of the scenario's stack, in its version, cannot run (presets/frameworks, `plans`).
    export_to : str, optional
        Only plans that this framework can run in its latest version; and the scenario's own only where that is of the
        same kind, such as NeMo and Megatron-LM.
    progress : callable, optional
        Called with (plans priced, plans in the space), then with those for which room is made.
    require_fit : bool
        False: where none fits, a result without a best plan, as `search_schedules` may find one of another schedule.

    Returns
    -------
    SearchResult

    Raises
    ------
    InfeasiblePlan
        No plan keeps the rules or none fits; the message says which constraint left nothing.
    SpecError
        Unknown objective or framework, or a field in `fixed` that is no field of plans or that a search cannot keep.
    """
    scenario = as_scenario(scenario)
    room, between = check_ways(room), _size(scenario, gpus)
    if objective not in OBJECTIVES:
        raise SpecError(f"unknown objective {objective!r}{nearest(objective, OBJECTIVES)}")
    for name, number in {"top": top, "confirm": confirm}.items():
        if number < 1:
            raise SpecError(f"{name} = {number} must be at least 1")
        if number > MOST_SHOWN:
            raise SpecError(f"{name} = {number:,} must be at most {MOST_SHOWN:,}: each is run exactly")
    rules, runs_on = _rules(scenario, any_framework, export_to)
    fixed = read_fixed(fixed or {})
    limit = scenario.cluster.gpu.usable_bytes if memory_limit_bytes is None else memory_limit_bytes

    begun = time.perf_counter()
    space = build_space(scenario, between, rules=rules, runs_on=runs_on, fixed=fixed)
    prices = price_space(space, progress)
    took, size = time.perf_counter() - begun, len(prices)
    result = SearchResult(space, objective, limit, space.categories, prices, size, took, top=top, room=room)
    result, found = run_best(result, {}, top, max(top, confirm), progress)
    if not found.ran and require_fit:
        raise InfeasiblePlan(nothing_fits(result))
    best = found.best[:top]
    known = {each.scenario.plan: each for each in best}
    result = replace(result, best=best, known=known, found=found.with_best())
    if not best or (layouts is None and not (space.columns.pp > 1).any()):
        return result
    dealt = has_layouts(scenario, rules, fixed) if layouts is None else layouts
    return search_stages(result, layouts=dealt, likely=layouts is None)


def _size(scenario: Scenario, gpus: tuple[int, int] | None) -> tuple[int, int]:
    """Fewest and most GPUs: those asked for, else as many as the scenario's plan has, or its cluster without a plan."""
    own = scenario.cluster.num_gpus if scenario.is_open else scenario.plan.num_gpus
    fewest, most = gpus or (own, own)
    if fewest > most or fewest < 1:
        raise SpecError(
            f"no number of GPUs is at least {fewest} and at most {most}; give --gpus 64..4096, smaller first"
        )
    return fewest, most


def _rules(scenario: Scenario, any_framework: bool, export_to: str | None) -> tuple[tuple[PlanRule, ...], str]:
    """What every plan must keep, each rule once; and of which frameworks that is, in words."""
    own, named = scenario.stack.framework, list[tuple[str, str]]()
    target = None if export_to is None else framework_named(export_to)
    if not any_framework and (target is None or related(own, target)):
        named.append((own, scenario.stack.version))
    if target is not None:
        named.append((target, ""))
    found = [(plan_rules(*each), framework_words(*each)) for each in named]
    words = " and ".join(dict.fromkeys(word for rules, word in found if rules))
    return tuple(dict.fromkeys(rule for rules, _ in found for rule in rules)), words
