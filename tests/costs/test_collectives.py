"""Collectives: published latencies and bandwidths, the volumes of rings, and laws that hold for any link."""

import numpy as np
import pytest
from flows import IDEAL
from hypothesis import given, settings
from hypothesis import strategies as st

from flopcast_calibration.fit.links import LINK
from sim.costs.collectives import (
    COLLECTIVES,
    Fabric,
    all_reduce,
    all_reduce_ways,
    hierarchical_all_reduce,
    in_switch_all_reduce,
    ring_all_reduce,
    tree_all_reduce,
)
from sim.errors import SpecError
from sim.network.placement import Group
from sim.specs import Profile, load_preset, preset_names

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
