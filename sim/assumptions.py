"""What an answer assumes, in the order of an answer; every sentence stands beside the mechanism that assumes it."""

from __future__ import annotations

from collections.abc import Iterable

from sim.costs import compute, host, spread
from sim.network import placement
from sim.pricing import cost_model, memory, zero
from sim.pricing import layouts as places
from sim.programs import cores_assumed
from sim.specs import Scenario
from sim.work import layers, recompute, routing
from sim.work import memory as kept


def stated_assumptions(
    scenario: Scenario, layouts: places.Layouts, notes: Iterable[str], visits: float, engine: str, contention: bool
) -> tuple[str, ...]:
    """Return what was not given, not measured or not modelled.

    notes : what pricing had to extrapolate. visits : how often in a step the schedule turns to a stage.
    """
    links: Iterable[str] = ()
    if contention:
        from sim.contention import assumed

        links = assumed(scenario)
    return (
        *scenario.assumed,
        *memory.assumed(scenario),
        *sorted(notes),
        *(line for each in (cost_model, recompute, kept) for line in each.assumed(scenario)),
        *zero.assumed(scenario, visits),
        *(line for each in (routing, layers, host, compute, spread) for line in each.assumed(scenario)),
        *(() if scenario.training.tokens is None else ("training time counts no failures, checkpoints or evaluation",)),
        *links,
        *placement.assumed(scenario, contention),
        *places.assumed(layouts),
        *cores_assumed(scenario, engine),
    )
