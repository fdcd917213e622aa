"""Many plans as columns of numbers, and the choices that do not broadcast."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from sim.specs import ClusterSpec, ModelSpec, Scenario, StackSpec, TrainingSpec

Array = np.ndarray

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Those the closed form describes; the column `schedule` holds places in this tuple."""
RECOMPUTES = ("none", "selective", "full")
OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward")
"""What a stack may do beside compute, and a search may switch on and off."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of many plans, one row a plan.

    layout : which of the space's layouts (tp, cp, pp, dp, ep) each row has.
    schedule : place in SCHEDULES.
    """

    tp: Array
    cp: Array
    pp: Array
    dp: Array
    ep: Array
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
    """Many plans with the names that one ParallelPlan has, so that cost functions take them for one."""

    embedding_as_layer: bool
    head_as_layer: bool
    tp: Array | int = 1
    cp: Array | int = 1
    pp: Array | int = 1
    dp: Array | int = 1
    ep: Array | int = 1
    num_chunks: Array | int = 1
    microbatch_size: Array | int = 1
    recompute: str = "none"
    sequence_parallel: bool = False
    zero_stage: int = 0
    offloaded_layers: int = 0
    sequence_slices: int = 1

    @property
    def num_replicas(self) -> Array | int:
        """GPUs that hold the same part of the model."""
        return self.dp * self.cp

    @property
    def num_expert_replicas(self) -> Array | int:
        """GPUs that hold the same experts."""
        return self.tp * self.cp * self.dp // self.ep

    @property
    def num_stages(self) -> Array | int:
        """Virtual stages of each plan."""
        return self.pp * self.num_chunks

    @property
    def num_gpus(self) -> Array | int:
        """GPUs of each plan."""
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class ScenarioTable:
    """A scenario whose plan is many plans."""

    model: ModelSpec
    cluster: ClusterSpec
    plan: PlanTable
    training: TrainingSpec
    stack: StackSpec


def table(scenario: Scenario, stack: StackSpec | None = None, **plan: Array | int | str | bool) -> Scenario:
    """A scenario with many plans in place of its own; what is not named is 1, or off."""
    own = scenario.plan
    plans = PlanTable(own.embedding_as_layer, own.head_as_layer, **plan)  # type: ignore[arg-type]
    many = ScenarioTable(scenario.model, scenario.cluster, plans, scenario.training, stack or scenario.stack)
    return cast("Scenario", many)


def stack_of(stack: StackSpec, overlaps: tuple[bool, ...]) -> StackSpec:
    """The stack with these overlaps on and off, in the order of OVERLAPS."""
    flags = dict(zip(OVERLAPS, overlaps, strict=True))
    return stack if all(getattr(stack, name) == on for name, on in flags.items()) else stack.replace(**flags)
