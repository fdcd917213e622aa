"""A scenario's messages laid out over its cluster, and what they cost where they share its links.

Two things make messages slower than their cards: what a profile fitted to real machines, where groups of one kind met
each other in real networks, and flows that meet in this program. A stream takes of a link only what the fitted rate is
of the best rate there (`sim.traffic.streams`), so that the lower of the two counts and never their product; there is no
other way to a stream. Answers say so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.engines.contended import contended_costs, stretches
from sim.network.topology import build_topology
from sim.pricing.cost_model import cost_model
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.specs import Scenario
from sim.traffic.streams import Traffic, build_traffic

_KEPT = 16
_laid_out: dict[str, Traffic] = {}
"""Streams of the last few scenarios: laying them out takes longer than all that is done with them here."""


def on_shared_links(scenario: Scenario, order: Order, costs: StageSeconds, step_time_s: float) -> StageSeconds:
    """The costs with every message as long as it is on average where links are shared.

    Parameters
    ----------
    step_time_s : float
        Of a step without contention. [s]

    Raises
    ------
    SpecError
        The cluster does not describe its switches.
    """
    traffic = laid_out(scenario, order, costs)
    stretch = stretches(traffic, order, costs, step_time_s, reduce_beside=scenario.stack.overlap_grad_reduce)
    return contended_costs(costs, order.rank_of_stage, traffic, stretch)


def laid_out(scenario: Scenario, order: Order, costs: StageSeconds) -> Traffic:
    """The streams of a scenario on its sound cluster."""
    key = scenario.model_dump_json(exclude={"name", "description", "assumed"})
    if key not in _laid_out:
        topology = build_topology(scenario.cluster)
        sound = np.ones(topology.num_links)
        found = build_traffic(scenario, costs, order.rank_of_stage, order.copies, topology, sound)
        while len(_laid_out) >= _KEPT:
            del _laid_out[next(iter(_laid_out))]
        _laid_out[key] = found
    return _laid_out[key]


def contention_note(scenario: Scenario) -> str:
    """Which of the fitted and the simulated loss an answer counts."""
    fabric = cost_model(scenario).fabric
    network, best = fabric.network, fabric.best_share
    shared = float(network.in_training())
    return (
        "links are shared: a message gets at most the rate measured on real machines (sends "
        f"{network.p2p_efficiency:.0%} of a card, groups that share the network {shared:.0%}). A link carries at most "
        f"{best:.0%} of its rate. The lower limit counts"
    )


def assumed(scenario: Scenario) -> Iterator[str]:
    """How messages of an estimate share links."""
    yield contention_note(scenario)
    yield "messages meet as often as on average over the step (flopcast simulate --contention plays them)"
