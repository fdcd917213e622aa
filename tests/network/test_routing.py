"""Paths: they connect, follow the routing asked for, collide as often as balls in bins do, and go around what is down."""

import math

import numpy as np
import pytest
from rows import rows
from wiring import endpoints

from sim.errors import SpecError
from sim.network.routing import link_health, link_name, route, route_around, switched_links
from sim.network.topology import build_topology
from sim.specs import ClusterSpec, load_preset
from sim.specs.loading import resolve

MACHINES = ["superpod-a100", "selene", "superpod-h100", "superpod-gb200", "llama3-h100-roce", "dgx-2h-superpod"]


def pairs(topology, count, seed=0):
    source, target = np.random.default_rng(seed).integers(0, topology.num_gpus, (2, count))
    return source[source != target], target[source != target]


@rows("name", MACHINES)
def test_paths_lead_from_source_to_target(machine, name):
    topology = machine(name)
    link_from, link_to, vertices = endpoints(topology)
    source, target = pairs(topology, 2000)
    paths = route(topology, source, target, "ecmp", seed=3)
    assert paths.shape[0] == len(source)
    at = source.copy()
    for column in paths.T:
        used = column >= 0
        # Over NVLink and PCIe the card or the switch is reached through a GPU; every link starts where the last ended.
        assert (link_from[column[used]] == at[used]).all()
        at[used] = link_to[column[used]]
    assert (at == target).all()
    assert vertices["gpu"][0] == 0


@rows("name", MACHINES)
def test_adaptive_sees_a_trunk_wherever_the_others_see_a_cable(machine, name):
    topology = machine(name)
    source, target = pairs(topology, 500)
    fluid, single = (route(topology, source, target, routing) for routing in ("adaptive", "ecmp"))
    assert ((fluid >= 0) == (single >= 0)).all()
    names = np.array([links.name.removesuffix(" trunk") + links.direction for links in topology.classes])
    used = fluid >= 0
    assert (names[topology.class_of_link[fluid[used]]] == names[topology.class_of_link[single[used]]]).all()
    trunks = np.array([links.is_trunk for links in topology.classes])
    assert not trunks[topology.class_of_link[single[used]]].any()


def test_on_rails_the_network_joins_the_same_card_of_a_unit_over_one_leaf(machine):
    topology = machine("superpod-a100")
    one_leaf, other_rail, other_unit = route(topology, [3, 3, 3], [8 * 5 + 3, 8 * 5 + 4, 8 * 25 + 3], "ecmp")
    links = [np.count_nonzero(path >= 0) for path in (one_leaf, other_unit, other_rail)]
    assert links == [4, 6, 8]
    ends = np.array([3]), np.array([8 * 5 + 4])  # NVLink goes to the other rail's GPU first
    by_nvlink = switched_links(topology, *ends, "ecmp", proxy=True)
    assert all((column == -1).all() for column in by_nvlink)


def collisions(small_machine, num_flows, subflows, trials):
    """Flows (in whole flows) on the busiest of as many uplinks as there are flows, for every trial."""
    levels = {"leaf": {"ports": 2 * num_flows, "below": num_flows}, "spine": {"ports": 2 * num_flows}}
    topology = small_machine(levels, 2 * num_flows, gpus=1)
    source = np.arange(num_flows)
    first = topology.start("leaf", "up")
    loads = []
    for seed in range(trials):
        paths = route(topology, source, source + num_flows, "ecmp", subflows=subflows, seed=seed)
        ports = paths[(paths >= first) & (paths < first + num_flows)] - first
        loads.append(np.bincount(ports, minlength=num_flows) / subflows)
    return np.array(loads)


# Balls in bins: P(no collision) = n!/nⁿ, mean links used 1 − (1 − 1/n)ⁿ; expected maxima by the exact distribution.
@rows(("num_flows", "subflows", "busiest"), [(8, 1, 2.59), (16, 1, 3.07), (32, 1, 3.53), (8, 16, 1.37), (32, 16, 1.55)])
def test_ecmp_statistics(small_machine, num_flows, subflows, busiest):
    trials = 1500 if subflows == 1 else 200  # many subflows differ less
    loads = collisions(small_machine, num_flows, subflows, trials)
    assert loads.max(axis=1).mean() == pytest.approx(busiest, abs=0.06)
    if subflows == 1:
        used = (loads > 0).mean()
        assert used == pytest.approx(1 - (1 - 1 / num_flows) ** num_flows, abs=0.01)
        none_collide = (loads == 1).all(axis=1).mean()
        expected = math.factorial(num_flows) / num_flows**num_flows
        assert none_collide == pytest.approx(expected, abs=4 * math.sqrt(expected / 1500) + 1e-9)


def test_every_cable_down_is_used_where_spines_divide_them_unevenly(small_machine):
    topology = small_machine({"leaf": {"ports": 10, "below": 5}, "spine": {"ports": 10, "switches": 3}}, 15, gpus=1)
    paths = route(topology, *pairs(topology, 4000), "ecmp")
    for direction in ("up", "down"):
        cables = links_of(topology, "leaf", direction)
        assert np.bincount(paths[paths >= 0], minlength=topology.num_links)[cables].min() > 0, direction


def test_the_same_seed_gives_the_same_paths_and_another_seed_others(machine):
    topology = machine("llama3-h100-roce")
    source, target = pairs(topology, 300)
    one, again, other = (route(topology, source, target, "ecmp", subflows=4, seed=seed) for seed in (1, 1, 2))
    assert one.tobytes() == again.tobytes()
    assert (one != other).any()
    # A flow's path does not depend on what else is routed.
    alone = route(topology, source[7:8], target[7:8], "ecmp", subflows=4, seed=1)
    assert (alone == one[28:32]).all()


@pytest.fixture(scope="module")
def selene():
    return build_topology(ClusterSpec.read(resolve(load_preset("clusters", "selene"), "cluster"), "selene"))


def links_of(topology, name, direction):
    start = topology.start(name, direction)
    return slice(start, start + next(c.count for c in topology.classes if (c.name, c.direction) == (name, direction)))


def test_links_by_their_names(selene):
    """A card has two directions and two names, a node is all its cards, and a trunk has what its cables have left."""
    by_node, by_gpu = link_health(selene, [(0.5, "node12.nic3")]), link_health(selene, [(0.5, "gpu99.nic")])
    np.testing.assert_array_equal(by_node, by_gpu)
    slower = {link_name(selene, int(link)) for link in np.flatnonzero(by_node < 1)}
    assert slower == {"node12.nic3 up", "node12.nic3 down"}
    assert (link_health(selene, [(0.0, "node559")]) == 0).sum() == 2 * 8
    health = link_health(selene, [(0.0, "leaf3.cable0"), (0.5, "leaf3.cable1")])
    cables = selene.levels[0].cables_per_group
    assert health[selene.start("leaf trunk", "up") + 3] == pytest.approx((cables - 1.5) / cables)
    whole = link_health(selene, [(0.25, "leaf3")])
    assert whole[selene.start("leaf trunk", "down") + 3] == 0.25
    assert (whole < 1).sum() == 2 * (cables + 1)
    assert link_health(selene, [(0.5, "node0.nic0"), (0.5, "gpu0.nic")]).min() == 0.25  # faults multiply


@pytest.mark.parametrize(
    ("share", "name", "says"),
    [
        (0.5, "nod3", "unknown link 'nod3'; 'selene' has node0"),
        (0.5, "node560", "nodes are numbered 0 to 559"),
        (0.5, "node3.nic8", "nics are numbered 0 to 7"),
        (0.5, "leaf9999", "leafs are numbered 0 to"),
        (0.5, "leaf3.cable99", "cables are numbered 0 to 19"),
        (0.5, "core0", "unknown link"),
        (0.5, "gpu3.nvlink", "NVLink carries tensor parallelism"),
        (0.5, "", "unknown link ''"),
        (1.5, "leaf3", "from 0 .down. to 1"),
        (float("nan"), "leaf3", "from 0 .down. to 1"),
    ],
)
def test_what_is_wrong_with_a_fault(selene, share, name, says):
    with pytest.raises(SpecError, match=says):
        link_health(selene, [(share, name)])


@pytest.mark.parametrize("down", ["node0.nic0", "node9.nic0", "leaf0", "node0.nic0 node0.nic1 node9.nic2"])
def test_traffic_goes_over_the_cards_that_are_left(selene, down):
    source, target = np.array([0, 1, 5]), np.array([72, 73, 168 * 8 + 5])  # the last one leaves its leaf
    health = link_health(selene, [(0.0, name) for name in down.split()])
    paths, share, pair = route_around(selene, source, target, health)
    np.testing.assert_allclose(np.bincount(pair, share), 1.0)
    assert health[paths[paths >= 0]].min() > 0
    # Every path leaves through one card of the source's node and arrives through one of the target's.
    for direction, ends in (("up", source), ("down", target)):
        cards = links_of(selene, "nic", direction)
        for row, each in zip(paths, pair, strict=True):
            used = [link - cards.start for link in row if cards.start <= link < cards.stop]
            assert [card // 8 for card in used] == [ends[each] // 8]


def test_a_node_without_cards_is_cut_off(selene):
    with pytest.raises(
        SpecError, match=r"GPU 0 cannot reach GPU 8: node0.nic0 up is down, and no other card of node 0"
    ):
        route_around(selene, np.array([0]), np.array([8]), link_health(selene, [(0.0, "node0")]))
