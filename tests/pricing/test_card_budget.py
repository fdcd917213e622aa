"""What a network card carries in a step: all that a GPU sends over it together, and never more than it can."""

import random

from random_scenarios import random_scenario
from rows import forms
from wiring import laid_out

from sim import estimate
from sim.engines.program import priced_order
from sim.engines.wire import alone_rates
from sim.pricing.layouts import cost_model
from sim.traffic.streams import link_bytes


def use_of_cards(scenario):
    """Seconds that the fullest card needs at its best rate for what a step puts on it, over the step."""
    order, costs = priced_order(scenario)
    traffic = laid_out(scenario, order, costs)
    carried, best = link_bytes(order, traffic), cost_model(scenario).fabric.best_share
    cards = (each for each in traffic.topology.classes if each.name == "nic")
    busy = [carried[each.start : each.start + each.count].max() / each.capacity_bytes_per_s / best for each in cards]
    alone = (alone_rates(traffic.streams, traffic.health) > 0.999).all()  # no stream's own flows meet
    return max(busy) / estimate(scenario).step_time_s, alone


@forms("seeds", range(20), range(60))
def test_no_random_step_is_shorter_than_its_cards_need(seeds):
    seen = []
    for seed in seeds:
        rng = random.Random(seed)
        scenario = random_scenario(rng)
        rate = scenario.cluster.inter_node_bandwidth_bytes_per_s / rng.choice([1, 8, 64, 512])
        slow = scenario.cluster.replace(inter_node_bandwidth_bytes_per_s=rate)
        used, alone = use_of_cards(scenario.replace(cluster=slow))
        if alone:
            seen.append((used, seed))
    assert len(seen) > len(seeds) / 2
    assert max(seen)[0] <= 1 + 1e-9, max(seen)
