"""A full mesh of links, as AMD's xGMI: what a pair, a group and all of a node reach."""

import numpy as np
import pytest

from sim.costs.collectives import Fabric, all_gather, all_reduce, all_to_all, send
from sim.network.placement import Group, nvlink_shares
from sim.specs import ClusterSpec, Profile, load_preset
from sim.specs.datasheet import datasheet_profile
from sim.specs.loading import resolve

LARGE = 2.0**34


def fabric(node, num_nodes=1, **changes):
    data = resolve({"node": {"preset": node, **changes}, "num_nodes": num_nodes, "name": node}, "cluster")
    cluster = ClusterSpec.read(data, node)
    return Fabric.of(cluster, Profile.read(datasheet_profile(cluster.gpu), "profile")), cluster


@pytest.mark.parametrize("node", ["mi300x-8", "mi325x-8", "mi350x-8", "mi355x-8", "gh200-96gb-4"])
def test_a_pair_has_one_link_and_all_have_all_of_them(node):
    links, cluster = fabric(node)
    gpus, rate = cluster.node.gpus_per_node, cluster.node.nvlink_bandwidth_bytes_per_s
    reached = links.nvlink.efficiency
    for n in range(2, gpus + 1):
        busbw = 2 * (n - 1) / n * LARGE / float(all_reduce(LARGE, Group(n, n), links))
        assert busbw == pytest.approx(reached * rate * (n - 1) / (gpus - 1), rel=0.01)
    sent = LARGE / float(send(LARGE, False, links))
    assert sent == pytest.approx(links.nvlink.p2p_efficiency * rate / (gpus - 1), rel=0.01)


def test_the_whole_node_is_as_fast_as_behind_a_switch_and_a_part_of_it_slower():
    mesh, switch = fabric("mi300x-8")[0], fabric("mi300x-8", nvlink_topology="switch")[0]
    for collective in (all_reduce, all_gather, all_to_all):
        assert collective(LARGE, Group(8, 8), mesh) == pytest.approx(collective(LARGE, Group(8, 8), switch))
        slower = collective(LARGE, Group(2, 2), mesh) / collective(LARGE, Group(2, 2), switch)
        assert slower == pytest.approx(7, rel=0.02)
    assert send(LARGE, True, mesh) == send(LARGE, True, switch)


def test_shares_of_a_mesh_of_any_size():
    assert nvlink_shares("full_mesh", 1).tolist() == [1, 1]
    assert nvlink_shares("full_mesh", 4).tolist() == pytest.approx([1, 1, 1 / 3, 2 / 3, 1])
    assert np.all(np.diff(nvlink_shares("full_mesh", 8)[2:]) > 0)


@pytest.mark.parametrize(
    ("node", "nodes", "busbw_gb_per_s"),
    [("mi300x-8", 1, 313.66), ("mi300x-8", 2, 340.75), ("mi355x-8", 2, 364.39)],
)
def test_all_reduces_of_a_gigabyte_as_rccl_measures_them(node, nodes, busbw_gb_per_s):
    # hisohara/ai-scripts:training/01_rccl-smoketest/README.md@7b8b1ec290, 1 GiB out of place.
    links, _ = fabric(node, nodes)
    n, nbytes = 8 * nodes, 2.0**30
    seconds = float(all_reduce(nbytes, Group(n, 8, spans=nodes), links))
    assert 2 * (n - 1) / n * nbytes / seconds / 1e9 == pytest.approx(busbw_gb_per_s, rel=0.15)


def test_hosts_of_every_node_with_gpus_are_known():
    for name in ("dgx-a100-80gb", "dgx-h100", "gb200-tray", "gh200-96gb-4", "mi355x-8", "vr200-tray"):
        node = load_preset("nodes", name)
        assert {"host_link_bandwidth", "host_memory_bandwidth"} <= node.keys()
