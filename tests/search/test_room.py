"""Plans that are too large as they are: their prices are estimates, and no other way to make room is better."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from asked import asked
from open_space import search

from sim.errors import InfeasiblePlan
from sim.estimate import estimate
from sim.search.room import LAYER_SHARES, OPTIMIZER_SHARES, WAYS
from sim.work.recompute import module_sets

SCENARIOS = Path(__file__).parents[2] / "scenarios"
LATENT = {
    "num_layers": 6, "num_dense_layers": 1, "hidden_size": 2048, "num_heads": 16, "head_dim": 192, "vocab_size": 32000,
    "intermediate_size": 8192, "gated_mlp": True, "bias": False, "num_experts": 16, "experts_per_token": 4,
    "expert_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "key_value_rank": 512, "query_rank": 512,
    "rotary_head_dim": 64, "value_head_dim": 128, "position": "rotary",
}  # fmt: skip
EXPERTS = {
    "num_layers": 6, "hidden_size": 2048, "num_heads": 16, "vocab_size": 32000, "gated_mlp": True, "bias": False,
    "num_experts": 8, "experts_per_token": 2, "expert_intermediate_size": 2048, "position": "rotary",
}  # fmt: skip
DENSE = {"num_layers": 7, "hidden_size": 2048, "num_heads": 16, "vocab_size": 32000}


def small(model, batch=8, **plan):
    """A model on a few H100 whose host is known."""
    node = {"preset": "dgx-h100", "host_link_bandwidth": "64 GB/s", "host_memory_bandwidth": "76.8 GB/s"}
    return asked(model, {"preset": "superpod-h100", "node": node}, plan, profile="h100", batch=batch, sequence=2048)


def everything(scenario, result, ways):
    """(price, plan) of all plans that need room and fit in some way, each by itself.

    But for those that would be slower than the best without any of it, as none of it makes a plan faster.
    """
    ceiling = result.best[0].priced_step_time_s * (1 + 1e-9)
    model, limit = scenario.model, result.memory_limit_bytes
    hosts = [(0.0, 0)]
    if "offload" in ways:
        layers = sorted({round(share * model.num_layers) for share in LAYER_SHARES})
        hosts = list(product(OPTIMIZER_SHARES, layers))
    found = []
    for place in np.flatnonzero((result.prices.memory_bytes > limit) & (result.prices.step_time_s <= ceiling)).tolist():
        base = result.scenario_at(place)
        if base.plan.recompute != "none":
            continue
        most = -(-model.num_layers // base.plan.num_stages)
        recomputed = [{}, {"recompute": "full"}]
        recomputed += [{"recompute": "selective", "recompute_modules": each} for each in module_sets(model, base.stack)]
        blocks = range(1, most)
        for (share, layers), changes in product(hosts, recomputed):
            plan = base.plan.replace(**changes, optimizer_offload=share, offloaded_layers=layers)
            found.append(plan)
        for number in blocks if "block" in ways else ():
            found.append(base.plan.replace(recompute="full", recompute_method="block", recompute_num_layers=number))
    prices = []
    for plan in found:
        answer = estimate(scenario.replace(plan=plan))
        if answer.largest.total <= limit:
            prices.append((answer.step_time_s, plan))
    return prices


@pytest.mark.parametrize(
    ("model", "ways", "gpus", "batch", "limit"),
    [
        pytest.param(DENSE, WAYS, 2, 2, 8.572e9, marks=pytest.mark.thorough),
        (EXPERTS, ("modules", "block"), 4, 2, 7.974e9),
        (EXPERTS, WAYS, 1, 2, 18.67e9),
        pytest.param(LATENT, ("modules", "block"), 2, 2, 11.84e9, marks=pytest.mark.thorough),
    ],
    ids=["dense, host", "experts", "experts, host", "latent attention"],
)
def test_no_other_way_is_better(model, ways, gpus, batch, limit):
    """Every set of modules, number of layers and use of the host, of every plan that does not fit, one by one."""
    scenario = small(model, batch)
    result = search(scenario, gpus=(gpus, gpus), memory_limit_bytes=limit, room=ways, top=3)
    prices = everything(scenario, result, ways)
    assert prices
    best = min(prices, key=lambda each: each[0])
    without = search(scenario, gpus=(gpus, gpus), memory_limit_bytes=limit, room=(), top=3, require_fit=False)
    in_space = min((each.priced_step_time_s for each in without.best), default=np.inf)
    assert best[0] < in_space, "the limit should make room worth its price"
    assert result.best[0].priced_step_time_s == pytest.approx(best[0], rel=1e-9)
    assert result.gap == 0.0
    assert result.best[0].answer.largest.total <= limit


def test_more_memory_is_never_slower_where_something_runs_again():
    """A plan that fits as it is may run fewer layers again than all, too."""
    scenario, best = small(DENSE, dp=4), np.inf
    for limit in (8e9, 12e9, 20e9, 84e9):
        found = search(scenario, fixed={"recompute": "full"}, memory_limit_bytes=limit)
        assert found.best[0].answer.step_time_s <= best
        assert 0 <= found.plans_made_to_fit <= found.plans_feasible
        best = found.best[0].answer.step_time_s
    plan = found.best[0].scenario.plan
    assert (plan.recompute_method, plan.recompute_num_layers) == ("block", 1)


def test_what_fits_with_the_host_only_is_said():
    scenario, limit = small(EXPERTS), 16.69e9
    with pytest.raises(
        InfeasiblePlan, match=r"with .* in host memory one fits .* --room modules,block,offload, or use"
    ):
        search(scenario, gpus=(1, 1), memory_limit_bytes=limit)
    plan = search(scenario, gpus=(1, 1), memory_limit_bytes=limit, room=WAYS).best[0].scenario.plan
    assert plan.optimizer_offload or plan.offloaded_layers
    cluster = scenario.cluster.replace(node=scenario.cluster.node.replace(host_link_bandwidth_bytes_per_s=None))
    with pytest.raises(InfeasiblePlan, match=r"19 GB, or use more GPUs"):
        search(scenario.replace(cluster=cluster), gpus=(1, 1), memory_limit_bytes=limit)
