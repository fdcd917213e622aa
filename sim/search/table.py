"""Fields of plans that a search varies, and how tables show them."""

from __future__ import annotations

from typing import Any

from sim.search.plans.columns import Category
from sim.search.plans.layouts import LAYOUT
from sim.specs import ParallelPlan
from sim.specs.plan import DEFAULT_RECOMPUTE_MODULES
from sim.work.recompute import own_modules

NUMBERS = (*LAYOUT, "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")
ROOM = ("recompute_modules", "recompute_method", "recompute_num_layers", "optimizer_offload", "offloaded_layers")
"""Fields of a plan that a search varies where a plan would not fit else (`sim.search.room`)."""
FIELDS = (*NUMBERS, "schedule", *CHOICES, *ROOM)
"""Fields of a plan that a search varies."""
SHOWN_FIELDS = (*NUMBERS, "schedule", "microbatch_group", *CHOICES, "optimizer_offload", "offloaded_layers")
"""What of a plan stands in tables, as `shown` has it."""


def value_of(category: Category, name: str, own: ParallelPlan) -> Any:
    """A field of the plans of a category, one of CHOICES or ROOM; `own` is the scenario's plan."""
    if name != "recompute_modules":
        return getattr(category, name)
    return own_modules(own) if category.recompute == "selective" and not category.modules else category.modules


def shown(plan: ParallelPlan, name: str) -> Any:
    """A field of a plan as tables have it: what is recomputed is one word.

    `moe_act+layernorm` where selective recomputation runs other modules again than usual, `2 layers` of every virtual
    stage that runs so many again, whole.
    """
    if name != "recompute":
        return getattr(plan, name)
    if plan.recompute == "selective" and plan.recompute_modules != DEFAULT_RECOMPUTE_MODULES:
        return "+".join(plan.recompute_modules)
    if plan.recompute_method == "block":
        return f"{plan.recompute_num_layers} layer{'s' * (plan.recompute_num_layers > 1)}"
    return plan.recompute if plan.recompute_num_layers == 1 else f"full by {plan.recompute_num_layers}"
