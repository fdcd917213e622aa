"""Fields of plans: which of them a search varies, which a user sets, and what follows when some of them change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from sim.errors import SpecError, nearest
from sim.pricing.layouts import LAYOUT
from sim.schedules import get_schedule
from sim.specs import ParallelPlan, Scenario
from sim.specs.base import as_names
from sim.specs.yaml12 import parse_yaml

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules that the closed form describes; the column `schedule` holds places in this tuple."""
RECOMPUTES = ("none", "selective", "per_op", "full")
NUMBERS = (*LAYOUT, "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")
ROOM = ("recompute_modules", "recompute_method", "recompute_num_layers", "optimizer_offload", "offloaded_layers")
"""Fields of a plan that a search varies where a plan would not fit otherwise (`sim.search.room`)."""
SAVING = ("recompute", *ROOM)
"""Fields that say what runs again or lies in host memory."""
FIELDS = (*NUMBERS, "schedule", *CHOICES, *ROOM)
"""Fields of a plan that a search varies."""
NOT_KEPT = {
    "pipeline_layout": "a search deals the layers itself, with --layouts by balanced layouts; flopcast estimate prices "
    "a layout of your own",
    "microbatch_group": "a search lets groups be as large as the pipeline is long; flopcast estimate prices others",
    "microbatches_per_flush": "a search drains pipelines once a step, which is faster; flopcast estimate prices others",
    "sequence_slices": "--schedules seq1f1b searches slices",
}
"""Fields that a search cannot keep, and what to do instead."""
Fields = Mapping[str, Any]
"""Fields of a plan, each with its value or a tuple of values, such as {"tp": 4, "zero_stage": (0, 1)}; {} is any."""


def values_of(fields: Fields, name: str) -> tuple[Any, ...]:
    """Values that a field may have; none where any will do."""
    value = fields.get(name, ())
    return value if isinstance(value, tuple) else (value,)


def agrees(name: str, value: Any, wanted: Any) -> bool:
    """Whether a field's value is the one that is wanted, or one of several; the order of modules does not matter."""
    if name == "recompute_modules":
        return set(value) == set(as_names(wanted))
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


def has_fields(plan: ParallelPlan | Fields, fields: Fields) -> bool:
    """Whether a plan has some fields, or may have them where not all of its own are known."""
    known = {**dict(plan), "num_gpus": plan.num_gpus} if isinstance(plan, ParallelPlan) else plan
    return all(agrees(name, known[name], wanted) for name, wanted in fields.items() if name in known)


def base_plan(scenario: Scenario) -> ParallelPlan:
    """Plan with what a search keeps of the scenario's own: the placement of ranks, how embedding and head are counted,
    how ZeRO shards, and whether experts are cut over the tensor-parallel group, whose degree is then kept too.
    """
    plan = scenario.plan
    cut = {name: getattr(plan, name) for name in ("tp", "etp", "sequence_parallel")} if plan.etp > 1 else {}
    stage = 3 if plan.reshard_after_forward is not True else 0
    kept = {name: getattr(plan, name) for name in ("placement", "embedding_as_layer", "head_as_layer")}
    sharding = sharding_fields(max(stage, 1) if plan.sharding_group else stage, plan)
    return ParallelPlan(**cut, dp=plan.sharding_group or 1, **kept, **sharding)


def sharding_fields(zero_stage: int, plan: ParallelPlan) -> dict[str, Any]:
    """Fields of a plan that a search tries with a ZeRO stage: the stage, and how the scenario's own plan shards."""
    group = {"sharding_group": plan.sharding_group} if zero_stage else {}
    of_weights = {"reshard_after_forward": plan.reshard_after_forward} if zero_stage == 3 else {}
    return {"zero_stage": zero_stage, **group, **of_weights}


def read_words(scenario: Scenario, words: Sequence[str]) -> dict[str, Any]:
    """The fields of plans that words such as `tp=8`, `plan.tp=[4,8]` and `tp` (the scenario's own value) name.

    Raises SpecError: no such field, or one field twice.
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
    return fixed


def as_fixed(scenario: Scenario, words: Sequence[str]) -> tuple[Scenario, dict[str, Any]]:
    """The scenario, and the fields of plans that words set, as `read_words` reads them.

    What a search does not vary (where ranks lie, groups that shard) is set in the scenario's plan too.

    Raises SpecError: no such field, a value that it cannot have, or one field twice.
    """
    fixed = read_words(scenario, words)
    searched = read_fixed(fixed)
    if isinstance(fixed.get("etp"), tuple):
        raise SpecError(f"a search takes one plan.etp, not {len(fixed['etp'])}; ask once for each")
    for name, value in searched.items():
        several = (value,) if name == "recompute_modules" else values_of(searched, name)
        for each in several if name in (*FIELDS, "etp") else ():
            check_value(name, each)
    if kept := {name: value for name, value in searched.items() if name not in FIELDS}:
        old, size = scenario.plan, scenario.plan.num_gpus
        tp = fixed.get("tp", old.tp) if "etp" in kept else old.tp
        etp = kept.setdefault("etp", tp if old.etp > 1 else 1)
        if size % (tp * old.cp * old.pp):
            raise SpecError(f"tp · cp · pp = {tp * old.cp * old.pp} does not divide {size:,} GPUs")
        dp = size // (tp * old.cp * old.pp)
        cut = {"tp": tp, "dp": dp, "ep": gcd(old.ep, tp * old.cp * dp // etp)}
        scenario = scenario.replace(plan=ParallelPlan.read({**old.model_dump(), **cut, **kept}, "plan"))
    return scenario, fixed


def check_value(name: str, value: Any) -> None:
    """Raise where a field of plans cannot have a value, whatever the others are."""
    replicas = value if name == "ep" and isinstance(value, int) and value > 0 else 1
    mode = {"recompute_modules": "selective"}.get(name, "full" if name.startswith("recompute_") else "none")
    cut = value if name == "etp" else 2
    ParallelPlan.read({"tp": cut, "pp": 2, "dp": replicas, "recompute": mode, name: value}, "plan")
    if name == "schedule":
        get_schedule(value)


def read_fixed(fixed: Fields) -> dict[str, Any]:
    """Fields that every plan is to have, each as its record has it; without those that say what a search does anyway.

    Raises SpecError: one is no field of plans, has a value that no plan has, or cannot be kept by a search.
    """
    found = dict[str, Any]()
    for name, value in fixed.items():
        if name not in (*ParallelPlan.model_fields, "num_gpus"):
            raise SpecError(f"plan.{name} is no field of a plan{nearest(name, ParallelPlan.model_fields)}")
        if name in NOT_KEPT:
            if value not in (ParallelPlan.model_fields[name].default, None):
                raise SpecError(f"a search cannot keep plan.{name} = {value}: {NOT_KEPT[name]}; leave it out")
            continue
        if name == "schedule" and not {*values_of(fixed, name)} & {*SCHEDULES}:
            raise SpecError(
                f"a search cannot keep plan.schedule = {value}: it prices {', '.join(SCHEDULES)}; --schedules {value} "
                "searches that one besides"
            )
        if name == "recompute_modules" and not isinstance(value := as_names(value), (list, tuple)):
            raise SpecError(f"plan.recompute_modules = {value} is no list of modules, such as [mlp]")
        found[name] = tuple(value) if name == "recompute_modules" else value
    return found
