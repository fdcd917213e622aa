"""What switches leave of a card: by hand, against max-min fairness, and as a law of every answer."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import build_scenario, estimate
from sim.errors import SpecError
from sim.network import sharing
from sim.network.flows import flows_on, max_min_rates
from sim.network.lattice import Lattice
from sim.network.routing import route
from sim.network.sharing import Switches, card_share
from sim.network.topology import build_topology

DATA = {
    "model": "llama2-7b",
    "plan": {"dp": 256, "microbatch_size": 1, "zero_stage": 1},
    "training": {"global_batch_size": 256, "sequence_length": 4096, "precision": "bf16"},
    "stack": "megatron-core",
}


def machine(ratio=1.0, rails=False, routing="adaptive", nodes=32, below=4):
    return {
        "name": "mine",
        "node": "dgx-h100",
        "num_nodes": nodes,
        "network": {
            "rail_optimised": rails,
            "routing": routing,
            "levels": {"leaf": {"ports": 64, "below": below, "oversubscription": ratio}, "core": {"ports": 2048}},
        },
    }


def built(*changes, **network):
    return build_scenario({**DATA, "cluster": machine(**network)}, changes)


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0, 8.0])
def test_sends_of_pipelines_that_cross_leaves_by_hand(ratio):
    """Eight ranks of four nodes, a leaf each: every card sends up, and the leaf has a ratio-th of the cables."""
    cluster = built("plan.pp=8", "plan.dp=32", ratio=ratio).cluster
    assert card_share(cluster, 8, 32, 256, "chain") == pytest.approx(1 / ratio)
    # A ring through all nodes leaves a leaf over eight cards of the thirty-two on it.
    assert card_share(cluster, 256, 1, 256) == pytest.approx(min(1.0, 4 / ratio))
    # Groups inside a node use no switch.
    assert card_share(cluster, 8, 1, 256) == 1.0


@settings(max_examples=25, deadline=None)
@given(
    ratio=st.sampled_from([1.5, 2.0, 4.0, 8.0]),
    rails=st.booleans(),
    size=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 8, 32]),
)
def test_the_slowest_flow_of_fair_sharing_is_what_the_fullest_link_allows(ratio, rails, size, stride):
    cluster = built(ratio=ratio, rails=rails).cluster
    switches = Switches.of(cluster)
    if size * stride > 256:
        return
    sources, targets, _ = switches._flows(Lattice(((size, stride),), 256).groups(), "ring")
    if not sources.size:
        return
    topology = build_topology(cluster)
    paths = route(topology, sources, targets, "adaptive", proxy=rails)
    fair = max_min_rates(flows_on(paths), topology.capacity).min() / cluster.inter_node_bandwidth_bytes_per_s
    assert switches.card_share(size, stride, 256) == pytest.approx(min(1.0, fair), rel=1e-9)


@pytest.mark.parametrize("plan", [("plan.dp=256",), ("plan.pp=8", "plan.dp=32"), ("plan.tp=16", "plan.dp=16"), ("plan.cp=16", "plan.dp=16")])  # fmt: skip
@pytest.mark.parametrize("rails", [False, True])
def test_fewer_cables_up_never_make_the_default_answer_faster(plan, rails):
    steps = [estimate(built(*plan, ratio=ratio, rails=rails)).step_time_s for ratio in (1.0, 2.0, 4.0, 8.0)]
    assert all(more >= less * (1 - 1e-12) for less, more in pairwise(steps))
    if not rails:
        assert steps[-1] > 1.003 * steps[0]
    plain = build_scenario({**DATA, "cluster": {**machine(), "network": None}}, plan)
    assert steps[0] == pytest.approx(estimate(plain).step_time_s, rel=1e-12)


def test_rails_spare_the_cables_above_the_leaves():
    with_rails, without = (
        estimate(built("plan.pp=8", "plan.dp=32", ratio=8.0, rails=rails, below=4 if not rails else 32)).step_time_s
        for rails in (True, False)
    )
    assert with_rails < without


def test_hashed_flows_collide_and_more_of_them_less():
    one, many = (
        card_share(built(f"cluster.network.subflows={flows}", routing="ecmp").cluster, 8, 32, 256, "chain")
        for flows in (1, 16)
    )
    assert one < many < 1.0


def test_a_machine_that_cannot_be_built_is_refused():
    with pytest.raises(SpecError, match=r"ports"):
        estimate(built("cluster.network.levels.leaf.below=32"))


def test_the_answer_says_what_switches_leave():
    said = " ".join(estimate(built("plan.pp=8", "plan.dp=32", ratio=4.0)).assumptions)
    assert "pipeline sends 25%" in said
    assert "switches leave" not in " ".join(estimate(built()).assumptions)


def test_shares_are_remembered_by_machine():
    first, second = built(ratio=4.0).cluster, built(ratio=2.0).cluster
    shares = [card_share(each, 8, 32, 256, "chain") for each in (first, second, first)]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25])
    assert Switches.of(first) is Switches.of(first)


@pytest.mark.parametrize("pairs", [1, 7, 1000])
def test_routing_in_pieces_changes_nothing(pairs, monkeypatch):
    cluster = built(ratio=2.0, routing="ecmp").cluster
    fields = (build_topology(cluster), cluster, cluster.network, cluster.inter_node_bandwidth_bytes_per_s, False)
    expected = [Switches(*fields).card_share(size, 8, 256) for size in (2, 4, 32)]
    monkeypatch.setattr(sharing, "_pairs_at_once", lambda topology, subflows: pairs)
    assert [Switches(*fields).card_share(size, 8, 256) for size in (2, 4, 32)] == expected


def test_a_pair_in_more_flows_than_are_routed_at_once_is_a_piece():
    topology = build_topology(built().cluster)
    assert sharing._pairs_at_once(topology, 10**9) == 1
    assert sharing._pairs_at_once(topology, 1) >= 32_768
