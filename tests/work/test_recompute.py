"""What is recomputed, module by module: time, bytes kept and FLOPs against hand counts, laws and measurements."""

from itertools import combinations

import pytest
from counts import layer_activation_bytes, layer_work

from sim import estimate
from sim.specs import build_scenario
from sim.specs.plan import RECOMPUTE_MODULES
from sim.work.pieces import Cut
from sim.work.recompute import NOTHING, WHOLE, Recompute
from sim.work.sums import forward_flop, hardware_flop, model_flop, model_layers

# Moonlight-16B-A3B as Megatron-Bridge's card on recomputation ran it.
MOONLIGHT = {
    "num_layers": 27, "hidden_size": 2048, "num_heads": 16, "vocab_size": 163840, "intermediate_size": 10944,
    "gated_mlp": True, "position": "rotary", "norm": "rmsnorm", "bias": False, "tied_embeddings": False,
    "num_experts": 64, "experts_per_token": 6, "expert_intermediate_size": 1408, "num_dense_layers": 1,
    "shared_expert_intermediate_size": 2816, "key_value_rank": 512, "head_dim": 192, "rotary_head_dim": 64,
    "value_head_dim": 128,
}  # fmt: skip
GPT = {"num_layers": 12, "hidden_size": 1024, "num_heads": 16, "vocab_size": 51200, "intermediate_size": 4096,
       "position": "rotary", "bias": False, "gated_mlp": True}  # fmt: skip
PLAN = {"tp": 2, "dp": 4, "ep": 8, "sequence_parallel": True, "zero_stage": 1}
TRAINING = {"global_batch_size": 4, "sequence_length": 4096, "precision": "bf16"}


def scenario_of(model=MOONLIGHT, training=TRAINING, stack="megatron-core", **plan):
    base = PLAN if model is MOONLIGHT else {}
    return build_scenario(
        {"model": model, "cluster": "superpod-h100", "profile": "h100", "stack": stack, "plan": base | plan,
         "training": training}
    )  # fmt: skip


def cut_of(**changes):
    return Cut(**{"tp": 2, "microbatch_size": 1, "sequence_length": 4096, "sequence_parallel": True,
                  "ep": 8, **changes})  # fmt: skip


def kind_of(model, dense):
    """The first layer's kind, which has no experts, or the last's."""
    return model.kind_of_layer[0 if dense else -1]


def spared(*names, dense=False, **changes):
    """Bytes of a layer that recomputing modules spares."""
    one, cut = scenario_of(), cut_of(**changes)
    kept = [
        layer_activation_bytes(one.model, one.stack, cut, word, kind_of(one.model, dense))
        for word in (NOTHING, Recompute("selective", names))
    ]
    return kept[0] - kept[1]


def test_bytes_by_hand():
    """Per GPU 4096 tokens, of which it routes 2048 to 6 experts each; 8 of the 16 heads. [bytes]"""
    copies, tokens, own = 2048 * 6, 4096, 2048
    assert spared("moe_act") == 2 * copies * 1408
    assert spared("layernorm") == 2 * 2 * own * 2048  # before the attention and before the experts
    assert spared("mla_up_proj") == 2 * tokens * 8 * (192 + 192 + 128)
    assert spared("core_attn") == 4 * tokens * 8  # flash attention's row statistics
    assert spared("shared_experts") == 2 * tokens * 3 * 2816 / 2
    assert spared("mlp", dense=True) == 2 * tokens * 3 * 10944 / 2 + 2 * own * 2048
    assert spared("moe") == 2 * copies * (2048 + 3 * 1408) + 8 * own * 64 + spared("shared_experts")
    assert spared("mlp") == spared("moe", dense=True) == spared("moe_act", dense=True) == 0


@pytest.mark.parametrize("dense", [False, True])
def test_parts_sum_up_and_never_keep_more(dense):
    """What two modules spare is what each spares, but for modules that hold each other; more never keep more."""
    alone = {name: spared(name, dense=dense) for name in RECOMPUTE_MODULES}
    for one, other in combinations(RECOMPUTE_MODULES, 2):
        both = spared(one, other, dense=dense)
        if "moe" in (one, other) and {one, other} & {"moe_act", "shared_experts"}:
            assert both == alone["moe"]
        else:
            assert both == pytest.approx(alone[one] + alone[other])
    everything = spared(*RECOMPUTE_MODULES, dense=dense)
    model, stack = scenario_of().model, scenario_of().stack
    none, full = (
        layer_activation_bytes(model, stack, cut_of(), word, kind_of(model, dense)) for word in (NOTHING, WHOLE)
    )
    assert max(alone.values()) <= everything <= none - full


@pytest.mark.parametrize("name", [name for name in RECOMPUTE_MODULES if name not in ("layernorm", "moe_act")])
def test_flop_of_modules_are_those_of_their_operations(name):
    """The formula's count of a module, and what its operations run again, credited as formulas do."""
    one = scenario_of(tp=1, dp=1, ep=1, sequence_parallel=False)
    cut, again = cut_of(tp=1, ep=1, sequence_parallel=False), Recompute("selective", (name,))
    layers = ((one.model.num_layers - 1, False), (1, True))
    run = sum(
        number * layer_work(one.model, one.stack, cut, kind_of(one.model, dense), again).recompute.model_flop
        for number, dense in layers
    )
    layers = model_layers(one.model, 1, 4096)
    formula = sum(count * forward_flop(layer, RECOMPUTE_MODULES[name]) for count, _, layer in layers)
    assert run == pytest.approx(formula)
    plan = one.plan.replace(recompute="selective", recompute_modules=(name,))
    again = hardware_flop(one.model, one.training, plan) - model_flop(one.model, one.training)
    assert again == pytest.approx(4 * formula)  # a batch of four


def activations(answer):
    return answer.memory[0].activations


def with_modules(names, **changes):
    return scenario_of(**changes, **({"recompute": "selective", "recompute_modules": names} if names else {}))


@pytest.mark.parametrize(("names", "saved_gb"), [(("mla_up_proj",), 0.716), (("moe_act",), 0.677)])
def test_memory_saved_as_measured(names, saved_gb):
    """Peak allocated of Moonlight-16B-A3B on 8 H100, 36.618 GB without (Megatron-Bridge, card on recomputation)."""
    gain = activations(estimate(scenario_of())) - activations(estimate(with_modules(names)))
    assert gain / 1e9 == pytest.approx(saved_gb, rel=0.34)


def test_layers_in_groups_and_some_layers():
    """Inputs of every third layer; three of six layers of a stage as the mean of all and none."""
    plan, batch = {"pp": 2, "recompute": "full"}, TRAINING | {"global_batch_size": 8}
    ways = (
        {},
        {"recompute_num_layers": 3},
        {"recompute_num_layers": 3, "recompute_method": "block"},
        {"recompute": "none"},
    )
    one, groups, half, none = (estimate(scenario_of(GPT | {"dropout": 0.0}, batch, **plan | way)) for way in ways)
    # The host sets states around a group once, not around each of its layers.
    assert 0.9 * one.step_time_s < groups.step_time_s < one.step_time_s
    layer_inputs = 6 * 2 * 2 * 4096 * 1024  # of a stage's layers and two micro-batches in flight
    assert activations(one) - activations(groups) == pytest.approx(layer_inputs * 2 / 3)
    whole = layer_activation_bytes(one.scenario.model, one.scenario.stack, cut_of(tp=1, sequence_parallel=False))
    assert groups.memory[0].working - one.memory[0].working == pytest.approx(2 * whole)
    mean = (one.step_time_s + none.step_time_s) / 2
    assert 0.95 * mean < half.step_time_s < mean  # the host is ahead in the layers that are not computed again
    assert activations(half) == pytest.approx((activations(one) + activations(none)) / 2)
    assert half.hfu * half.step_time_s == pytest.approx((one.hfu * one.step_time_s + none.hfu * none.step_time_s) / 2)


def test_another_way_to_recompute_leaves_modules_behind():
    plan = scenario_of(recompute="selective", recompute_modules=["moe_act"]).plan
    assert plan.replace(recompute="full").recompute_modules == ()
    assert plan.replace(microbatch_size=2).recompute_modules == ("moe_act",)
    groups = scenario_of(recompute="full", recompute_num_layers=3).plan
    assert groups.replace(recompute="none").recompute_num_layers == 1


def test_matrices_of_a_dense_layer_take_turns():
    """torchtitan saves queries, values and the gate of Llama 3 8B; keys, the output and the other input run again."""
    model, tokens = scenario_of("llama3-8b").model, 4096
    here, stack = Cut(1, 1, tokens, False), scenario_of().stack
    work = layer_work(model, stack, here, recompute=Recompute("per_op"))
    again = {item.name: item.n for item in work.recompute.operations if item.kind == "matmul"}
    assert again == {"query, key, value": 1024, "attention output": 4096, "MLP up": 14336}
    kept = 2 * tokens * (3 * 4096 + 1024 + 14336) + 4 * tokens * 32  # also the layer's input, and the core's result
    assert layer_activation_bytes(model, stack, here, Recompute("per_op")) == kept
