"""Experts: dealt out and cut over GPUs, tokens that fall on them unevenly, and what their travel costs."""

import numpy as np
import pytest
from asked import asked
from counts import layer_expert_params, layer_work
from hypothesis import given
from hypothesis import strategies as st
from open_space import search

from sim import build_scenario, estimate
from sim.foreign.exporters import export_scenario
from sim.pricing.cells import plans_of
from sim.pricing.deal import HELD, params_of
from sim.pricing.layouts import cut_of
from sim.search.explain import rank_plan
from sim.specs import ModelSpec, ParallelPlan, TrainingSpec, load_scenario
from sim.work.experts import routed
from sim.work.layers import deal_stages
from sim.work.pieces import Cut
from sim.work.routing import busiest_share, dropped_share, share_alone

DATA = {
    "name": "cut",
    "model": {
        "num_layers": 4, "hidden_size": 1024, "num_heads": 16, "vocab_size": 32000, "intermediate_size": 4096,
        "gated_mlp": True, "position": "rotary", "norm": "rmsnorm", "bias": False, "tied_embeddings": False,
        "num_experts": 16, "experts_per_token": 2, "expert_intermediate_size": 2048,
        "shared_expert_intermediate_size": 1024, "num_dense_layers": 1,
    },
    "cluster": "superpod-h100",
    "plan": {"tp": 4, "dp": 8, "ep": 4, "sequence_parallel": True, "zero_stage": 1},
    "training": {"global_batch_size": 64, "sequence_length": 2048, "precision": "bf16"},
    "stack": "megatron-core",
}  # fmt: skip
WAYS = [(8, 1), (8, 4), (2, 4), (1, 4), (4, 1), (1, 1)]


def built(*changes):
    return build_scenario(DATA, changes)


def work_of(scenario):
    return layer_work(scenario.model, scenario.stack, cut_of(scenario))


def multiplies(phase):
    return [item for item in phase.operations if item.name.startswith("experts") and item.kind == "matmul"]


@pytest.mark.parametrize(("ep", "etp"), WAYS)
@pytest.mark.parametrize("zero", [0, 1])
def test_parameters_are_dealt_out_once(ep, etp, zero):
    """Of 16 experts every GPU holds one of ep · etp parts; the optimizer's 12 bytes a parameter are there once."""
    scenario = built(f"plan.ep={ep}", f"plan.etp={etp}", f"plan.zero_stage={zero}")
    batch, stages = plans_of(scenario), deal_stages(scenario.model, scenario.plan)
    held = params_of(np.array([sum(stage.part for stage in stages)]), batch.layouts)[HELD]
    others, experts = held.ravel().tolist()
    assert experts * ep * etp == pytest.approx(3 * layer_expert_params(scenario.model), rel=1e-12)
    layouts, plan = batch.layouts, scenario.plan
    assert layouts.expert_data.size.item() == plan.num_expert_replicas == 32 // (ep * etp)
    kept = 12 * 32 * layouts.shard_of(held).item()
    of_all = plan.tp * others + 3 * layer_expert_params(scenario.model)
    assert kept == pytest.approx(12 * of_all, rel=1e-12)
    if zero:
        (use,) = estimate(scenario).memory
        assert 32 * use.optimizer == pytest.approx(kept, rel=1e-12)


@given(st.sampled_from([(tp, ep) for tp in (2, 4, 8) for ep in (1, 2, 4)]), st.sampled_from([0.0, 0.75]))
def test_every_expert_multiplies_all_its_tokens_in_parts(degrees, skew):
    """Over the GPUs that hold a layer: as many FLOPs as of whole experts, in etp times the rows of 1/etp the width."""
    tp, ep = degrees
    common = (f"plan.tp={tp}", f"plan.dp={32 // tp}", f"plan.ep={ep}", f"training.expert_skew={skew}")
    whole, cut = (built(*common, f"plan.etp={etp}") for etp in (1, tp))
    for name in ("forward", "input_grad", "weight_grad"):
        one, other = (getattr(work_of(each), name) for each in (whole, cut))
        assert other.flop == pytest.approx(one.flop, rel=1e-12)
        for before, after in zip(multiplies(one), multiplies(other), strict=True):
            assert after.batch == before.batch
            assert after.m * after.n * after.k == pytest.approx(before.m * before.n * before.k, rel=1e-12)
    up_before, up_after = multiplies(work_of(whole).forward)[0], multiplies(work_of(cut).forward)[0]
    assert (up_after.m, up_after.n, up_after.k) == pytest.approx((tp * up_before.m, up_before.n / tp, up_before.k))
    to = routed(cut.model, cut_of(cut))
    assert to.copies == pytest.approx(tp * to.arrived) == pytest.approx(to.each * to.experts)


def test_searched_plans_are_cut_as_the_scenarios_own_at_the_same_prices():
    scenario = built("plan.etp=4")
    found = search(scenario, gpus=(32, 32), top=3, confirm=8)
    frame = found.to_frame()
    assert set(frame["tp"]) == {1, 2, 4, 8, 16}
    assert (frame["cp"] * frame["dp"] % frame["ep"] == 0).all()  # ep · etp divides tp · cp · dp
    fits = np.flatnonzero(found.prices.memory_bytes <= found.memory_limit_bytes)
    for place in fits[:: len(fits) // 60]:
        plan = found.scenario_at(int(place))
        assert plan.plan.etp == plan.plan.tp
        answer = estimate(plan)
        assert found.prices.step_time_s[place] == pytest.approx(answer.step_time_s, rel=1e-9)
        assert found.prices.memory_bytes[place] == pytest.approx(answer.largest.total, rel=1e-9)
    assert found.best[0].scenario.plan.etp == found.best[0].scenario.plan.tp
    assert any("etp = tp" in line for line in found.assumptions)
    ranked = rank_plan(found, scenario)
    assert ranked.ruled_out is None


def test_cut_experts_follow_the_tensor_parallel_group():
    plan = ParallelPlan(tp=4, dp=8, ep=2, etp=4, sequence_parallel=True)
    assert plan.replace(tp=2, dp=16).etp == 2
    assert plan.replace(tp=1, dp=32, sequence_parallel=False).etp == 1
    assert plan.replace(etp=1).etp == 1
    assert plan.replace(ep=8).num_expert_replicas == 1


ROUTED = ModelSpec(
    num_layers=16, hidden_size=1024, num_heads=8, vocab_size=32000, num_experts=64, experts_per_token=4,
    expert_intermediate_size=512,
)  # fmt: skip
JOB = TrainingSpec(global_batch_size=1, sequence_length=1)
DEGREES = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


@given(DEGREES, st.floats(0.1, 2.0))
def test_the_busiest_gets_more_than_its_share_and_never_all(ep, skew):
    share = busiest_share(ROUTED, JOB.replace(expert_skew=skew), ep)
    assert 1.0 - 1e-12 <= share <= ep * (1 + 1e-12)
    assert share == pytest.approx(1.0) if ep == 1 else share > 1.0


def test_layers_even_out_what_one_gpu_keeps():
    one, many = (busiest_share(ROUTED, JOB.replace(expert_skew=0.8), 16, layers) for layers in (1, 32))
    assert 1.0 < many < one


def test_against_tokens_thrown_at_random():
    """Popularity by a Zipf law, experts shuffled over 8 GPUs, 20,000 copies a layer: the mean over 400 layers."""
    rng, popular = np.random.default_rng(7), np.arange(1, 65) ** -0.7
    counts = [
        np.bincount(rng.choice(64, 20_000, p=rng.permutation(popular / popular.sum())) // 8, minlength=8).max() / 2500
        for _ in range(400)
    ]
    assert busiest_share(ROUTED, JOB.replace(expert_skew=0.7), 8) == pytest.approx(np.mean(counts), rel=0.03)


def test_a_measured_histogram_lies_as_it_is_given():
    load = (3.0,) * 8 + (1.0,) * 56
    assert busiest_share(ROUTED, JOB.replace(expert_load=load), 8) == pytest.approx(24 / 80 * 8)
    assert busiest_share(ROUTED, JOB.replace(expert_load=load), 1) == pytest.approx(1.0)
    degrees = np.array([[1, 8], [64, 8]])
    each = [[busiest_share(ROUTED, JOB.replace(expert_load=load), int(ep)) for ep in row] for row in degrees]
    assert busiest_share(ROUTED, JOB.replace(expert_load=load), degrees) == pytest.approx(np.array(each))


def test_capacity_drops_what_comes_beyond_it():
    load = (2.0,) * 16 + (1.0,) * 32 + (0.0,) * 16  # 64 in all: twice, once and never an even share
    assert dropped_share(ROUTED, JOB.replace(expert_load=load)) == 0.0
    assert dropped_share(ROUTED, JOB.replace(expert_load=load, expert_capacity_factor=1.5)) == pytest.approx(
        16 * 0.5 / 64
    )
    assert busiest_share(ROUTED, JOB.replace(expert_load=load, expert_capacity_factor=1.5), 4) == pytest.approx(1.5)
    padded = JOB.replace(expert_load=load, expert_capacity_factor=1.25, pad_to_capacity=True)
    assert busiest_share(ROUTED, padded, 4) == busiest_share(ROUTED, padded, 64) == 1.25


def test_even_routing_is_what_nothing_said_means():
    assert JOB.routes_evenly
    assert JOB.replace(expert_capacity_factor=1.25).routes_evenly
    cut = Cut(1, 1, 4096, False, ep=8)
    to = routed(ROUTED, cut)
    assert (to.copies, to.each) == (4 * 4096, 4 * 4096 / 8)
    # Tokens that have at least one of their four experts on a GPU of eight: 1 − (7/8)⁴ of all 8 · 4096.
    assert to.received == pytest.approx(8 * 4096 * (1 - (7 / 8) ** 4))


def test_the_busiest_gpu_sets_time_and_memory():
    """Skewed routing takes longer and more memory; a capacity of even shares takes less, as many experts get fewer."""
    ways = ({}, {"expert_skew": 0.75}, {"expert_skew": 0.75, "expert_capacity_factor": 1.0})
    large = ROUTED.replace(
        hidden_size=2048, num_heads=16, expert_intermediate_size=1024, position="rotary"
    ).model_dump()
    plan = {"dp": 16, "ep": 16, "zero_stage": 1}
    even, uneven, limited = (estimate(asked(large, "superpod-h100", plan, **way)) for way in ways)
    assert limited.step_time_s < even.step_time_s < uneven.step_time_s / 1.05
    assert limited.largest.activations < even.largest.activations < uneven.largest.activations
    assert "the busiest of 16 GPUs gets" in " ".join(uneven.assumptions)
    assert "of the tokens are dropped" in " ".join(limited.assumptions)


DEALT = {
    "num_layers": 16, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 4, "vocab_size": 32000,
    "intermediate_size": 5632, "gated_mlp": True, "position": "rotary", "norm": "rmsnorm", "bias": False,
    "tied_embeddings": False, "num_experts": 64, "experts_per_token": 4, "expert_intermediate_size": 1024,
    "num_dense_layers": 2,
}  # fmt: skip


def dealt(*, model=None, stack=None, cluster="superpod-h100", sequences=256, **plan):
    return asked(
        DEALT | (model or {}), cluster, {"microbatch_size": 1, **plan}, stack={"preset": "megatron-core", **(stack or {})},
        profile="h100", batch=sequences,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "sequences", "alone"),
    [
        ({"dp": 64, "ep": 32}, 64, 1.0),
        ({"dp": 64, "ep": 32}, 256, 1 / 4),
        ({"dp": 64, "ep": 32, "recompute": "full"}, 256, 1.0),
        ({"dp": 32, "ep": 32, "pp": 2}, 256, 1.0),
        ({"dp": 32, "ep": 32, "pp": 2, "schedule": "interleaved", "num_chunks": 2}, 256, 2 / 8),
    ],
)
def test_tokens_need_another_micro_batch_beside_them(plan, sequences, alone):
    """Megatron-Core pairs forwards and backwards of micro-batches, but for a pipeline's first and last ones."""
    launches = dict.fromkeys(("kernel_launch", "backward_launch", "collective_launch"), "2 us")

    def exposed(beside):
        stack = {**launches, "overlap_experts": beside}
        given = dealt(**plan, stack=stack, sequences=sequences)
        return given, estimate(given).breakdown.seconds["expert_parallel_comm"]

    given, beside = exposed(True)
    waits = exposed(False)[1]
    assert share_alone(given) == pytest.approx(alone)
    assert beside == pytest.approx(waits) if alone == 1 else alone * waits < beside < waits
    exported = export_scenario(given, "megatron-lm").text
    assert ("--overlap-moe-expert-parallel-comm" in exported) == (alone < 1)


def test_dualpipe_hides_its_tokens_and_compute_loses_beside_them(scenarios):
    """DeepSeek-V3, arXiv:2412.19437, section 3.2.1: dispatch and combine are hidden, by 20 of 132 multiprocessors.

    All but those of the sixth of the passes that have no other beside them, while the pipeline fills and drains.
    """
    shares = estimate(load_scenario(scenarios / "papers" / "deepseek-v3-2048-h800.yaml")).breakdown.shares()
    assert shares["expert_parallel_comm"] < 0.1 < 20 / 132 < shares["beside_expert_comm"]
