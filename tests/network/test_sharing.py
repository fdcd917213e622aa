"""What switches leave of a card: by hand, against max-min fairness, and as a law of every answer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import build_scenario, estimate
from sim.errors import SpecError
from sim.network import sharing
from sim.network.collective_flows import flows_on, max_min_rates
from sim.network.placement import Degrees
from sim.network.ranks import groups_of
from sim.network.routing import route
from sim.network.sharing import flows_of
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


def share(cluster, size, stride, pattern="ring"):
    """What switches leave groups that follow each other through all GPUs."""
    return sharing.card_share(cluster, lambda: groups_of(size, stride, Degrees(dp=256), cluster), pattern)


@pytest.mark.parametrize("ratio", [1.0, 2.0, 4.0, 8.0])
def test_sends_of_pipelines_that_cross_leaves_by_hand(ratio):
    """Eight ranks of four nodes, a leaf each: every card sends up, and the leaf has a ratio-th of the cables."""
    cluster = built("plan.pp=8", "plan.dp=32", ratio=ratio).cluster
    assert share(cluster, 8, 32, "chain") == pytest.approx(1 / ratio)
    # A ring through all nodes leaves a leaf over eight cards of the thirty-two on it.
    assert share(cluster, 256, 1) == pytest.approx(min(1.0, 4 / ratio))
    # Groups inside a node use no switch.
    assert share(cluster, 8, 1) == 1.0


@settings(max_examples=25, deadline=None)
@given(
    ratio=st.sampled_from([1.5, 2.0, 4.0, 8.0]),
    rails=st.booleans(),
    size=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 8, 32]),
)
def test_the_slowest_flow_of_fair_sharing_is_what_the_fullest_link_allows(ratio, rails, size, stride):
    cluster = built(ratio=ratio, rails=rails).cluster
    if size * stride > 256:
        return
    sources, targets, _ = flows_of(groups_of(size, stride, Degrees(dp=256), cluster), "ring", 8)
    if not sources.size:
        return
    topology = build_topology(cluster)
    paths = route(topology, sources, targets, "adaptive", proxy=rails)
    fair = max_min_rates(flows_on(paths), topology.capacity).min() / cluster.inter_node_bandwidth_bytes_per_s
    assert share(cluster, size, stride) == pytest.approx(min(1.0, fair), rel=1e-9)


@pytest.mark.parametrize("size", [16, 64, 256])
def test_partners_that_stand_for_all_carry_the_bytes_of_all(size):
    """Of 15 and more partners eight are looked at: a member's bytes leave its domain but for those that never do."""
    cluster = built().cluster
    sources, targets, weight = flows_of(groups_of(size, 1, Degrees(dp=256), cluster), "all_to_all", 8)
    assert (sources // 8 != targets // 8).all()
    assert len(sources) * weight == pytest.approx(256)
    assert np.bincount(sources, minlength=256).min() > 0


def test_rails_spare_the_cables_above_the_leaves():
    with_rails, without = (
        estimate(built("plan.pp=8", "plan.dp=32", ratio=8.0, rails=rails, below=4 if not rails else 32)).step_time_s
        for rails in (True, False)
    )
    assert with_rails < without


def test_hashed_flows_collide_and_more_of_them_less():
    one, many = (
        share(built(f"cluster.network.subflows={flows}", routing="ecmp").cluster, 8, 32, "chain") for flows in (1, 16)
    )
    assert one < many < 1.0


def test_a_machine_that_cannot_be_built_is_refused():
    with pytest.raises(SpecError, match=r"ports"):
        estimate(built("cluster.network.levels.leaf.below=32"))


def test_the_answer_says_what_switches_leave():
    said = " ".join(estimate(built("plan.pp=8", "plan.dp=32", ratio=4.0)).assumptions)
    assert "pipeline sends 25%" in said
    assert "switches leave this share" not in " ".join(estimate(built()).assumptions)


def test_shares_are_remembered_by_machine():
    first, second = built(ratio=4.0).cluster, built(ratio=2.0).cluster
    shares = [share(each, 8, 32, "chain") for each in (first, second, first)]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25])


@pytest.mark.parametrize("pairs", [1, 7, 1000])
def test_routing_in_pieces_changes_nothing(pairs, monkeypatch):
    expected, found = (built(ratio=2.0, routing="ecmp").cluster for _ in range(2))
    shapes = (2, 8), (4, 8), (32, 8)
    expected = [share(expected, *shape) for shape in shapes]
    monkeypatch.setattr(sharing, "_AT_ONCE", pairs)
    assert [share(found, *shape) for shape in shapes] == expected


@settings(max_examples=60, deadline=None)
@given(
    ports=st.tuples(st.integers(4, 64), st.integers(4, 64), st.integers(4, 128)),
    below=st.tuples(st.none() | st.integers(1, 16), st.none() | st.integers(1, 16)),
    rails=st.booleans(),
    nodes=st.integers(2, 96),
    ratio=st.sampled_from([1.0, 1.0, 1.5, 4.0]),
)
def test_switches_are_short_of_cables_only_where_a_level_says_so(ports, below, rails, nodes, ratio):
    """What answers take for granted without building any switch."""
    sizes = zip(("leaf", "spine", "core"), ports, (*below, None), strict=True)
    levels = {name: {"ports": many, "below": joins} for name, many, joins in sizes}
    levels["spine"]["oversubscription"] = ratio
    cluster = built().cluster
    cluster = cluster.replace(num_nodes=nodes, network={"levels": levels, "rail_optimised": rails})
    try:
        topology = build_topology(cluster)
    except SpecError:
        return  # refused, whatever is asked of it
    sending = np.full((nodes, topology.rails), 8 / topology.rails * cluster.inter_node_bandwidth_bytes_per_s)
    for level in topology.levels[:-1]:
        sending = np.add.reduceat(sending, np.arange(0, len(sending), level.below), axis=0)
        wanted = cluster.network.levels[level.name].oversubscription
        assert (sending <= level.trunk_bytes_per_s * wanted * (1 + 1e-9)).all()
        sending = np.minimum(sending, level.trunk_bytes_per_s)
    used = [level.name for level in topology.levels[:-1]]
    assert cluster.network.is_nonblocking(used) == (ratio == 1.0 or "spine" not in used)
    assert cluster.network.is_nonblocking() == (ratio == 1.0)
