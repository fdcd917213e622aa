"""Links by name, what is left of them, and the ways around those that are down."""

import numpy as np
import pytest

from sim.errors import SpecError
from sim.network.routing import link_health, link_name, route_around
from sim.network.topology import build_topology
from sim.specs import ClusterSpec, load_preset
from sim.specs.loading import resolve


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
