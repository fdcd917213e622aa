"""Placement and fragmentation are facts of a scenario that every answer counts, from the flows of the layout alone."""

from itertools import pairwise

import pytest
from open_space import search
from rows import rows

from sim import build_scenario, estimate, simulate
from sim.engines import run
from sim.engines.program import priced_order, program_of
from sim.reliability.state import state_of
from sim.scaling.goal import goal_of
from sim.scaling.training_time import shortest
from sim.search.explain import rank_plan

DATA = {
    "model": "llama2-7b",
    "plan": {"tp": 4, "pp": 8, "dp": 8, "microbatch_size": 1, "zero_stage": 1},
    "training": {"global_batch_size": 256, "sequence_length": 4096, "precision": "bf16"},
    "stack": {"preset": "megatron-core", "overlap_p2p": True},
}
PLACEMENTS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "dp-tp-cp-pp", "pp-dp-cp-tp")


def asked(*changes, ratio=1.0, rails=False, routing="adaptive", nodes=32, data=DATA, below=None):
    leaf = {"ports": 64, "below": below or (32 if rails else 4), "oversubscription": ratio}
    network = {"rail_optimised": rails, "routing": routing, "levels": {"leaf": leaf, "core": {"ports": 8000}}}
    cluster = {"name": "mine", "node": "dgx-h100", "num_nodes": nodes, "network": network}
    return build_scenario({**data, "cluster": cluster}, changes)


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
