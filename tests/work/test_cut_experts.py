"""Experts whose matrices are cut over the tensor-parallel group (`plan.etp`): counts, laws, prices, and who holds what."""

import numpy as np
import pytest
from counts import layer_expert_params, layer_work
from hypothesis import given
from hypothesis import strategies as st
from open_space import search

from sim import build_scenario, estimate
from sim.pricing.cells import plans_of
from sim.pricing.deal import HELD, params_of
from sim.pricing.layouts import cut_of
from sim.search.explain import rank_plan
from sim.specs import ParallelPlan
from sim.work.experts import routed
from sim.work.layers import deal_stages

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
