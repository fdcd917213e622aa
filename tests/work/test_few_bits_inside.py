"""What happens inside kernels in few bits: experts' activation between their multiplies, attention's multiplies
and dropout."""

from dataclasses import replace

import pytest
from asked import asked
from counts import attention_core, experts_work, layer_activation_bytes, layer_work
from rows import rows

from sim import estimate
from sim.costs.compute import ComputeModel
from sim.errors import SpecError
from sim.specs import GpuSpec, Profile, load_preset
from sim.specs.base import FORMATS
from sim.work.experts import routed
from sim.work.layers import layer_operations
from sim.work.operations import Cause, Kernel, Phase
from sim.work.pieces import Cut
from sim.work.sums import layer_bytes

GPUS = {"h100": "h100-sxm-80gb", "b200": "b200-sxm-180gb", "b300": "gb300-279gb"}


def scenario_of(model="qwen3-30b-a3b", precision="mxfp8", **stack):
    cluster, stack = (
        {"preset": "superpod-b200", "num_nodes": 1},
        {"preset": "megatron-core", "expert_dispatcher": "deepep", **stack},
    )
    return asked(model, cluster, {"dp": 8, "ep": 8}, stack=stack, profile="b200", precision=precision)


DENSE = asked(
    "llama3-8b", {"preset": "superpod-b200", "num_nodes": 1}, {"dp": 8, "zero_stage": 1}, batch=8, precision="fp8"
)


def cut(precision="mxfp8", **changes):
    return Cut(1, 4, 4096, False, "none", ep=8, format=FORMATS.get(precision), **changes)


def names(phase):
    return {item.name for item in phase.operations}


@rows(
    "node, framework, training, kept",
    [
        ("dgx-h100", "megatron-lm", {"precision": "fp8"}, 2),  # by rows and by columns
        ("dgx-b200", "megatron-lm", {"precision": "fp8"}, 1),  # which Blackwell reads either way
        ("dgx-b200", "megatron-lm", {"precision": "mxfp8", "high_precision_layers": 8}, 2 * (1 + 1 / 32) * 24 / 32),
        ("dgx-b200", "megatron-bridge", {"precision": "fp8"}, 1 - 2),  # and nothing in 16 bits
        ("dgx-b200", "megatron-bridge", {"precision": "nvfp4"}, 2 * (1 / 2 + 1 / 16)),
        ("dgx-h100", "torchtitan", {"precision": "fp8"}, 0),  # cast anew every time
    ],
)
def test_weights_are_kept_in_the_bits_that_are_multiplied(node, framework, training, kept):
    """Of Llama 3 8B's matrices in layers, in bytes a number beside the 16 bits of a run in bf16."""
    cluster, plan = {"name": "some", "node": node, "num_nodes": 1}, {"dp": 8, "zero_stage": 1}
    few, wide = (
        estimate(asked("llama3-8b", cluster, plan, stack=framework, **each))
        for each in (training, {"precision": "bf16"})
    )
    matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert few.largest.weights - wide.largest.weights == pytest.approx(kept * matrices, abs=1)


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_the_activation_goes_into_the_multiplies_and_they_move_what_it_wrote(precision):
    """Of one copy: the first multiply also writes what the second reads, by rows and by columns in 8 bits; the second
    one's gradient reads the first one's result and writes that one's gradient instead of the activation's."""
    scenario = scenario_of()
    model, plain, here = scenario.model, scenario.stack, cut(precision)
    apart, inside = (experts_work(model, plain.replace(fused_experts=each), here) for each in (False, True))
    assert "experts' activation" in names(apart.forward) - names(inside.forward)
    assert "experts' activation backward" in names(apart.input_grad) - names(inside.input_grad)
    elements = routed(model, here).copies * model.expert_intermediate_size
    written = 2 * (1 + 1 / 32) if precision == "mxfp8" else 2

    def more(name, phase):
        both = ({item.name: item for item in getattr(each, phase).operations}[name] for each in (inside, apart))
        fused, alone = both
        assert (fused.kernels, fused.flop) == (1, alone.flop)
        return fused.nbytes - alone.nbytes

    assert more("experts up", "forward") == pytest.approx(written * elements)
    assert more("experts down input gradient", "input_grad") == pytest.approx((2 * (2 + written) - 2) * elements)
    assert more("experts up input gradient", "input_grad") == 0.0


def test_what_the_multiplies_write_in_8_bits_is_not_cast_again():
    scenario = scenario_of()
    model, here = scenario.model, cut()

    def casts(fused, phase, name):
        work = layer_work(model, scenario.stack.replace(fused_experts=fused), here)
        return next(item.nbytes for item in getattr(work, phase).operations if item.name == name)

    inner = FORMATS["mxfp8"].cast * routed(model, here).copies * model.expert_intermediate_size
    assert casts(False, "forward", "casts") - casts(True, "forward", "casts") == pytest.approx(inner)
    gone = casts(False, "input_grad", "gradients' casts") - casts(True, "input_grad", "gradients' casts")
    assert gone == pytest.approx(2 * inner)


def seconds_of_core(name, columns, eight, backward=False):
    """A core of 10^15 FLOP over 4,096 tokens, in 16 bits or 8."""
    gpu, profile = (
        GpuSpec.read(load_preset("gpus", GPUS[name]), name),
        Profile.read(load_preset("profiles", name), name),
    )
    core = Kernel(
        "core",
        Cause.ATTENTION,
        "attention",
        flop=1e15,
        nbytes=1.0,
        n=columns,
        k=columns,
        length=4096,
        backward=backward,
    )
    compute = ComputeModel(gpu, profile, "mxfp8", 2.0, fp8_attention=eight)
    return float(compute.phase_time(Phase((core,)))[core.cause])


# NVIDIA/TransformerEngine, pull request 3033: DeepSeek-V3's attention (128 heads of 192 and 128 columns, 4,096 tokens) on
# GB300, with its linears, in MXFP8 against bf16.
@pytest.mark.parametrize(("backward", "published"), [(False, 1.53), (True, 1.65)])
def test_published_gain_of_attention_in_8_bits(backward, published):
    sixteen, eight = (seconds_of_core("b300", 0.5 * (192 + 128), each, backward) for each in (False, True))
    assert sixteen / eight == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("name", GPUS)
def test_exponentials_keep_attention_in_8_bits_below_twice_the_rate(name):
    """The narrower heads are, the larger is their part."""
    gains = [seconds_of_core(name, wide, False) / seconds_of_core(name, wide, True) for wide in (32, 64, 128, 256)]
    assert gains == sorted(gains)
    assert 1.0 < gains[0] < gains[-1] < 2.0


def test_attention_in_8_bits_casts_what_it_reads_and_keeps_it_so():
    scenario = scenario_of()
    model, here = scenario.model, cut()
    sixteen, eight = (scenario.stack.replace(fp8_attention=each) for each in (False, True))
    tokens, queries, key_values = 4 * 4096, 32 * 128, 2 * 4 * 128
    forward, backward = (attention_core(model, eight, here).forward, attention_core(model, eight, here).input_grad)
    casts = [item.nbytes for phase in (forward, backward) for item in phase.operations if item.kind == "memory"]
    assert casts == [4 * tokens * (queries + key_values), 4 * tokens * queries]
    saved = layer_activation_bytes(model, sixteen, here) - layer_activation_bytes(model, eight, here)
    assert saved == tokens * (queries + key_values)


def test_fused_attention_draws_for_dropout_as_many_numbers_as_it_computes_scores():
    scenario, here = scenario_of(), cut()
    for dropout, scores in ((0.0, 0.0), (0.1, 4 * 32 * 4096 * 4096 / 2)):
        work = attention_core(scenario.model.replace(dropout=dropout), scenario.stack, here)
        for phase in (work.forward, work.input_grad):
            assert [item.draws for item in phase.operations if item.kind == "attention"] == [scores]


def test_activations_in_32_bits_around_multiplies_in_8():
    """Weights need no masters then; what linears keep of their inputs stays in 8 bits, all else doubles."""

    def answer(**training):
        return estimate(DENSE.replace(training=DENSE.training.replace(**training)))

    narrow, wide, fp32 = answer(), answer(fp32_activations=True), answer(precision="fp32")
    kept = wide.largest.weights - fp32.largest.weights  # of what is multiplied, in 8 bits
    assert 2 * (narrow.largest.weights - kept) == fp32.largest.weights
    assert wide.largest.optimizer == fp32.largest.optimizer < narrow.largest.optimizer
    assert narrow.largest.activations < wide.largest.activations < 2 * narrow.largest.activations
    assert wide.largest.activations < fp32.largest.activations
    assert wide.step_time_s > narrow.step_time_s
    with pytest.raises(SpecError, match="fp32_activations has no effect with precision bf16"):
        answer(precision="bf16", fp32_activations=True)


def test_inputs_are_kept_in_8_bits_but_for_what_another_operation_keeps_whole():
    """The core keeps its output in 16 bits, which the projection takes; the router its input, beside which the expert
    for every token keeps a copy in 8 bits; a module that runs again is given its input in 16."""
    model = scenario_of().model.replace(num_layers=1, shared_expert_intermediate_size=512)
    here = replace(cut("fp8"), sequence_length=1024, microbatch_size=1, ep=1)
    layer = layer_operations(model, DENSE.stack, here)
    kept = {tensor.name: tensor.width for each in layer for tensor in each.kept}
    normed = "mixer residual normed"
    assert kept["context"] == kept[normed] == 2
    assert "context in 1.0 bytes" not in kept
    assert kept["copies in 1.0 bytes"] == kept[f"{normed} in 1.0 bytes"] == 1
    assert "copies" not in kept
    small = layer_bytes(layer, "none") - layer_bytes(layer, "selective:shared_experts")
    inner = 1024 * 512
    assert small == inner * 2 * 2 + inner + 1024 * model.hidden_size  # up and gate, what goes down, the copy


@pytest.mark.parametrize(("gated", "bytes_a_copy"), [(True, 2), (False, 0)])
def test_inputs_of_a_gated_activation_in_8_bits(gated, bytes_a_copy):
    """A byte less for each of two numbers of every copy and column (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.3)."""
    model = scenario_of().model.replace(gated_mlp=gated)
    here = cut("fp8")
    plain, fewer = (DENSE.stack.replace(fp8_activation_inputs=each) for each in (False, True))
    spared = layer_activation_bytes(model, plain, here) - layer_activation_bytes(model, fewer, here)
    assert spared == bytes_a_copy * routed(model, here).copies * model.expert_intermediate_size
    for word, share in (("selective:moe_act", 1), ("selective:moe", 0)):
        again = [layer_activation_bytes(model, each, here, word) for each in (plain, fewer)]
        assert again[0] - again[1] == share * spared
