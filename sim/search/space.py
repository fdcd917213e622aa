"""The space of plans: every combination of the axes that keeps the rules of the descriptions, as columns of numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from typing import Any, cast

import numpy as np

from sim.errors import InfeasiblePlan
from sim.specs import ClusterSpec, ModelSpec, ParallelPlan, Scenario, StackSpec, TrainingSpec

Array = np.ndarray

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Those the closed form describes; the column `schedule` holds places in this tuple."""
RECOMPUTES = ("none", "selective", "full")
OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward")
"""What a stack may do beside compute, and a search may switch on and off."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of many plans, one row a plan.

    layout : which of the space's layouts (tp, cp, pp, dp) each row has.
    schedule : place in SCHEDULES.
    """

    tp: Array
    cp: Array
    pp: Array
    dp: Array
    num_chunks: Array
    microbatch_size: Array
    schedule: Array
    layout: Array

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Array) -> Columns:
        """Some of the rows."""
        return Columns(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def num_gpus(self) -> Array:
        """GPUs of each plan."""
        return cast("Array", self.tp * self.cp * self.pp * self.dp)

    @property
    def num_replicas(self) -> Array:
        """GPUs that hold the same part of the model."""
        return cast("Array", self.dp * self.cp)

    @property
    def num_stages(self) -> Array:
        """Virtual stages of each plan."""
        return cast("Array", self.pp * self.num_chunks)


@dataclass(frozen=True, slots=True)
class Category:
    """What does not broadcast: the choices that many rows share."""

    recompute: str
    sequence_parallel: bool
    zero_stage: int
    overlaps: tuple[bool, ...]
    """In the order of OVERLAPS."""


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Many plans of a category, with the names that one ParallelPlan has, so that cost functions take it for one."""

    tp: Array
    cp: Array
    pp: Array
    dp: Array
    num_chunks: Array
    num_replicas: Array
    num_stages: Array
    recompute: str
    sequence_parallel: bool
    zero_stage: int
    embedding_as_layer: bool
    head_as_layer: bool
    offloaded_layers: int = 0


@dataclass(frozen=True, slots=True)
class ScenarioTable:
    """A scenario whose plan is many plans."""

    model: ModelSpec
    cluster: ClusterSpec
    plan: PlanTable
    training: TrainingSpec
    stack: StackSpec


@dataclass(frozen=True, slots=True)
class Space:
    """All plans to be priced.

    layouts : array of (tp, cp, pp, dp).
    columns : layout × micro-batch × schedule and chunks.
    """

    scenario: Scenario
    layouts: Array
    columns: Columns
    categories: tuple[Category, ...]

    def rows_of(self, sequence_parallel: bool) -> Array:
        """Rows that may run with or without sequence parallelism."""
        columns, length = self.columns, self.scenario.training.sequence_length
        if not sequence_parallel:
            return np.arange(len(columns))
        cut = columns.tp * columns.cp
        return np.flatnonzero((columns.tp > 1) & (length % columns.tp == 0) & ((columns.cp == 1) | (length % cut == 0)))

    @property
    def num_plans(self) -> int:
        """Rows over all categories."""
        rows = {flag: len(self.rows_of(flag)) for flag in (False, True)}
        return sum(rows[category.sequence_parallel] for category in self.categories)

    def scenario_of(self, row: int, category: Category) -> Scenario:
        """One plan as a scenario that can be estimated."""
        c = self.columns
        numbers: dict[str, Any] = {
            name: int(getattr(c, name)[row]) for name in ("tp", "cp", "pp", "dp", "num_chunks", "microbatch_size")
        }
        plan = base_plan(self.scenario).replace(
            **numbers,
            schedule=SCHEDULES[c.schedule[row]],
            recompute=category.recompute,
            sequence_parallel=category.sequence_parallel,
            zero_stage=category.zero_stage,
        )
        return self.scenario.replace(plan=plan, stack=stack_of(self.scenario.stack, category))

    def table(self, columns: Columns, category: Category, stack: StackSpec) -> Scenario:
        """Rows of a category in the shape of a scenario."""
        given = self.scenario
        plan = PlanTable(
            columns.tp,
            columns.cp,
            columns.pp,
            columns.dp,
            columns.num_chunks,
            columns.num_replicas,
            columns.num_stages,
            category.recompute,
            category.sequence_parallel,
            category.zero_stage,
            given.plan.embedding_as_layer,
            given.plan.head_as_layer,
        )
        return cast("Scenario", ScenarioTable(given.model, given.cluster, plan, given.training, stack))


def base_plan(scenario: Scenario) -> ParallelPlan:
    """What of the scenario's plan a search keeps: how embedding and head are counted when layers are dealt."""
    plan = scenario.plan
    return ParallelPlan(embedding_as_layer=plan.embedding_as_layer, head_as_layer=plan.head_as_layer)


def stack_of(stack: StackSpec, category: Category) -> StackSpec:
    """The stack with the category's overlaps."""
    flags = dict(zip(OVERLAPS, category.overlaps, strict=True))
    return stack if all(getattr(stack, name) == on for name, on in flags.items()) else stack.replace(**flags)


def divisors(number: int) -> list[int]:
    """All divisors, in order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def tensor_degrees(scenario: Scenario) -> list[int]:
    """Tensor-parallel degrees that cut the model's heads and matrices evenly."""
    model = scenario.model
    heads = model.num_kv_heads
    return [
        tp
        for tp in divisors(model.num_heads)
        if model.intermediate_size % tp == 0 and (heads % tp == 0 if heads > tp else tp % heads == 0)
    ]


def dealt_layers(scenario: Scenario) -> int:
    """Layers that are dealt to stages, embedding and head counted where the plan says so."""
    return scenario.model.num_layers + scenario.plan.embedding_as_layer + scenario.plan.head_as_layer


def build_space(
    scenario: Scenario,
    gpus: tuple[int, int],
    *,
    context: tuple[int, ...] = (1,),
    overlaps: bool = False,
    recomputes: tuple[str, ...] = RECOMPUTES,
) -> Space:
    """Every plan between two numbers of GPUs that keeps the rules of ParallelPlan, Scenario and the schedules.

    Parameters
    ----------
    gpus : (int, int)
        Fewest and most.
    context : tuple of int
        Context-parallel degrees to try.
    overlaps : bool
        Also switch every overlap of the stack on and off.

    Raises
    ------
    InfeasiblePlan
        No plan keeps the rules; the message says which one left nothing.
    """
    batch, dealt = scenario.training.global_batch_size, dealt_layers(scenario)
    most = min(gpus[1], scenario.cluster.num_gpus)
    context = tuple(cp for cp in context if scenario.training.sequence_length % cp == 0)
    axes = (tensor_degrees(scenario), context, divisors(dealt), divisors(batch))
    layouts = np.array(list(product(*axes)), dtype=np.int64).reshape(-1, 4)
    sizes = layouts.prod(axis=1)
    layouts = layouts[(sizes >= gpus[0]) & (sizes <= most)]
    if not len(layouts):
        raise InfeasiblePlan(_no_layout(scenario, gpus, axes, sizes))
    parts = [_shapes_of(index, layout, batch, dealt) for index, layout in enumerate(layouts.tolist())]
    which, microbatch_size, schedule, num_chunks = np.concatenate(parts).T
    tp, cp, pp, dp = layouts[which].T
    columns = Columns(tp, cp, pp, dp, num_chunks, microbatch_size, schedule, which)
    stack = scenario.stack
    own = tuple(getattr(stack, name) for name in OVERLAPS)
    flags = list(product((False, True), repeat=len(OVERLAPS))) if overlaps else [own]
    choices = product((False, True), recomputes, flags, range(4))
    categories = tuple(Category(recompute, sp, zero, flag) for sp, recompute, flag, zero in choices)
    return Space(scenario, layouts, columns, categories)


def _shapes_of(index: int, layout: list[int], batch: int, dealt: int) -> Array:
    """(layout, micro-batch, schedule, chunks) of every shape of one layout."""
    _, _, pp, dp = layout
    rows = []
    for size in divisors(batch // dp):
        rows += [(index, size, 1, 1), (index, size, 0, 1)]  # of equals the first is shown, and 1F1B needs less memory
        if pp > 1 and (batch // dp // size) % pp == 0:  # `sim.schedules.interleaved` wants whole rounds
            rows += [(index, size, 2, chunks) for chunks in divisors(dealt // pp) if chunks > 1]
    return np.array(rows, dtype=np.int64)


def _no_layout(scenario: Scenario, gpus: tuple[int, int], axes: Any, sizes: Array) -> str:
    """Why no tp · cp · pp · dp is in the range, and which sizes would be."""
    batch, dealt, owned = scenario.training.global_batch_size, dealt_layers(scenario), scenario.cluster.num_gpus
    wanted = f"{gpus[0]:,}" if gpus[0] == gpus[1] else f"{gpus[0]:,} to {gpus[1]:,}"
    if gpus[0] > owned:
        return (
            f"no plan on {wanted} GPUs: cluster {scenario.cluster.name!r} has {owned:,}; "
            "raise cluster.num_nodes or lower --gpus"
        )
    possible = np.unique(sizes[sizes <= owned])
    below, above = possible[possible < gpus[0]], possible[possible > gpus[1]]
    near = [f"{int(each):,}" for each in (*below[-1:], *above[:1])]
    return (
        f"no plan on {wanted} GPUs: tp must divide the heads ({', '.join(map(str, axes[0]))}), pp the {dealt} layers, "
        f"dp the batch of {batch:,}, and no product of three such numbers lies there; "
        f"nearest sizes that work: {' and '.join(near) or 'none'}"
    )
