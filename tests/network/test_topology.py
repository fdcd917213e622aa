"""Machines as graphs: published counts of switches and cables, formulas of fat trees, and networkx as an oracle."""

import networkx as nx
import pytest
from wiring import endpoints

from sim.errors import SpecError
from sim.network.topology import bisection_bytes_per_s, build_topology, cable_counts, switch_counts
from sim.specs import load_preset, preset_names

# NVIDIA DGX SuperPOD Reference Architecture, DGX B200, tables 3 and 4 (DGX H100's agree where they overlap):
# scalable units of 32 nodes -> leaves, spines, cores.
SUPERPOD = {
    1: (8, 4),
    2: (16, 8),
    3: (24, 16),
    4: (32, 16),
    8: (64, 32),
    16: (128, 128, 64),
    32: (256, 256, 128),
    64: (512, 512, 256),
}


@pytest.mark.parametrize("name", ["superpod-h100", "superpod-b200"])
@pytest.mark.parametrize("units", SUPERPOD)
def test_superpod_has_the_switches_and_cables_of_its_document(machine, name, units):
    topology = machine(name, 32 * units)
    assert tuple(switch_counts(topology).values()) == SUPERPOD[units]
    # "Node-leaf", "leaf-spine" and "spine-core" are all one cable a GPU.
    assert set(cable_counts(topology).values()) == {256 * units}
    assert bisection_bytes_per_s(topology) == pytest.approx(256 * units / 2 * 50e9)


@pytest.mark.parametrize(("k", "two_levels", "three_levels"), [(40, 800, 16_000), (64, 2048, 65_536)])
def test_full_trees_of_k_port_switches(small_machine, k, two_levels, three_levels):
    leaf, spine, core = {"ports": k, "below": k // 2}, {"ports": k, "below": k // 2}, {"ports": k}
    two = small_machine({"leaf": leaf, "spine": spine, "core": core}, two_levels, gpus=1)
    assert switch_counts(two) == {"leaf": k, "spine": k // 2}
    three = small_machine({"leaf": leaf, "spine": spine, "core": core}, three_levels, gpus=1)
    assert switch_counts(three) == {"leaf": k**2 // 2, "spine": k**2 // 2, "core": k**2 // 4}
    assert bisection_bytes_per_s(three) == pytest.approx(three_levels / 2 * 25e9)
    with pytest.raises(SpecError, match="more than the 3 levels"):
        small_machine({"leaf": leaf, "spine": spine, "core": core}, three_levels + 1, gpus=1)


PODS = {
    "leaf": {"ports": 64, "below": 4}, "spine": {"ports": 64, "below": 8, "oversubscription": 3}, "core": {"ports": 64},
}  # fmt: skip
"""Thirty-two nodes of eight cards a pod, and 3:1 between pods."""


@pytest.mark.parametrize(
    ("levels", "nodes", "built", "share"),
    [
        (PODS, 32, {"leaf": 8, "spine": 4}, 1.0),  # one pod
        (PODS, 33, {"leaf": 9, "spine": 16, "core": 4}, None),
        # Eight spines of 32 cables down and 11 up a pod.
        (PODS, 256, {"leaf": 64, "spine": 64, "core": 11}, 1 / 3),
        # Oversubscribed further up: groups that are stated below it decide where that is met.
        ({**PODS, "spine": {"ports": 64, "below": 8}, "core": {"ports": 64, "below": 4, "oversubscription": 3},
          "top": {"ports": 128}}, 256, {"leaf": 64, "spine": 64, "core": 64, "top": 8}, 1 / 3),
        # Without a number: 48 of 64 ports are down at 3:1.
        ({**PODS, "spine": {"ports": 64, "oversubscription": 3}}, 192, {"leaf": 48, "spine": 32}, 1.0),
        ({**PODS, "spine": {"ports": 64, "oversubscription": 3}}, 256, {"leaf": 64, "spine": 64, "core": 16}, None),
        # Nothing is lost in a full tree, and its spines join all leaves.
        ({**PODS, "spine": {"ports": 64, "below": 8}}, 256, {"leaf": 64, "spine": 32}, 1.0),
    ],
)  # fmt: skip
def test_levels_that_lose_bandwidth_are_built_as_stated(small_machine, levels, nodes, built, share):
    topology = small_machine(levels, nodes, rail_optimised=False, gpus=8)
    assert switch_counts(topology) == built
    if share is not None:
        assert bisection_bytes_per_s(topology) == pytest.approx(share * nodes * 8 / 2 * 25e9)


def test_a_number_of_switches_that_does_not_fit_is_named(cluster):
    """A spine of Selene's with half the cables has 70 up, and 112 core switches to reach."""
    network = cluster("selene").network
    levels = {**network.levels, "leaf": network.levels["leaf"].replace(oversubscription=2.0)}
    design = cluster("selene").replace(network=network.replace(levels=levels))
    with pytest.raises(SpecError, match=r"network.levels.core.switches says 112; state another number, or none"):
        build_topology(design)
    levels["core"] = levels["core"].replace(switches=None)
    assert switch_counts(build_topology(design.replace(network=network.replace(levels=levels))))["core"] == 70


@pytest.mark.parametrize(
    "name", [name for name in preset_names("clusters") if "network" in load_preset("clusters", name)]
)
def test_every_cluster_has_ports_for_its_cables_and_the_bandwidth_it_states(machine, cluster, name):
    topology = machine(name)
    for level in topology.levels:
        assert level.down_ports + level.uplinks <= level.ports
    full = topology.num_gpus * cluster(name).inter_node_bandwidth_bytes_per_s / 2
    assert bisection_bytes_per_s(topology) == pytest.approx(full / (7 if name == "llama3-h100-roce" else 1))


def graph(topology):
    """Cables as a directed graph with capacities, trunks left out."""
    result = nx.DiGraph()
    source, target, vertices = endpoints(topology)
    for a, b, capacity in zip(source.tolist(), target.tolist(), topology.capacity.tolist(), strict=False):
        before = result.get_edge_data(a, b, {"capacity": 0.0})["capacity"]
        result.add_edge(a, b, capacity=before + capacity)
    return result, vertices


LEVELS = {"leaf": {"ports": 8, "below": 4}, "spine": {"ports": 8, "below": 2}, "core": {"ports": 8}}


@pytest.mark.parametrize("rails", [True, False])
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_no_more_crosses_between_two_halves_than_the_bisection_bandwidth(small_machine, rails, factor):
    levels = {**LEVELS, "spine": {"ports": 8, "below": 2, "oversubscription": factor}}
    topology = small_machine(
        levels if rails else {**levels, "leaf": {"ports": 8, "below": 2}}, 32, rail_optimised=rails
    )
    net, vertices = graph(topology)
    half = topology.num_gpus // 2
    for gpu in range(half):
        net.add_edge("from", gpu)
        net.add_edge(half + gpu, "to")
    # NVLink stays inside nodes, and the halves are whole nodes: all of it crosses the top.
    assert nx.maximum_flow_value(net, "from", "to") == pytest.approx(bisection_bytes_per_s(topology))
    assert vertices["core"][1] == switch_counts(topology)["core"]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda cluster, small: build_topology(cluster("superpod-h100", network=None)), "add a section network"),
        (
            lambda cluster, small: build_topology(cluster("superpod-h100", num_nodes=70_000)),
            "lower num_nodes, add a level",
        ),
        (
            lambda cluster, small: small({"leaf": {"ports": 8, "below": 6}, "spine": {"ports": 8}}, 30),
            "6 ports down and 6 up",
        ),
        (lambda cluster, small: small({"leaf": {"ports": 8, "switches": 2}}, 30), "a leaf stands alone"),
        (lambda cluster, small: small({}, 30), "levels"),
    ],
)
def test_mistakes_are_explained(cluster, small_machine, build, says):
    with pytest.raises((SpecError, ValueError), match=says):
        build(cluster, small_machine)
