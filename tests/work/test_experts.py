"""Mixtures of experts and latent attention: counts against formulas, laws, and each other."""

import pytest
from counts import layer_forward_flop, layer_work

from sim.errors import SpecError
from sim.specs import ModelSpec, build_scenario, load_preset
from sim.work.pieces import Cut
from sim.work.sums import active_params, layer_params, model_flop

MIXTRAL = load_preset("models", "mixtral-8x7b")
TRAINING = {"global_batch_size": 64, "sequence_length": 1024, "precision": "bf16"}


def scenario_of(model, **plan):
    return build_scenario(
        {"model": model.model_dump(), "cluster": "superpod-h100", "profile": "h100", "stack": "megatron-core",
         "plan": plan, "training": TRAINING}
    )  # fmt: skip


def test_a_token_costs_six_times_what_it_meets():
    """6 N a token plus attention and less the embedding, which is looked up."""
    model = ModelSpec.model_validate(MIXTRAL)
    scenario = scenario_of(model, ep=8, dp=8)
    tokens = 64 * 1024
    attention = 3 * model.num_layers * 2.0 * 64 * 1024**2 * 32 * 256
    looked_up = 32000 * 4096
    norms = 65 * 4096
    expected = 6 * tokens * (active_params(model) - looked_up - norms) + attention
    assert model_flop(model, scenario.training) == pytest.approx(expected, rel=1e-9)


def test_one_expert_for_all_tokens_is_an_mlp_and_a_router():
    dense = ModelSpec(num_layers=4, hidden_size=512, num_heads=8, vocab_size=1024, bias=False)
    one = dense.replace(num_experts=1, experts_per_token=1)
    router = 512
    assert layer_params(one) == layer_params(dense) + router
    assert layer_forward_flop(one, 1, 64) == layer_forward_flop(dense, 1, 64) + 2 * 64 * router


@pytest.mark.parametrize(
    ("changes", "plan", "words"),
    [
        ({"experts_per_token": 9}, {}, "experts_per_token 9 must be 1 to num_experts 8"),
        ({"num_experts": 0}, {}, "experts_per_token 2 needs num_experts"),
        ({"num_dense_layers": 32}, {}, "leaves none of the 32 layers"),
        ({"key_value_rank": 64, "num_kv_heads": None, "rotary_head_dim": 128}, {}, "must be less than head_dim 128"),
        ({"rotary_head_dim": 64}, {}, "needs key_value_rank"),
        ({}, {"ep": 3, "dp": 3}, "plan.ep = 3 must divide model.num_experts = 8"),
        ({}, {"ep": 4, "dp": 2}, "ep 4 must divide tp · cp · dp = 2"),
        ({}, {"tp": 2}, "needs plan.sequence_parallel"),
    ],
)
def test_impossible_mixtures_say_why(changes, plan, words):
    data = {"model": MIXTRAL | changes, "cluster": "superpod-h100", "profile": "h100", "stack": "megatron-core",
            "plan": plan, "training": TRAINING | {"global_batch_size": 66 if plan.get("dp") == 3 else 64}}  # fmt: skip
    with pytest.raises(SpecError, match=words):
        build_scenario(data)


def test_a_router_that_is_not_fused_takes_more_launches_and_nothing_else():
    one = scenario_of(ModelSpec(**MIXTRAL))
    cut = Cut(tp=1, ep=1, microbatch_size=1, sequence_length=2048, sequence_parallel=False, recompute="none")
    fused, apart = (layer_work(one.model, one.stack.replace(fused_router=each), cut) for each in (True, False))
    for phase, more in (("forward", 30.0), ("input_grad", 20.0)):
        before, after = (getattr(each, phase).operations for each in (fused, apart))
        assert sum(item.kernels for item in after) - sum(item.kernels for item in before) == pytest.approx(more)
        assert sum(item.nbytes for item in after) == sum(item.nbytes for item in before)


def stack():
    from sim.specs import StackSpec

    return StackSpec(name="test", kernel_launch="10 us")
