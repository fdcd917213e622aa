"""What an answer assumes, in the order of an answer; every sentence stands beside the mechanism that assumes it."""

from __future__ import annotations

from collections.abc import Iterable

from sim.costs import compute, host, spread
from sim.network import placement
from sim.pricing import cost_model, memory, zero
from sim.pricing import layouts as places
from sim.pricing.plans import Plans
from sim.programs import cores_assumed
from sim.specs import Scenario
from sim.work import layers, recompute, routing
from sim.work import memory as kept


def stated_assumptions(plans: Plans, scenario: Scenario, notes: Iterable[str], engine: str) -> tuple[str, ...]:
    """Return what was not given, not measured or not modelled.

    plans : the scenario as one. notes : what pricing had to extrapolate.
    """
    return (
        *scenario.assumed,
        *memory.assumed(scenario),
        *sorted(notes),
        *(line for each in (cost_model, recompute, kept) for line in each.assumed(scenario)),
        *zero.assumed(plans, scenario.num_forwards),
        *(line for each in (routing, layers, host, compute, spread) for line in each.assumed(scenario)),
        *(() if scenario.training.tokens is None else ("training time counts no failures, checkpoints or evaluation",)),
        *placement.assumed(scenario),
        *places.assumed(plans.layouts),
        *cores_assumed(scenario, engine),
    )
