"""Many plans as columns of numbers, and the choices that do not broadcast."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sim.arrays import Ints
from sim.pricing.layouts import LAYOUT
from sim.specs import ParallelPlan, StackSpec
from sim.specs.modules import RECOMPUTE_MODULES
from sim.work.recompute import own_modules

SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Schedules that the closed form describes; the column `schedule` holds places in this tuple."""
RECOMPUTES = ("none", "selective", "per_op", "full")
NUMBERS = (*LAYOUT, "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")
ROOM = ("recompute_modules", "recompute_method", "recompute_num_layers", "optimizer_offload", "offloaded_layers")
"""Fields of a plan that a search varies where a plan would not fit else (`sim.search.room`)."""
FIELDS = (*NUMBERS, "schedule", *CHOICES, *ROOM)
"""Fields of a plan that a search varies."""
OVERLAPS = ("overlap_p2p", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp_backward")
"""What a stack may do beside compute, and a search may switch on and off."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of many plans, one row a plan.

    layout : which of the space's layouts (tp, cp, pp, dp, ep) each row has.
    schedule : place in SCHEDULES.
    """

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    num_chunks: Ints
    microbatch_size: Ints
    schedule: Ints
    layout: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Ints | slice) -> Columns:
        """Some of the rows."""
        return Columns(*(getattr(self, field.name)[rows] for field in fields(self)))

    def with_layout(self, layout: Ints) -> Columns:
        """The rows with new numbers of layouts."""
        return replace(self, layout=layout)

    @property
    def num_gpus(self) -> Ints:
        """GPUs of each plan."""
        return np.asarray(self.tp * self.cp * self.pp * self.dp)


@dataclass(frozen=True, slots=True)
class Category:
    """What does not broadcast: the choices that many rows share."""

    recompute: str
    sequence_parallel: bool
    zero_stage: int
    overlaps: tuple[Any, ...]
    """Values of a stack's fields OVERLAPS, in their order."""
    modules: tuple[str, ...] = ()
    """Modules that selective recomputation runs again; empty for those of the scenario's own plan."""
    block_layers: int = 0
    """Layers of every virtual stage that full recomputation runs again; 0 for all."""
    optimizer_offload: float = 0.0
    offloaded_layers: int = 0

    @property
    def runs_again(self) -> frozenset[str]:
        """Modules of operations that run again; for whole layers, a name that no module has."""
        if self.recompute in ("full", "per_op"):
            return frozenset({self.recompute})
        return frozenset(part for name in self.modules for part in RECOMPUTE_MODULES[name])

    def without_room(self) -> Category:
        """The category that recomputes nothing and keeps nothing in host memory."""
        return Category("none", self.sequence_parallel, self.zero_stage, self.overlaps)

    @property
    def recompute_method(self) -> str:
        """The field `recompute_method` of its plans."""
        return "block" if self.block_layers else "uniform"

    @property
    def recompute_num_layers(self) -> int:
        """The field `recompute_num_layers` of its plans."""
        return self.block_layers or 1


def stack_of(stack: StackSpec, overlaps: tuple[Any, ...]) -> StackSpec:
    """The stack with these overlaps on and off, in the order of OVERLAPS."""
    flags = dict(zip(OVERLAPS, overlaps, strict=True))
    return stack if all(getattr(stack, name) == on for name, on in flags.items()) else stack.replace(**flags)


def value_of(category: Category, name: str, own: ParallelPlan) -> Any:
    """A field of the plans of a category, one of CHOICES or ROOM; `own` is the scenario's plan."""
    if name != "recompute_modules":
        return getattr(category, name)
    return own_modules(own) if category.recompute == "selective" and not category.modules else category.modules
