"""Collectives: published latencies and bandwidths, the volumes of rings, and laws that hold for any link."""

import numpy as np
import pytest
from flows import IDEAL
from hypothesis import given, settings
from hypothesis import strategies as st

from flopcast_calibration.fit.links import LINK
from sim import estimate
from sim.costs.collectives import (
    COLLECTIVES,
    Fabric,
    all_gather,
    all_reduce,
    all_reduce_ways,
    broadcast,
    hierarchical_all_reduce,
    in_switch_all_reduce,
    ring_all_reduce,
    send,
    send_ring,
    tree_all_reduce,
)
from sim.errors import SpecError
from sim.network.placement import Group
from sim.specs import Profile, load_preset, preset_names
from sim.specs.loading import build_scenario

PROFILES = {name: Profile.read(load_preset("profiles", name), name) for name in preset_names("profiles")}
ALGORITHMS = {**COLLECTIVES, "ring": ring_all_reduce, "tree": tree_all_reduce, "hierarchical": hierarchical_all_reduce}


def link(**changes):
    return PROFILES["a100"].nvlink.replace(**{**IDEAL, **changes})


def fabric(nvlink=None, network=None, nvlink_bytes_per_s=300e9, network_bytes_per_s=25e9):
    return Fabric(nvlink or link(), network or link(), nvlink_bytes_per_s, network_bytes_per_s)


def real_fabric(name):
    return Fabric(PROFILES[name].nvlink, PROFILES[name].network, 300e9, 25e9)


def node(n):
    return Group(n, n)


def test_members_share_what_crosses_domains_and_a_broadcast_passes_all_once():
    inside, between = 2 * 7 / 8 * 1e9 / 300e9, 2 * 3 / 4 * 1e9 / 8 / 25e9
    assert hierarchical_all_reduce(1e9, Group(32, 8), fabric()) == pytest.approx(inside + between)
    assert broadcast(1e9, node(8), fabric()) == pytest.approx(1e9 / 300e9)


# NVIDIA/nccl:src/graph/tuning.cc: base, NVLink and network latencies -> latency of an all-reduce. [µs]
@pytest.mark.parametrize(
    ("algorithm", "base", "inside", "outside", "nodes", "microseconds"),
    [
        ("ring", 8.4, 3.4, 14, 1, 56.0),  # Simple
        ("ring", 6.6, 0.6, 2.7, 1, 15.0),  # LL
        ("ring", 8.4, 3.4, 14, 16, 1190.0),
        ("tree", 8.4, 4.0, 14, 16, 176.4),
        ("hierarchical", 8.4, 3.4, 14, 16, 2 * (8.4 + 7 * 3.4) + 8.4 + 30 * 14),  # the sum of its three parts
    ],
)
def test_latency_of_nccl(algorithm, base, inside, outside, nodes, microseconds):
    latencies = [link(base_latency_s=base * 1e-6, hop_latency_s=hop * 1e-6) for hop in (inside, outside)]
    time = ALGORITHMS[algorithm](0.0, Group(8 * nodes, 8), fabric(*latencies))
    assert time * 1e6 == pytest.approx(microseconds)


def test_switches_that_add_pass_a_buffer_once_and_their_trees_relay_beyond_two_domains():
    rack = fabric(link(in_switch_efficiency=0.5))
    one, two, three, twenty = (float(in_switch_all_reduce(7.2e9, Group(72 * n, 72), rack)) for n in (1, 2, 3, 20))
    assert one == pytest.approx(7.2e9 * 73 / 72 / 150e9)
    # Cards carry a buffer in a seventy-second of its time on one: NVLink sets the pace, and of a third domain the tree.
    assert two == pytest.approx(one)
    assert three == twenty == pytest.approx(2 * one)
    slow = fabric(link(in_switch_efficiency=0.5), network_bytes_per_s=1e9)
    assert float(in_switch_all_reduce(7.2e9, Group(144, 72), slow)) == pytest.approx(7.2e9 / 72e9)
    assert np.isinf(in_switch_all_reduce(7.2e9, node(72), fabric()))


def test_which_algorithm_is_the_fastest_on_h100():
    sizes, table = (1e4, 1e6, 3e7, 1e9), {
        1: ["NVLS", "NVLS", "NVLS", "NVLS"],  # switches pass a buffer once
        2: ["NVLS", "NVLS", "NVLS", "NVLS"],
        4: ["tree", "tree", "tree", "ring"],  # beyond two nodes NVLink relays what the switches' tree passes on
        64: ["tree", "tree", "tree", "tree"],
    }  # fmt: skip
    net = Fabric(PROFILES["h100"].nvlink, PROFILES["h100"].network, 450e9, 50e9)
    for nodes, named in table.items():
        ways = [all_reduce_ways(nbytes, Group(8 * nodes, 8), net) for nbytes in sizes]
        assert [min(each, key=each.get) for each in ways] == named, nodes


def group_of(size, stride, domain_gpus):
    """A group that starts with a domain and whose members are `stride` GPUs apart; takes arrays."""
    return Group(size, np.clip(domain_gpus // stride, 1, size), np.asarray(stride) > 1)


groups = st.tuples(st.integers(1, 1024), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([8, 16, 72])).map(
    lambda x: group_of(*x)
)
sizes = st.floats(1.0, 1e12)


@settings(max_examples=20)
@given(
    name=st.sampled_from(sorted(COLLECTIVES)), profile=st.sampled_from(sorted(PROFILES)),
    group=groups, nbytes=sizes, more=st.floats(1.0, 100.0),
)  # fmt: skip
def test_more_bytes_never_take_less_time(name, profile, group, nbytes, more):
    collective, net = COLLECTIVES[name], real_fabric(profile)
    assert collective(nbytes * more, group, net) >= collective(nbytes, group, net) * (1 - 1e-12)


# Fits may choose any exponent within the bounds of flopcast_calibration.fit; no choice may make a small message the slow one.
@pytest.mark.parametrize("exponent", [0.3, 1.0, LINK["exponent"][3]])
def test_no_exponent_makes_small_messages_slower_than_large_ones(exponent):
    try:
        slow_start = fabric(link(half_volume_bytes=5e6, exponent=exponent))
    except SpecError:
        return  # refused: just as good
    times = [all_reduce(nbytes, node(8), slow_start) for nbytes in (2.0**10, 2.0**15, 2.0**20, 2.0**25)]
    assert times == sorted(times)


LONG = {
    "model": "llama3-8b", "cluster": {"preset": "superpod-h100", "num_nodes": 2},
    "plan": {"tp": 1, "cp": 16, "pp": 1, "dp": 1, "microbatch_size": 1},
    "training": {"global_batch_size": 16, "sequence_length": 32768}, "profile": "h100", "stack": "megatron-core",
}  # fmt: skip
TWO_NODES = build_scenario(LONG, [], "long-context")  # Llama 3 8B on 32,768 tokens over two nodes of 8 H100
OF_TWO_NODES = Fabric.of(TWO_NODES.cluster, TWO_NODES.profile)
KEYS_AND_VALUES = 2 * 32768 * 2 * 8 * 128.0  # bf16, of one layer


def test_a_ring_that_leaves_the_node_goes_at_the_pace_of_one_card():
    over_two, alone = Group(16, 8), Group(8, 8)
    card = 0.9 * 50e9  # 400 Gbit/s, of which H100's profile reaches 0.9 where no other group is
    large = 16e12
    assert send_ring(large, over_two, OF_TWO_NODES) == pytest.approx(15 / 16 * large / card, rel=1e-3)
    # A library's ring has all eight.
    assert all_gather(large, over_two, OF_TWO_NODES) == pytest.approx(
        15 / 16 * large / min(8 * card, 0.81 * 450e9), rel=1e-3
    )
    # Inside a node it is sends over NVLink, and every rank in a node of its own has its card in either way.
    assert send_ring(large, alone, OF_TWO_NODES) == pytest.approx(7 * float(send(large / 8, False, OF_TWO_NODES)))
    apart = Group(4, 1, True)
    assert send_ring(large, apart, OF_TWO_NODES) == pytest.approx(
        float(all_gather(large, apart, OF_TWO_NODES)), rel=1e-3
    )


def test_eight_billion_parameters_on_two_nodes_wait_seconds_for_one_card():
    # Derived: three rings a layer and micro-batch (keys and values forward, they and their gradients backward), 15
    # messages of 8.4 MB each, beside attention and what its steps move, which hide up to nine tenths of what they last.
    found = estimate(TWO_NODES).breakdown.seconds
    assert found["context_parallel_comm"] == pytest.approx(2.4, rel=0.1)
    ring = 3 * 32 * 16 * float(send_ring(KEYS_AND_VALUES, Group(16, 8), OF_TWO_NODES))
    assert ring == pytest.approx(3 * 32 * 16 * 15 / 16 * KEYS_AND_VALUES / 45e9, rel=0.15)
    assert 0.4 * ring < found["context_parallel_comm"] < ring
