"""Fields of plans that a search varies, and how tables show them."""

from __future__ import annotations

from typing import Any

from sim.search.plans.columns import CHOICES as CHOICES
from sim.search.plans.columns import FIELDS as FIELDS
from sim.search.plans.columns import NUMBERS as NUMBERS
from sim.search.plans.columns import ROOM as ROOM
from sim.search.plans.columns import value_of as value_of
from sim.specs import ParallelPlan

SHOWN_FIELDS = (*NUMBERS, "schedule", "microbatch_group", *CHOICES, "optimizer_offload", "offloaded_layers")
"""Fields of a plan that tables show, in the words of `shown`."""


def shown(plan: ParallelPlan, name: str) -> Any:
    """A field of a plan as tables have it: what is recomputed is one word."""
    return plan.recompute_words if name == "recompute" else getattr(plan, name)
