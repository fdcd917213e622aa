"""What switches leave of a card and what it costs where ranks lie: by hand, against max-min fairness, as a law of every answer."""

from itertools import pairwise

import numpy as np
import pytest
from flows import flows_on
from hypothesis import given, settings
from hypothesis import strategies as st
from open_space import search
from rows import rows
from trees import on_tree

from sim import build_scenario, estimate, simulate
from sim.engines import run
from sim.engines.program import priced_order, program_of
from sim.engines.wire import max_min_rates
from sim.errors import SpecError
from sim.network import sharing
from sim.network.placement import Degrees, groups_of
from sim.network.routing import route
from sim.network.sharing import flows_of
from sim.network.topology import build_topology
from sim.reliability.state import state_of
from sim.scaling.goal import goal_of
from sim.scaling.training_time import shortest
from sim.search.explain import rank_plan
from sim.units import show_time

DATA = {
    "model": "llama2-7b", "plan": {"dp": 256, "microbatch_size": 1, "zero_stage": 1},
    "training": {"global_batch_size": 256, "sequence_length": 4096, "precision": "bf16"}, "stack": "megatron-core",
}  # fmt: skip


def built(*changes, ratio=1.0, rails=False, routing="adaptive", nodes=32, below=4):
    leaf = {"ports": 64, "below": below, "oversubscription": ratio}
    network = {"rail_optimised": rails, "routing": routing, "levels": {"leaf": leaf, "core": {"ports": 8000}}}
    cluster = {"name": "mine", "node": "dgx-h100", "num_nodes": nodes, "network": network}
    return build_scenario({**DATA, "cluster": cluster}, changes)


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


# A leaf for each node of eight cards of 50 GB/s, with four cables up: every card that sends up has half a cable. Messages
# reach at best 0.9 of a card on H100, so these have 0.45 of it, 22.5 GB/s, and 0.64 on a full tree.
HALVED, FULL = 22.5e9, 32e9


def test_what_a_tree_of_2_to_1_adds_to_a_step_by_hand():
    """Gradients of 4 bytes are summed after the step: each GPU's eighth of the weights, and all weights of the norms."""
    changes = "plan.tp=8", "plan.dp=32", "plan.zero_stage=0", "stack.overlap_grad_reduce=false"
    answers = [estimate(built(*changes, ratio=ratio, below=1)) for ratio in (1.0, 2.0)]
    norms = (2 * 32 + 1) * 4096
    moved = 2 * 31 / 32 * 4 * ((answers[0].params - norms) / 8 + norms) + 1e6  # of the ramp
    added = answers[1].step_time_s - answers[0].step_time_s
    assert added == pytest.approx(moved * (1 / HALVED - 1 / FULL), rel=1e-6)
    assert added == pytest.approx(0.08617, abs=1e-5)


@settings(max_examples=8, deadline=None)
@given(
    ratio=st.sampled_from([1.5, 2.0, 4.0, 8.0]), rails=st.booleans(), size=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 8, 32]),
)  # fmt: skip
def test_the_slowest_flow_of_fair_sharing_is_what_the_fullest_link_allows(ratio, rails, size, stride):
    cluster = built(ratio=ratio, rails=rails).cluster
    if size * stride > 256:
        return
    sources, targets, _ = flows_of(groups_of(size, stride, Degrees(dp=256), cluster), "ring", 8)
    if not sources.size:
        return
    topology = build_topology(cluster)
    leaving = sources // 8 * 8 + targets % 8 if rails else sources  # over NVLink to the target's rail
    paths = route(topology, leaving, targets)
    fair = max_min_rates(flows_on(paths), topology.capacity).min() / cluster.inter_node_bandwidth_bytes_per_s
    assert share(cluster, size, stride) == pytest.approx(min(1.0, fair), rel=1e-9)


@pytest.mark.parametrize("rails", [False, True])
@pytest.mark.parametrize("size", [16, 64, 256])
def test_all_to_alls_under_a_leaf_of_four_nodes_by_hand(size, rails):
    """Partners under other leaves get size - 32 of the size - 8 parts that a member sends out of its node of 8."""
    cluster = built(ratio=4.0, rails=rails).cluster
    up = max(0, size - 32) / (size - 8)
    assert share(cluster, size, 1, "all_to_all") == pytest.approx(min(1.0, 0.25 / up if up else 1.0))


def test_partners_that_stand_for_all_carry_the_bytes_of_all(monkeypatch):
    """A member's bytes leave its domain but for those that never do, and eight partners get within a tenth of all."""
    monkeypatch.setattr(sharing, "_MOST_FLOWS", 1)
    cluster = built(ratio=4.0).cluster
    sources, targets, weight = flows_of(groups_of(256, 1, Degrees(dp=256), cluster), "all_to_all", 8)
    assert (sources // 8 != targets // 8).all()
    assert len(sources) * weight == pytest.approx(256)
    assert np.bincount(sources, minlength=256).min() > 0
    assert share(cluster, 256, 1, "all_to_all") == pytest.approx(0.25 * 248 / 224, rel=0.1)


def test_the_answer_says_what_switches_leave():
    slow, free = (estimate(built("plan.pp=8", "plan.dp=32", ratio=ratio)) for ratio in (4.0, 1.0))
    said = next(line for line in slow.assumptions if "switches leave this share" in line)
    assert "pipeline sends 25%" in said
    more = slow.step_time_s - free.step_time_s
    hidden = more < 5e-4 * slow.step_time_s
    assert ("It costs nothing visible" if hidden else f"a step would take {show_time(more)} ") in said
    assert slow.assumptions.index(said) < 2
    nothing = "oversubscribed switches cost this plan nothing"
    assert [nothing in " ".join(estimate(built(ratio=ratio)).assumptions) for ratio in (2.0, 1.0)] == [True, False]


@settings(max_examples=20, deadline=None)
@given(
    ports=st.tuples(st.integers(4, 64), st.integers(4, 64), st.integers(4, 128)),
    below=st.tuples(st.none() | st.integers(1, 16), st.none() | st.integers(1, 16)), rails=st.booleans(),
    nodes=st.integers(2, 96), ratio=st.sampled_from([1.0, 1.0, 1.5, 4.0]),
)  # fmt: skip
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


SMALLER = ["plan.pp=16", "plan.dp=12", "training.global_batch_size=384"]  # of the 1T run, to be quick


@pytest.fixture
def times(scenarios):
    """Step times by the formulas and with links shared, of a tree and a case."""

    def answer(tree, case):
        found = simulate(on_tree(scenarios / "gpt-1t-3072-a100.yaml", tree, case, SMALLER), contention=True)
        return found.noiseless_s, found.mean_s

    return answer


def test_on_a_full_tree_only_scatter_gather_shows(times):
    _, own = times("full, adaptive", "as it is")
    assert times("full, adaptive", "no scatter/gather")[1] > 1.01 * own
    for case in ("no rails", "pipeline ranks closer than replicas", "nodes anywhere in the machine"):
        assert times("full, adaptive", case)[1] == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("tree", ["full, ecmp", "1:8, adaptive"])
def test_with_few_cables_or_hashes_that_collide_rails_and_scatter_gather_save_more(tree, times):
    own, without, no_rails = (times(tree, case) for case in ("as it is", "no scatter/gather", "no rails"))
    assert without[0] > 1.01 * own[0]
    assert no_rails[0] > 1.003 * own[0]
    assert own[0] >= times("full, adaptive", "as it is")[0] * (1 - 1e-9)
    for formula, shared in (own, without, no_rails):
        assert shared == pytest.approx(formula, rel=0.002)


PLACEMENTS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "dp-tp-cp-pp", "pp-dp-cp-tp")


def asked(*changes, rails=False, **network):
    """A pipeline of eight ranks; without rails four nodes to a leaf."""
    plan = "plan.tp=4", "plan.pp=8", "plan.dp=8", "stack.overlap_p2p=true"
    return built(*plan, *changes, rails=rails, below=32 if rails else 4, **network)


def step(*changes, **network):
    return estimate(asked(*changes, **network)).step_time_s


@rows("placement", PLACEMENTS)
@rows(
    ("routing", "rails", "fragmentation"),
    [("adaptive", False, 0.0), ("adaptive", True, 0.7), ("ecmp", False, 0.7), ("ecmp", True, 0.0)],
)
def test_fewer_cables_up_never_make_the_default_answer_faster(placement, routing, rails, fragmentation):
    where = [f"plan.placement={placement}", f"cluster.fragmentation={fragmentation}"]
    steps = [step(*where, ratio=ratio, rails=rails, routing=routing, nodes=64) for ratio in (1.0, 2.0, 4.0, 8.0)]
    assert all(more >= less * (1 - 1e-12) for less, more in pairwise(steps))
    if not rails:
        assert steps[-1] > 1.002 * steps[0]


@rows(
    ("placement", "schedule"),
    [*zip(PLACEMENTS * 2, ["1f1b", "gpipe", "interleaved", "zb_v", "chimera", "1f1b"], strict=False)],
)
def test_folded_unfolded_and_all_engines_agree(placement, schedule):
    chunks = {"interleaved": 2, "zb_v": 2}.get(schedule, 1)
    changes = [f"plan.placement={placement}", f"plan.schedule={schedule}", f"plan.num_chunks={chunks}"]
    scenario = asked(*changes, "plan.dp=4", "plan.pp=8", ratio=4.0, nodes=64)
    folded, unfolded = (
        run(program_of(scenario, *priced_order(scenario, fold=fold))).step_time_s for fold in (True, False)
    )
    assert unfolded == pytest.approx(folded, rel=1e-12)
    assert folded == estimate(scenario).step_time_s
    assert estimate(scenario, "des").step_time_s == pytest.approx(folded, rel=1e-12)


@rows("placement", PLACEMENTS)
@rows("ratio", [1.0, 8.0])
def test_contention_is_on_top_of_what_placement_costs(placement, ratio):
    """Nothing is counted twice: where nothing else meets, links shared give what the formula says."""
    scenario = asked(f"plan.placement={placement}", "plan.dp=4", ratio=ratio)
    alone, shared = estimate(scenario).step_time_s, simulate(scenario, contention=True).mean_s
    assert alone * (1 - 1e-9) <= shared < 1.02 * alone


def test_the_shortest_run_and_its_checkpoints_lie_where_the_plan_says():
    """Where a node has GPUs of every pipeline rank it writes no more than any other; else that of the embedding does."""
    scenario = asked("plan.placement=pp-dp-cp-tp", "cluster.node.gpu.memory=32 GB", ratio=8.0)
    goal = goal_of(7e9, tokens=20e9, critical_batch=512 * 1024.0)
    for point in shortest(scenario, goal, gpus=(32, 32), batches=(64,)).points:
        assert point.answer.scenario.plan.placement == "pp-dp-cp-tp"
    placements = ("tp-cp-dp-pp", "pp-dp-cp-tp")
    plans = (asked("plan.pp=8", "plan.tp=1", f"plan.placement={placement}") for placement in placements)
    usual, mixed = (state_of(plan).saved(parallel=True) for plan in plans)
    assert usual.total == mixed.total == pytest.approx(8 * mixed.node)
    assert usual.node > 1.1 * mixed.node


def test_a_plan_whose_ranks_lie_otherwise_is_said_to_be_outside_a_search():
    scenario = asked("plan.dp=2", nodes=16)
    result = search(scenario, gpus=(64, 64), top=1)
    other = scenario.replace(plan=scenario.plan.replace(placement="tp-cp-pp-dp"))
    assert "-s plan.placement=tp-cp-pp-dp" in rank_plan(result, other, steps=False).ruled_out
