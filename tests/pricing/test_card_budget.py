"""What a network card carries in a step: all that a GPU sends over it together, and never more than it can."""

import random

from random_scenarios import random_scenario
from rows import forms
from wiring import laid_out

from sim import build_scenario, estimate
from sim.engines.program import priced_order
from sim.engines.wire import alone_rates
from sim.pricing.cells import plans_of
from sim.pricing.layouts import cost_model
from sim.pricing.zero import moved_at_visits
from sim.traffic.carried import link_bytes
from sim.work.layers import FIRST_KIND

LAYERED = {
    "model": {"num_layers": 32, "hidden_size": 2048, "num_heads": 16, "vocab_size": 32000, "max_sequence_length": 2048},
    "plan": {"tp": 8, "pp": 4, "dp": 1, "schedule": "breadth_first", "num_chunks": 8},
    "training": {"global_batch_size": 32, "sequence_length": 2048, "precision": "bf16"},
    "stack": {"preset": "megatron-core", "overlap_p2p": True, "kernel_launch": "1 us"},
    "cluster": {"preset": "superpod-h100", "inter_node_bandwidth": "1 Gbit/s"},
}
EXPERTS = {
    "model": "qwen3-30b-a3b",
    "plan": {"dp": 128, "ep": 16, "zero_stage": 3, "microbatch_size": 1},
    "training": {"global_batch_size": 128, "sequence_length": 4096, "precision": "bf16"},
    "stack": {"preset": "megatron-core", "overlap_param_gather": True, "overlap_grad_reduce": True,
              "kernel_launch": "1 us"},
    "cluster": {"preset": "superpod-h100", "inter_node_bandwidth": "50 Gbit/s"},
}  # fmt: skip


def use_of_cards(scenario):
    """Seconds that the fullest card needs at its best rate for what a step puts on it, over the step."""
    order, costs = priced_order(scenario)
    traffic = laid_out(scenario, order, costs)
    carried, best = link_bytes(order, traffic), cost_model(scenario).fabric.best_share
    cards = (each for each in traffic.topology.classes if each.name == "nic")
    busy = [carried[each.start : each.start + each.count].max() / each.capacity_bytes_per_s / best for each in cards]
    alone = (alone_rates(traffic.streams, traffic.health) > 0.999).all()  # no stream's own flows meet
    return max(busy) / estimate(scenario).step_time_s, alone


def test_sends_of_layered_orders_share_a_card():
    """A modular pipeline's micro-batches follow each other: on 1 Gbit/s they leave one after the other."""
    used, alone = use_of_cards(build_scenario(LAYERED))
    assert alone
    assert 0.75 < used <= 1


def test_tokens_and_gathered_weights_share_a_card():
    """Each alone is hidden behind, or waited for beside, the other: together they need 4.7 s of a card's best rate."""
    scenario = build_scenario(EXPERTS)
    plans = plans_of(scenario)
    moved = moved_at_visits(plans, True)
    layer = plans.prices.card_s[:, FIRST_KIND, 0, 0] + moved.on_card[:, FIRST_KIND, 0]
    assert estimate(scenario).step_time_s > layer.sum() * scenario.model.num_layers > 4.5


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
