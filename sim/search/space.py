"""The space of plans, as a table: every combination of the axes that keeps the rules of the descriptions.

Rows have numbers; choices that formulas branch on are categories. A plan is a row in a category.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Ints
from sim.errors import InfeasiblePlan, SpecError, nearest
from sim.pricing.deal import dealt_layers, stages_alike
from sim.pricing.layouts import LAYOUT
from sim.schedules import Schedule, get_schedule
from sim.search.fields import (
    FIELDS,
    NUMBERS,
    RECOMPUTES,
    ROOM,
    SAVING,
    SCHEDULES,
    Fields,
    agrees,
    base_plan,
    sharding_fields,
    values_of,
)
from sim.search.layouts import cuts_sequences, divisors, find_layouts
from sim.specs import ParallelPlan, Scenario
from sim.specs.framework_plans import PlanRule
from sim.specs.plan import LAYERED, RECOMPUTE_MODULES
from sim.units import value_words
from sim.work.recompute import own_modules

Progress = Callable[[int, int], object]
"""Called with (done, in all)."""
Shapes = Callable[[int, int], Array]
"""(micro-batch size, place of the schedule, chunks) of ways to run so many sequences through so many pipeline ranks."""
MOST_UNEVEN_CHUNKS = 4
"""Chunks a rank that are tried where the ranks do not divide the layers, under schedules that take any number."""
OF_COLUMNS = (*NUMBERS, "sequence_parallel", "num_gpus")
"""Fields of a plan that are columns as they are."""
OF_CATEGORIES = ("recompute", "zero_stage", *ROOM)
"""Fields of a plan that its category says."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of many plans, one row a plan.

    layout : which of the space's layouts (tp, cp, pp, dp, ep) each row has.
    schedule : place in the space's schedules.
    """

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    num_chunks: Ints
    microbatch_size: Ints
    schedule: Ints
    sequence_parallel: Bools
    layout: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Ints | slice) -> Columns:
        """Some of the rows."""
        return Columns(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def num_gpus(self) -> Ints:
        """GPUs of each plan."""
        return np.asarray(self.tp * self.cp * self.pp * self.dp)


@dataclass(frozen=True, slots=True)
class Category:
    """The choices that many rows share, by the names of the plan's fields."""

    recompute: str
    zero_stage: int
    recompute_modules: tuple[str, ...] = ()
    recompute_method: str = "uniform"
    recompute_num_layers: int = 1
    optimizer_offload: float = 0.0
    offloaded_layers: int = 0

    @classmethod
    def of(cls, own: ParallelPlan, recompute: str, zero_stage: int, **more: Any) -> Category:
        """A category in which selective recomputation runs the modules of the scenario's own plan again."""
        return cls(recompute, zero_stage, own_modules(own) if recompute == "selective" else (), **more)

    @property
    def runs_again(self) -> frozenset[str]:
        """Modules of operations that run again; for whole layers, a name that no module has."""
        if self.recompute in ("full", "per_op"):
            return frozenset({self.recompute})
        return frozenset(part for name in self.recompute_modules for part in RECOMPUTE_MODULES[name])

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of its plans."""
        return {name: getattr(self, name) for name in OF_CATEGORIES}


@dataclass(frozen=True)
class Space:
    """Plans as a table: rows of numbers, each in every category that it may have.

    layouts : array of (tp, cp, pp, dp, ep).
    columns : layout × micro-batch × schedule and chunks × sequence parallelism, row by row.
    categories : choices that do not broadcast.
    rules : what frameworks ask of every plan. runs_on : these frameworks, in words; empty: any plan is in the space.
    fixed : fields of plans that are set, and not searched. Under schedules with a closed form those of SAVING are not
        kept here: a plan that does not fit is made to fit from one that saves nothing.
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
    def fixed_saving(self) -> dict[str, Any]:
        """Fields that are set and say what runs again or lies in host memory."""
        return {name: value for name, value in self.fixed.items() if name in SAVING}

    @property
    def num_microbatches(self) -> Ints:
        """Micro-batches of each row's pipelines in a step."""
        columns = self.columns
        return np.asarray(self.scenario.training.global_batch_size // (columns.dp * columns.microbatch_size))

    @cached_property
    def kept(self) -> Bools:
        """(categories, rows): which plans are searched, since they keep the rules and have the fields that are set."""
        rules, formula = self.rules, self.schedules == SCHEDULES
        left_out = SAVING if formula else ("schedule",)
        fixed = {name: value for name, value in self.fixed.items() if name not in left_out}
        if not formula and not all(map(self.has_schedule, self.schedules)):
            # Of a schedule that the framework does not have the other rules count: what it would gain can be asked.
            rules = tuple(rule for rule in rules if rule.field not in ("schedule", "num_chunks"))
        kept = np.ones((len(self.categories), len(self.columns)), dtype=bool)
        for category, rows in zip(self.categories, kept, strict=True) if rules or fixed else ():
            rows &= self._keep(rules, fixed, self.fields_of(category, self.columns))
        return kept

    @cached_property
    def plans(self) -> tuple[Ints, Ints]:
        """(number of the category, row) of every plan, category by category."""
        category, row = np.nonzero(self.kept)
        return category, row

    @cached_property
    def num_plans(self) -> int:
        """Plans over all categories."""
        return int(np.count_nonzero(self.kept))

    def has_schedule(self, schedule: str) -> bool:
        """Whether the framework has a schedule, with as many chunks as it takes."""
        taken = get_schedule(schedule).chunks
        plan = {**self._base, "pp": 2, "schedule": schedule, "num_chunks": {"one": 1, "many": 2}.get(str(taken), taken)}
        return all(rule.holds(self.scenario, plan) for rule in self.rules if rule.field in ("schedule", "num_chunks"))

    def keeps_room(self, category: Category, rows: Ints, **changed: Any) -> Bools:
        """Which rows keep those rules that speak of what is recomputed or kept in host memory."""
        rules = [rule for rule in self.rules if rule.names & {*SAVING}]
        if not rules:
            return np.ones(len(rows), dtype=bool)
        return self._keep(rules, {}, {**self.fields_of(category, self.columns.take(rows)), **changed})

    def _keep(self, rules: Sequence[PlanRule], fixed: Fields, plan: Mapping[str, Any]) -> Bools:
        """Whether plans, of which some fields are columns, keep some rules and have some fields."""
        kept = np.ones(len(plan["tp"]), dtype=bool)
        for rule in rules:
            kept &= rule.holds(self.scenario, plan)
        for name, wanted in fixed.items():
            value = plan[name]
            kept &= np.isin(value, wanted) if isinstance(value, np.ndarray) else agrees(name, value, wanted)
        return kept

    @cached_property
    def _base(self) -> dict[str, Any]:
        return dict(base_plan(self.scenario))

    def fields_of(self, category: Category, columns: Columns) -> dict[str, Any]:
        """Fields of plans: columns, and what is the same for all of them."""
        etp = columns.tp if self.scenario.plan.etp > 1 else 1
        return {**self._base, "num_gpus": columns.num_gpus, "etp": etp, **self._varied(category, columns)}

    def _varied(self, category: Category, columns: Columns) -> dict[str, Any]:
        """Fields of plans that a search sets."""
        dealt, stages = dealt_layers(self.scenario.model, self.scenario.plan), columns.pp * columns.num_chunks
        return {
            **{name: getattr(columns, name) for name in (*NUMBERS, "sequence_parallel")},
            "schedule": np.array(self.schedules)[columns.schedule],
            **category.fields,
            **sharding_fields(category.zero_stage, self.scenario.plan),
            # Some stages hold a layer more; modular pipelines may have more stages than layers.
            "uneven_layers": (dealt % stages != 0) & (stages <= dealt),
        }

    def masks(self, fields: Fields, categories: Sequence[Category]) -> tuple[Bools, Bools]:
        """Which rows, and which of some categories, have these fields.

        Raises SpecError: a field that a search does not vary.
        """
        rows, able = np.ones(len(self.columns), bool), np.ones(len(categories), bool)
        for name, value in fields.items():
            if name in OF_CATEGORIES:
                able &= [agrees(name, getattr(each, name), value) for each in categories]
            elif name in (*OF_COLUMNS, "schedule"):
                values = values_of(fields, name)
                if name == "schedule":
                    values = tuple(self.schedules.index(each) for each in values if each in self.schedules)
                rows &= np.isin(getattr(self.columns, name), values)
            else:
                raise SpecError(f"a search does not vary {name!r} of a plan{nearest(name, FIELDS)}")
        return rows, able

    def scenario_of(self, row: int, category: Category) -> Scenario:
        """One plan as a scenario that can be estimated."""
        varied = self._varied(category, self.columns.take(slice(row, row + 1)))
        one = {name: value.item() if isinstance(value, np.ndarray) else value for name, value in varied.items()}
        return self.scenario.replace(plan=base_plan(self.scenario).replace(**one, sequence_slices=self.slices))

    def cuts_experts_as(self, plan: ParallelPlan) -> bool:
        """Whether a plan's experts are whole or cut as those of all plans of the space."""
        return plan.etp == (plan.tp if self.scenario.plan.etp > 1 else 1)


def build_space(
    scenario: Scenario,
    gpus: tuple[int, int],
    *,
    rules: Sequence[PlanRule] = (),
    runs_on: str = "",
    fixed: Fields | None = None,
) -> Space:
    """Every plan between two numbers of GPUs that keeps the rules of ParallelPlan, Scenario and the schedules.

    gpus : fewest and most.
    rules : what frameworks ask of every plan.
    runs_on : these frameworks, in words.
    fixed : fields of plans that are set, each with its value or a tuple of values.

    Raises InfeasiblePlan: no plan keeps the rules; the message says which one left nothing.
    """
    fixed = fixed or {}
    layouts = find_layouts(scenario, gpus, fixed)
    # Every other multiply (per_op) is recomputed where a framework is asked, or a plan that is set does so.
    # CUDA graphs of single layers rule out full recomputation.
    able = {
        "per_op": bool(rules) or "per_op" in (scenario.plan.recompute, *values_of(fixed, "recompute")),
        "full": not scenario.stack.cuda_graph_scope,
    }
    choices = product((mode for mode in RECOMPUTES if able.get(mode, True)), range(4))
    categories = tuple(Category.of(scenario.plan, *each) for each in choices)
    columns = columns_of(scenario, layouts, partial(shapes, scenario, SCHEDULES, 1))
    whole = Space(scenario, layouts, columns, categories, tuple(rules), runs_on, fixed)
    if not rules and not {*fixed} - {*SAVING}:
        return whole
    if not whole.num_plans:
        raise InfeasiblePlan(_nothing_kept(whole))
    # Layouts of which no plan is kept are not priced.
    kept = np.isin(np.arange(len(layouts)), columns.layout[whole.kept.any(axis=0)])
    there = np.asarray(whole.kept.any(axis=1)).tolist()
    columns = columns.take(np.flatnonzero(kept[columns.layout]))
    columns = replace(columns, layout=(np.cumsum(kept) - 1)[columns.layout])
    categories = tuple(each for each, any_row in zip(categories, there, strict=True) if any_row)
    return replace(whole, layouts=layouts[kept], columns=columns, categories=categories)


def columns_of(scenario: Scenario, layouts: Array, shapes: Shapes) -> Columns:
    """Every way to run some layouts, as columns: those without sequence parallelism, then those with it."""
    batch, pairs = scenario.training.global_batch_size, [(pp, dp) for pp, dp in layouts[:, 2:4].tolist()]
    found = {(pp, dp): shapes(pp, batch // dp) for pp, dp in dict.fromkeys(pairs)}
    which = np.repeat(np.arange(len(layouts)), np.array([len(found[pair]) for pair in pairs], dtype=np.int64))
    # Tensor-parallel ranks route tokens to experts each for itself.
    without = (layouts[:, 0] == 1) | (not scenario.model.num_experts)
    able = without[which], cuts_sequences(layouts, scenario.training.sequence_length)[which]
    row = np.concatenate([np.flatnonzero(each) for each in able])
    cut = np.repeat([False, True], [np.count_nonzero(each) for each in able])
    size, schedule, num_chunks = np.concatenate([np.empty((0, 3), np.int64), *(found[pair] for pair in pairs)])[row].T
    tp, cp, pp, dp, ep = layouts[which[row]].T
    return Columns(tp, cp, pp, dp, ep, num_chunks, size, schedule, cut, which[row])


def shapes(scenario: Scenario, schedules: Sequence[str], slices: int, pp: int, per_replica: int) -> Array:
    """`Shapes` of a space under some schedules.

    Of several schedules, those with a closed form, each GPipe shape stands before the 1F1B shape of the same numbers.
    """
    able = [get_schedule(name) for name in schedules]
    uneven = range(1, MOST_UNEVEN_CHUNKS + 1) if len(able) == 1 else (1,)  # which the closed form prices in one chunk
    chunks = [_chunks_under(scenario, chosen, slices, pp, uneven) for chosen in able]
    rows = [
        (size, place, each)
        for size in divisors(per_replica)
        for place, chosen in enumerate(able)
        for each in chunks[place]
        if per_replica // size % chosen.copies == 0 and chosen.requirement(pp, each, per_replica // size) is None
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)


def _chunks_under(scenario: Scenario, chosen: Schedule, slices: int, pp: int, uneven: Sequence[int]) -> list[int]:
    """Numbers of chunks under a schedule that keep the rules of ParallelPlan and Scenario.

    uneven : those that are tried where the ranks do not divide the layers.
    """
    model, dealt = scenario.model, dealt_layers(scenario.model, scenario.plan)
    numbers = divisors(dealt // pp) if dealt % pp == 0 else [each for each in uneven if dealt // (pp * each) >= 1]
    numbers = [each for each in numbers if each == 1 or stages_alike(model, scenario.plan, pp, each)]
    if chosen.name == "modular":
        numbers = [each for each in numbers if pp * each == model.num_layers]
    if chosen.chunks != "many":
        numbers = [each for each in numbers if each == (1 if chosen.chunks == "one" else chosen.chunks)]
    # Without a pipeline slices keep less; all other orders but those in layers are that of 1F1B, or keep more.
    if pp > 1 or slices > 1:
        return numbers
    return [each for each in numbers if (chosen.name in LAYERED if each > 1 else chosen.name == "1f1b")]


def _nothing_kept(whole: Space) -> str:
    """Which fields that are set, or which of the framework's rules, leave no plan."""
    free = replace(whole, rules=(), fixed={})
    fixed = {name: value for name, value in whole.fixed.items() if name not in SAVING}
    degrees = " and ".join(f"plan.{name} = {value_words(fixed[name])}" for name in LAYOUT if name in fixed)
    for name, value in fixed.items():
        if name not in LAYOUT and not replace(free, fixed={name: value}).num_plans:
            plans = [free.fields_of(each, free.columns)[name] for each in free.categories]
            there = np.unique(np.concatenate([np.unique(each) for each in plans])).tolist()
            return (
                f"no plan{f' with {degrees}' if degrees else ''} has plan.{name} = {value_words(value)}; the scenario, "
                f"its GPUs and the degrees that are searched leave {', '.join(map(value_words, there[:12]))}"
                f"{' …' * (len(there) > 12)}"
            )
    words = " and ".join(f"plan.{name} = {value_words(value)}" for name, value in fixed.items())
    if fixed and not replace(free, fixed=fixed).num_plans:
        return f"no plan has {words} at once; leave one of them free"
    beside = f"with {words} " if fixed else ""
    framework = whole.runs_on or "the framework"
    for rule in whole.rules:
        if not replace(whole, rules=(rule,)).num_plans:
            why, nearest = rule.words(dict(whole.scenario.plan))
            return f"{framework} can run no plan {beside}here: {why}; nearest: {nearest}, or --any-framework"
    return f"{framework} can run no plan {beside}here; leave more fields free, or ask for --any-framework"
