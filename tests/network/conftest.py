"""Machines for the tests of the network: shipped clusters by name, and small trees of any shape."""

from functools import cache

import pytest

from sim.network.topology import build_topology
from sim.specs import ClusterSpec, load_preset
from sim.specs.loading import resolve


@cache
def cluster_preset(name):
    return ClusterSpec.read(resolve(load_preset("clusters", name), "cluster"), name)


@pytest.fixture(scope="session")
def cluster():
    """The function (name, changes) -> ClusterSpec of a shipped cluster."""

    def make(name, **changes):
        preset = cluster_preset(name)
        return preset.replace(**changes) if changes else preset

    return make


@pytest.fixture(scope="session")
def machine(cluster):
    """The function (name, nodes) -> Topology of a shipped cluster."""

    @cache
    def make(name, num_nodes=None):
        return build_topology(cluster(name, **({} if num_nodes is None else {"num_nodes": num_nodes})))

    return make


@pytest.fixture(scope="session")
def small_machine(cluster):
    """The function (levels, nodes, rails, ...) -> Topology of DGX A100 under any switches."""

    def make(levels, num_nodes, rail_optimised=True, gpus=2, nics=None, **network):
        node = cluster("superpod-a100").node.replace(gpus_per_node=gpus, nics_per_node=nics or gpus)
        spec = {"levels": levels, "rail_optimised": rail_optimised, **network}
        return build_topology(ClusterSpec(name="small", node=node, num_nodes=num_nodes, network=spec))

    return make
