"""The space of plans, as a table: every combination of the axes that keeps the rules of the descriptions.

Fields of a plan that are set are kept, and the others vary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Ints, Number
from sim.errors import InfeasiblePlan, SpecError, nearest
from sim.pricing.deal import dealt_layers
from sim.schedules import get_schedule
from sim.search.plans.layouts import (
    CHOICES,
    FIELDS,
    NUMBERS,
    RECOMPUTES,
    ROOM,
    SCHEDULES,
    Category,
    Columns,
    completed_plan,
    cuts_sequences,
    find_layouts,
    shapes,
)
from sim.specs import ParallelPlan, Scenario
from sim.specs.base import as_names
from sim.specs.framework_plans import PlanRule
from sim.specs.yaml12 import parse_yaml
from sim.units import value_words

Fields = Mapping[str, Any]
"""Fields of a plan, each with its value or a tuple of values, such as {"tp": 4, "zero_stage": (0, 1)}; {} is any."""
Progress = Callable[[int, int], object]
"""Called with (done, in all)."""
OF_CATEGORIES = frozenset({*CHOICES, *ROOM, "sharding_group", "reshard_after_forward"})
"""Fields of a plan that its category says."""


def agrees(name: str, value: Any, wanted: Any) -> bool:
    """Whether a field's value is the one that is wanted, or one of several; the order of modules does not matter."""
    if name == "recompute_modules":
        return set(value) == set(as_names(wanted))
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)


def has_fields(plan: ParallelPlan | Fields, fields: Fields) -> bool:
    """Whether a plan has some fields, or may have them where not all of its own are known."""
    known = {**dict(plan), "num_gpus": plan.num_gpus} if isinstance(plan, ParallelPlan) else plan
    return all(agrees(name, known[name], wanted) for name, wanted in fields.items() if name in known)


@dataclass(frozen=True)
class Space:
    """Plans as a table: rows of numbers (layout × micro-batch × schedule and chunks), each in every category.

    layouts : array of (tp, cp, pp, dp, ep).
    columns : layout × micro-batch × schedule and chunks, row by row.
    categories : choices that do not broadcast.
    rules : what frameworks ask of every plan. runs_on : these frameworks, in words; empty: any plan is in the space.
    fixed : fields of plans that are set, and not searched.
    schedules : names to which the column `schedule` points; default: those with a closed form.
    slices : parts that every sequence is cut into.
    """

    scenario: Scenario
    layouts: Array
    columns: Columns
    categories: tuple[Category, ...]
    rules: tuple[PlanRule, ...] = ()
    runs_on: str = ""
    fixed: Fields = field(default_factory=dict)
    schedules: tuple[str, ...] = SCHEDULES
    slices: int = 1

    @property
    def num_microbatches(self) -> Ints:
        """Micro-batches of each row's pipelines in a step."""
        columns = self.columns
        return np.asarray(self.scenario.training.global_batch_size // (columns.dp * columns.microbatch_size))

    @cached_property
    def searched(self) -> tuple[Bools, Bools]:
        """Rows that may run without sequence parallelism, and with."""
        # Tensor-parallel ranks route tokens to experts each for itself.
        without = (self.layouts[:, 0] == 1) | (not self.scenario.model.num_experts)
        cut = cuts_sequences(self.layouts, self.scenario.training.sequence_length)
        return without[self.columns.layout], cut[self.columns.layout]

    def rows_of(self, sequence_parallel: bool) -> Ints:
        """Rows that may run with or without sequence parallelism."""
        return np.flatnonzero(self.searched[sequence_parallel])

    @cached_property
    def _asked(self) -> tuple[tuple[PlanRule, ...], Fields]:
        """Rules that plans keep, and fields that they have.

        Of a schedule that the framework does not have the other rules count: what it would gain can be asked.
        """
        if self.schedules == SCHEDULES:
            return self.rules, self.fixed
        fixed = {name: value for name, value in self.fixed.items() if name != "schedule"}
        if all(map(self.has_schedule, self.schedules)):
            return self.rules, fixed
        return tuple(rule for rule in self.rules if rule.field not in ("schedule", "num_chunks")), fixed

    @cached_property
    def kept(self) -> dict[Category, Bools]:
        """Which rows are searched in each category: those that keep the rules and have the fields that are set."""
        columns, (rules, fixed) = self.columns, self._asked
        alike = tuple(rule for rule in rules if not rule.names & OF_CATEGORIES)
        others = tuple(rule for rule in rules if rule.names & OF_CATEGORIES)
        same = self._keep(alike, {}, self.fields_of(self.categories[0], columns), len(columns)) if alike else True
        found = {}
        for each in self.categories:
            found[each] = self.searched[each.sequence_parallel] & same
            if others or fixed:
                found[each] &= self._keep(others, fixed, self.fields_of(each, columns), len(columns))
        return found

    @cached_property
    def plans(self) -> tuple[Ints, Ints]:
        """(row, number of the category) of every plan, category by category."""
        rows = [np.flatnonzero(self.kept[each]) for each in self.categories]
        return np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(each) for each in rows])

    @cached_property
    def num_plans(self) -> int:
        """Plans over all categories."""
        return sum(int(np.count_nonzero(rows)) for rows in self.kept.values())

    def has_schedule(self, schedule: str) -> bool:
        """Whether the framework has a schedule, with as many chunks as it takes."""
        taken = get_schedule(schedule).chunks
        plan = {**self._base, "pp": 2, "schedule": schedule, "num_chunks": {"one": 1, "many": 2}.get(str(taken), taken)}
        return all(rule.holds(self.scenario, plan) for rule in self.rules if rule.field in ("schedule", "num_chunks"))

    def keeps_room(self, category: Category, rows: Ints, **changed: Any) -> Bools:
        """Which rows keep those rules that speak of what is recomputed or kept in host memory."""
        if not self._rules_of_room:
            return np.ones(len(rows), dtype=bool)
        plan = {**self.fields_of(category, self.columns.take(rows)), **changed}
        return self._keep(self._rules_of_room, {}, plan, len(rows))

    @cached_property
    def _rules_of_room(self) -> tuple[PlanRule, ...]:
        return tuple(rule for rule in self.rules if rule.names & {"recompute", *ROOM})

    def _keep(self, rules: Sequence[PlanRule], fixed: Fields, plan: Mapping[str, Any], size: int) -> Bools:
        kept = np.ones(size, dtype=bool)
        for rule in rules:
            kept &= rule.holds(self.scenario, plan)
        for name, values in fixed.items():
            kept &= np.isin(plan[name], values)
        return kept

    @cached_property
    def _base(self) -> dict[str, Any]:
        return dict(base_plan(self.scenario))

    def fields_of(self, category: Category, columns: Columns) -> dict[str, Any]:
        """Fields of plans: columns, and what is the same for all of them."""
        own = self.scenario.plan
        numbers = {name: getattr(columns, name) for name in (*NUMBERS, "num_gpus")}
        return {
            **self._base,
            **numbers,
            "schedule": np.array(self.schedules)[columns.schedule],
            **category.fields,
            **sharding_fields(category.zero_stage, own),
            "uneven_layers": self._uneven(columns.pp * columns.num_chunks),
            "etp": columns.tp if own.etp > 1 else 1,
        }

    def masks(self, fields: Fields, categories: Sequence[Category] | None = None) -> tuple[Bools, Bools]:
        """Which rows, and which of the categories (default: the space's), have these fields.

        Raises SpecError: a field that a search does not vary.
        """
        there = self.categories if categories is None else categories
        rows, able = np.ones(len(self.columns), bool), np.ones(len(there), bool)
        for name, value in fields.items():
            if name not in (*FIELDS, "num_gpus"):
                raise SpecError(f"a search does not vary {name!r} of a plan{nearest(name, FIELDS)}")
            if name in (*CHOICES, *ROOM):
                able &= [agrees(name, getattr(each, name), value) for each in there]
                continue
            values = value if isinstance(value, tuple) else (value,)
            if name == "schedule":
                values = tuple(self.schedules.index(each) for each in values if each in self.schedules)
            rows &= np.isin(getattr(self.columns, name), values)
        return rows, able

    def having(self, fields: Fields) -> Space | None:
        """The part of the space with some fields; None where it has no plan."""
        rows, able = self.masks(fields)
        if not (rows.any() and able.any()):
            return None
        categories = tuple(each for each, there in zip(self.categories, able.tolist(), strict=True) if there)
        part = replace(self, columns=self.columns.take(np.flatnonzero(rows)), categories=categories)
        return part if part.num_plans else None

    def gpus_of(self, rows: Array) -> Array:
        """GPUs of some rows."""
        return np.asarray(self.columns.num_gpus[rows])

    def scenario_of(self, row: int, category: Category) -> Scenario:
        """One plan as a scenario that can be estimated."""
        columns, own = self.columns, self.scenario.plan
        numbers = {name: int(getattr(columns, name)[row]) for name in NUMBERS}
        plan = base_plan(self.scenario).replace(
            **numbers,
            uneven_layers=bool(self._uneven(numbers["pp"] * numbers["num_chunks"])),
            schedule=self.schedules[columns.schedule[row]],
            sequence_slices=self.slices,
            **{**category.fields, **sharding_fields(category.zero_stage, own)},
        )
        return self.scenario.replace(plan=plan)

    def _uneven(self, stages: Number) -> Any:
        """Whether some of so many stages hold a layer more; modular pipelines may have more stages than layers."""
        dealt = dealt_layers(self.scenario.model, self.scenario.plan)
        return (dealt % stages != 0) & (stages <= dealt)

    def cuts_experts_as(self, plan: ParallelPlan) -> bool:
        """Whether a plan's experts are whole or cut as those of all plans of the space."""
        return plan.etp == (plan.tp if self.scenario.plan.etp > 1 else 1)


def recomputes_of(scenario: Scenario, recomputes: Sequence[str]) -> tuple[str, ...]:
    """Ways to recompute that go with the scenario's CUDA graphs: graphs of single layers rule out full recomputation.

    Raises SpecError: none does.
    """
    left = tuple(mode for mode in recomputes if mode != "full" or not scenario.stack.cuda_graph_scope)
    if not left:
        raise SpecError(
            f"recompute {', '.join(recomputes)} does not go with stack.cuda_graphs: scoped; set it to none, or search "
            "other ways to recompute"
        )
    return left


def base_plan(scenario: Scenario) -> ParallelPlan:
    """Plan with what a search keeps of the scenario's own: the placement of ranks, how embedding and head are counted,
    how ZeRO shards, and whether experts are cut over the tensor-parallel group, whose degree is then kept too.
    """
    plan = scenario.plan
    cut = {name: getattr(plan, name) for name in ("tp", "etp", "sequence_parallel")} if plan.etp > 1 else {}
    stage = 3 if plan.reshard_after_forward is not True else 0
    if plan.sharding_group:
        stage = max(stage, 1)
    return ParallelPlan(
        **cut,
        dp=plan.sharding_group or 1,
        placement=plan.placement,
        embedding_as_layer=plan.embedding_as_layer,
        head_as_layer=plan.head_as_layer,
        **sharding_fields(stage, plan),
    )


def sharding_fields(zero_stage: int, plan: ParallelPlan) -> dict[str, Any]:
    """Fields of a plan that a search tries with a ZeRO stage: the stage, and how the scenario's own plan shards."""
    group = {"sharding_group": plan.sharding_group} if zero_stage else {}
    of_weights = {"reshard_after_forward": plan.reshard_after_forward} if zero_stage == 3 else {}
    return {"zero_stage": zero_stage, **group, **of_weights}


def build_space(
    scenario: Scenario,
    gpus: tuple[int, int],
    *,
    context: tuple[int, ...] = (1,),
    experts: tuple[int, ...] | None = None,
    recomputes: tuple[str, ...] | None = None,
    rules: Sequence[PlanRule] = (),
    runs_on: str = "",
    fixed: Fields | None = None,
) -> Space:
    """Every plan between two numbers of GPUs that keeps the rules of ParallelPlan, Scenario and the schedules.

    gpus : fewest and most.
    context : context-parallel degrees to try.
    experts : expert-parallel degrees to try. Default: every one that deals the model's experts evenly.
    recomputes : ways to recompute. Default: all; every other multiply (per_op) where a framework's rules are given, or
        the scenario's own plan does it.
    rules : what frameworks ask of every plan.
    runs_on : these frameworks, in words.
    fixed : fields of plans that are set, each with its value or a tuple of values.

    Raises InfeasiblePlan: no plan keeps the rules; the message says which one left nothing.
    """
    layouts = find_layouts(scenario, gpus, context, experts, fixed)
    if recomputes is None:
        operations = bool(rules) or scenario.plan.recompute == "per_op"
        recomputes = tuple(mode for mode in RECOMPUTES if mode != "per_op" or operations)
    choices = product((False, True), recomputes_of(scenario, recomputes), range(4))
    categories = tuple(Category.of(scenario.plan, recompute, sp, zero) for sp, recompute, zero in choices)
    columns = columns_of(scenario, layouts)
    whole = Space(scenario, layouts, columns, categories, tuple(rules), runs_on, fixed or {})
    if not rules and not fixed:
        return whole
    if not whole.num_plans:
        raise InfeasiblePlan(_nothing_kept(whole))
    # Layouts of which no plan is kept are not priced.
    kept = np.isin(np.arange(len(layouts)), columns.layout[np.any(list(whole.kept.values()), axis=0)])
    categories = tuple(each for each, rows in whole.kept.items() if rows.any())
    columns = columns.take(np.flatnonzero(kept[columns.layout]))
    columns = replace(columns, layout=(np.cumsum(kept) - 1)[columns.layout])
    return replace(whole, layouts=layouts[kept], columns=columns, categories=categories)


def columns_of(scenario: Scenario, layouts: Array, schedules: Sequence[str] = SCHEDULES, slices: int = 1) -> Columns:
    """Every micro-batch and number of chunks of some layouts under schedules, as columns."""
    batch, pairs = scenario.training.global_batch_size, [(pp, dp) for pp, dp in layouts[:, 2:4].tolist()]
    found = {(pp, dp): shapes(scenario, schedules, slices, pp, batch // dp) for pp, dp in dict.fromkeys(pairs)}
    which = np.repeat(np.arange(len(layouts)), [len(found[pair]) for pair in pairs])
    microbatch_size, schedule, num_chunks = np.concatenate([found[pair] for pair in pairs]).T
    tp, cp, pp, dp, ep = layouts[which].T
    return Columns(tp, cp, pp, dp, ep, num_chunks, microbatch_size, schedule, which)


def _nothing_kept(whole: Space) -> str:
    """Which fields that are set, or which of the framework's rules, leave no plan."""
    free = replace(whole, rules=(), fixed={})
    for name, value in whole.fixed.items():
        if not replace(free, fixed={name: value}).num_plans:
            there = sorted({each for category in free.categories for each in _values(free, category, name)})
            return (
                f"no plan has plan.{name} = {value_words(value)}; the scenario, its GPUs and the degrees that are "
                f"searched leave {', '.join(map(str, there[:12]))}{' …' * (len(there) > 12)}"
            )
    fixed = " and ".join(f"plan.{name} = {value_words(value)}" for name, value in whole.fixed.items())
    if whole.fixed and not replace(free, fixed=whole.fixed).num_plans:
        return f"no plan has {fixed} at once; leave one of them free"
    beside = f"with {fixed} " if fixed else ""
    framework = whole.runs_on or "the framework"
    for rule in whole.rules:
        if not replace(whole, rules=(rule,)).num_plans:
            why, nearest = rule.words(dict(whole.scenario.plan))
            return f"{framework} can run no plan {beside}here: {why}; nearest: {nearest}, or --any-framework"
    return f"{framework} can run no plan {beside}here; leave more fields free, or ask for --any-framework"


def _values(space: Space, category: Category, name: str) -> list[Any]:
    """Values that a field has in the plans of a category."""
    columns = space.columns.take(np.flatnonzero(space.kept[category]))
    plan = space.fields_of(category, columns)
    return list(np.unique(plan[name]).tolist()) if len(columns) else []


NOT_KEPT = {
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
    kept = {name: value for name, value in fixed.items() if name not in FIELDS and name not in NOT_KEPT}
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
        if name in NOT_KEPT and value not in (ParallelPlan.model_fields[name].default, None):
            raise SpecError(f"a search cannot keep plan.{name} = {value}: {NOT_KEPT[name]}; leave it out")
        if name in NOT_KEPT:
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
