"""Fields of plans that a search varies, and how tables show them."""

from __future__ import annotations

from typing import Any

from sim.search.plans.columns import CHOICES as CHOICES
from sim.search.plans.columns import NUMBERS as NUMBERS
from sim.search.plans.columns import ROOM as ROOM
from sim.search.plans.columns import value_of as value_of
from sim.specs import ParallelPlan
from sim.specs.plan import DEFAULT_RECOMPUTE_MODULES

FIELDS = (*NUMBERS, "schedule", *CHOICES, *ROOM)
"""Fields of a plan that a search varies."""
SHOWN_FIELDS = (*NUMBERS, "schedule", "microbatch_group", *CHOICES, "optimizer_offload", "offloaded_layers")
"""What of a plan stands in tables, as `shown` has it."""


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
