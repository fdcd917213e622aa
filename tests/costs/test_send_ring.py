"""Context parallelism's ring of sends: each rank has its own card, where a library's ring uses those of all members."""

import pytest

from sim import estimate
from sim.costs.collectives import Fabric, all_gather, send, send_ring
from sim.network.placement import Group
from sim.specs.loading import build_scenario

LONG = {
    "model": "llama3-8b", "cluster": {"preset": "superpod-h100", "num_nodes": 2},
    "plan": {"tp": 1, "cp": 16, "pp": 1, "dp": 1, "microbatch_size": 1},
    "training": {"global_batch_size": 16, "sequence_length": 32768}, "profile": "h100", "stack": "megatron-core",
}  # fmt: skip
SCENARIO = build_scenario(LONG, [], "long-context")  # Llama 3 8B on 32,768 tokens over two nodes of 8 H100
FABRIC = Fabric.of(SCENARIO.cluster, SCENARIO.profile)
KEYS_AND_VALUES = 2 * 32768 * 2 * 8 * 128.0  # bf16, of one layer


def test_a_ring_that_leaves_the_node_goes_at_the_pace_of_one_card():
    over_two, alone = Group(16, 8), Group(8, 8)
    card = 0.9 * 50e9  # 400 Gbit/s, of which H100's profile reaches 0.9 where no other group is
    large = 16e12
    assert send_ring(large, over_two, FABRIC) == pytest.approx(15 / 16 * large / card, rel=1e-3)
    # A library's ring has all eight.
    assert all_gather(large, over_two, FABRIC) == pytest.approx(15 / 16 * large / min(8 * card, 0.81 * 450e9), rel=1e-3)
    # Inside a node it is sends over NVLink, and every rank in a node of its own has its card in either way.
    assert send_ring(large, alone, FABRIC) == pytest.approx(7 * float(send(large / 8, False, FABRIC)))
    apart = Group(4, 1, True)
    assert send_ring(large, apart, FABRIC) == pytest.approx(float(all_gather(large, apart, FABRIC)), rel=1e-3)


def test_eight_billion_parameters_on_two_nodes_wait_seconds_for_one_card():
    # Derived: three rings a layer and micro-batch (keys and values forward, they and their gradients backward), 15
    # messages of 8.4 MB each, beside attention and what its steps move, which hide up to nine tenths of what they last.
    found = estimate(SCENARIO).breakdown.seconds
    assert found["context_parallel_comm"] == pytest.approx(2.4, rel=0.1)
    ring = 3 * 32 * 16 * float(send_ring(KEYS_AND_VALUES, Group(16, 8), FABRIC))
    assert ring == pytest.approx(3 * 32 * 16 * 15 / 16 * KEYS_AND_VALUES / 45e9, rel=0.15)
    assert 0.4 * ring < found["context_parallel_comm"] < ring
