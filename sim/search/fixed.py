"""Fields of a plan that are set: a search keeps them and varies the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.errors import SpecError, nearest
from sim.schedules import get_schedule
from sim.search.plans.layouts import FIELDS, ROOM, SCHEDULES, completed_plan
from sim.specs import ParallelPlan, Scenario
from sim.specs.base import as_names
from sim.specs.framework_plans import PlanRule
from sim.specs.yaml12 import parse_yaml

_CANNOT = {
    "pipeline_layout": "a search deals the layers itself; flopcast estimate prices a layout of your own",
    "microbatch_group": "a search lets groups be as large as the pipeline is long; flopcast estimate prices others",
    "microbatches_per_flush": "a search drains pipelines once a step, which is faster; flopcast estimate prices others",
    "sequence_slices": "--schedules seq1f1b searches slices",
}
"""Fields that a search cannot keep, and what to do instead."""


def as_fixed(scenario: Scenario, words: Sequence[str]) -> tuple[Scenario, dict[str, Any]]:
    """The scenario, and the fields of plans that words such as `tp=8`, `plan.tp=[4,8]` and `tp` (its own value) set.

    What a search does not vary (where ranks lie, groups that shard) is set in the scenario's plan too.

    Raises SpecError: no such field, a value that it cannot have, or one field twice.
    """
    fixed: dict[str, Any] = {}
    for word in words:
        path, equals, value = word.partition("=")
        name = path.strip().removeprefix("plan.")
        if name not in ParallelPlan.model_fields:
            raise SpecError(f"plan.{name} is no field of a plan{nearest(name, ParallelPlan.model_fields)}")
        if name in fixed:
            raise SpecError(f"plan.{name} is set twice; keep one")
        said = parse_yaml(value, word) if equals else getattr(scenario.plan, name)
        fixed[name] = tuple(said) if isinstance(said, list) and name != "recompute_modules" else said
    split_fixed(fixed)
    kept = {name: value for name, value in fixed.items() if name not in FIELDS and name not in _CANNOT}
    if isinstance(fixed.get("etp"), tuple):
        raise SpecError(f"a search takes one plan.etp, not {len(fixed['etp'])}; ask once for each")
    for name, value in fixed.items():
        for each in _several(value) if name in (*FIELDS, "etp") else ():
            check_value(name, each)
    if kept:
        others = {"tp": fixed["tp"]} if "etp" in kept and "tp" in fixed else {}
        plan = completed_plan(scenario.plan, scenario.model.num_layers, {**others, **kept})
        scenario = scenario.replace(plan=plan)
    return scenario, fixed


def check_value(name: str, value: Any) -> None:
    """Raise where a field of plans cannot have a value, whatever the others are."""
    replicas = value if name == "ep" and isinstance(value, int) and value > 0 else 1
    mode = {"recompute_modules": "selective"}.get(name, "full" if name.startswith("recompute_") else "none")
    cut = value if name == "etp" else 2
    ParallelPlan.read({"tp": cut, "pp": 2, "dp": replicas, "recompute": mode, name: value}, "plan")
    if name == "schedule":
        get_schedule(value)


def split_fixed(fixed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields that leave plans out of the space, those of ways to make room), each as their record has it.

    Raises SpecError: one is no field of plans, has a value that no plan has, or cannot be kept by a search.
    """
    in_space: dict[str, Any] = {}
    ways: dict[str, Any] = {}
    for name, value in fixed.items():
        if name not in (*ParallelPlan.model_fields, "num_gpus"):
            raise SpecError(f"plan.{name} is no field of a plan{nearest(name, ParallelPlan.model_fields)}")
        if name in _CANNOT and value not in (ParallelPlan.model_fields[name].default, None):
            raise SpecError(f"a search cannot keep plan.{name} = {value}: {_CANNOT[name]}; leave it out")
        if name in _CANNOT:
            continue
        if name == "schedule" and not {*_several(value)} & {*SCHEDULES}:
            raise SpecError(
                f"a search cannot keep plan.schedule = {value}: it prices {', '.join(SCHEDULES)}; --schedules {value} "
                "searches that one besides"
            )
        if name == "recompute_modules":
            names = as_names(value)
            if not isinstance(names, (list, tuple)):
                raise SpecError(f"plan.recompute_modules = {value} is no list of modules, such as [mlp]")
            ways[name] = tuple(names)
        else:
            (ways if name in ("recompute", *ROOM) else in_space)[name] = value
    return in_space, ways


def values_of(fixed: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Values of a field that is set; none where it is free."""
    return tuple(_several(fixed[name])) if name in fixed else ()


def has_layouts(scenario: Scenario, rules: Sequence[PlanRule], fixed: Mapping[str, Any]) -> bool:
    """Whether a framework is known to take a layout that says what each stage holds, and no such field is set."""
    if {"embedding_as_layer", "head_as_layer", "uneven_layers"} & {*fixed}:
        return False
    plan = {**dict(scenario.plan), "pp": 2, "num_chunks": 1, "pipeline_layout": "Et|tL"}
    return bool(rules) and all(bool(rule.holds(scenario, plan)) for rule in rules if "pipeline_layout" in rule.names)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)
