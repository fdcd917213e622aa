"""Windows, pieces of the sequence, states, hybrids and multi-token prediction: laws that any pattern of layers keeps."""

from dataclasses import replace

import pytest
from asked import asked
from counts import head_work, layer_forward_flop, layer_work
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import estimate
from sim.specs import ModelSpec, ParallelPlan, StackSpec, TrainingSpec
from sim.specs.base import FORMATS
from sim.specs.plan import layout_of, layout_stages
from sim.work.layers import block_operations, deal_stages, layer_operations
from sim.work.memory import held_logits_bytes, logits_bytes, working_bytes
from sim.work.operations import Cause
from sim.work.pieces import Cut
from sim.work.recompute import NOTHING, WHOLE, Recompute, module_sets
from sim.work.sums import (
    active_params,
    block_works,
    layer_bytes,
    layer_params,
    model_flop,
    part_params,
    total_params,
)

STACK = StackSpec(kernel_launch_s=0.0)
SIZES = {
    "hidden_size": 256, "num_heads": 8, "num_kv_heads": 4, "vocab_size": 1000, "position": "rotary",
    "sliding_window": 64, "attention_chunk_size": 128, "linear_num_heads": 8, "linear_head_dim": 32,
    "linear_num_key_heads": 4, "linear_key_head_dim": 16,
}  # fmt: skip
EXPERTS = {
    "num_experts": 8,
    "experts_per_token": 2,
    "expert_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
LATENT = {"num_kv_heads": 8, "key_value_rank": 64, "query_rank": 96, "rotary_head_dim": 16, "value_head_dim": 24}
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
SWITCHES = (
    "gated_mlp",
    "norm_bias",
    "qkv_bias",
    "attention_output_bias",
    "mlp_bias",
    "attention_sinks",
    "embedding_norm",
    "head_bias",
)
STATES = ("mamba2", "gated_delta_net", "kimi_delta_attention")


@st.composite
def models(draw):
    """Models of any pattern of layers: mixers and MLPs, each list of its own length, with and without experts; norms,
    biases and gates as architectures differ in them."""
    mixers = draw(st.lists(st.sampled_from([*ATTENTION, *STATES]), min_size=1, max_size=6))
    mlps = draw(st.lists(st.sampled_from(["dense", "sparse"]), min_size=1, max_size=5))
    if draw(st.booleans()):  # a block a layer
        blocks = draw(st.lists(st.sampled_from([*ATTENTION, *STATES, "dense", "sparse"]), min_size=1, max_size=8))
        mixers = [block if block in (*ATTENTION, *STATES) else "none" for block in blocks]
        mlps = [block if block in ("dense", "sparse") else "none" for block in blocks]
    layers = draw(st.integers(max(len(mixers), len(mlps)), 16))
    sparse, latent = "sparse" in mlps, draw(st.booleans())
    return ModelSpec(
        **SIZES | (LATENT if latent else {}),
        **(EXPERTS if sparse else {}),
        num_layers=layers,
        layer_types=mixers,
        mlp_layer_types=mlps,
        num_mtp_layers=draw(st.integers(0, 2)),
        tied_embeddings=draw(st.booleans()),
        bias=draw(st.booleans()),
        norms_per_layer=draw(st.sampled_from([1, 2, 4])),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        **{name: draw(st.booleans()) for name in SWITCHES},
        query_key_norm="none" if latent else draw(st.sampled_from(["none", "head", "all"])),
        attention_gate=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        **(draw(st.sampled_from([{}, {"expert_latent_size": 32}, {"shared_expert_gate": True}])) if sparse else {}),
    )


@st.composite
def cuts(draw):
    """How a layer is cut: by tensor parallelism with sequence parallelism, by context and experts; in any format."""
    tp = draw(st.sampled_from([1, 2, 4]))
    return Cut(
        tp, 1, 512, tp > 1, cp=draw(st.sampled_from([1, 2])), ep=draw(st.sampled_from([1, 2, 8])),
        etp=draw(st.sampled_from([1, tp])), format=draw(st.sampled_from([None, *FORMATS.values()])),
    )  # fmt: skip


@st.composite
def dealt(draw):
    """A model and a plan that deals it: by any layout, over any number of ranks and chunks."""
    model = draw(models())
    places = model.num_layers + model.num_mtp_layers
    stages = draw(st.integers(1, min(6, places)))
    cuts = sorted(draw(st.sets(st.integers(1, places), min_size=stages - 1, max_size=stages - 1)))
    letters = "t" * model.num_layers + "m" * model.num_mtp_layers
    parts = [letters[a:b] for a, b in zip([0, *cuts], [*cuts, places], strict=True)]
    parts[0] = f"E{parts[0]}"
    parts[-1] += "L"
    if stages > 1 and stages % 2 == 0 and draw(st.booleans()):
        return model, ParallelPlan(
            pp=2, num_chunks=stages // 2, schedule="interleaved" if stages > 2 else "1f1b",
            pipeline_layout="|".join(parts),
        )  # fmt: skip
    return model, ParallelPlan(pp=stages, pipeline_layout="|".join(parts))


@given(dealt())
def test_stages_of_any_pattern_and_layout_hold_the_model_exactly(given):
    model, plan = given
    stages = deal_stages(model, plan)
    assert [stage.num_layers for stage in stages] == [each.count("t") for each in plan.stages_of_layout]
    tables = 0  # a stage holds one table to look tokens up in, and one to project to them, which may be the same
    for letters in plan.stages_of_layout:
        reads, projects = "E" in letters or "m" in letters, "L" in letters
        tables += max(reads, projects) if model.tied_embeddings else reads + projects
    copies = (tables - (1 if model.tied_embeddings else 2)) * model.vocab_size * model.hidden_size
    assert sum(part_params(stage.part, model, 1) for stage in stages) == total_params(model) + copies


@given(models(), cuts())
def test_a_gpu_holds_a_weight_whole_or_its_share_of_it(model, cut):
    """So that all GPUs of a group hold the model, once or, of what is not cut, every one the whole."""
    for kind in model.layer_kinds:
        whole, part = (
            [weight for each in layer_operations(model, STACK, here, kind) for weight in each.weights]
            for here in (replace(cut, tp=1, cp=1, ep=1, etp=1, sequence_parallel=False), cut)
        )
        for one, share in zip(whole, part, strict=True):
            degrees = (cut.ep, cut.ep * cut.etp) if one.of_experts else (1, cut.tp)
            assert one.params / share.params in degrees
        assert cut.tp == 1 or sum(each.params for each in part) < sum(each.params for each in whole)


@given(models(), cuts())
def test_memory_is_never_below_zero_and_recomputation_never_costs_any(model, cut):
    blocks = block_operations(model, STACK, cut)
    sets = [Recompute("selective", names) for names in module_sets(model, STACK)]
    ways = NOTHING, WHOLE, Recompute("per_op"), Recompute("full", share=0.5)
    for way in (*ways, Recompute("full", group=4, kept=0.25), *sets):
        assert working_bytes(blocks, model, STACK, cut, way) >= 0
    assert min(logits_bytes(model, STACK, cut), held_logits_bytes(model, STACK, cut)) >= 0
    for kind in model.layer_kinds:
        layer = layer_operations(model, STACK, cut, kind)
        assert all(tensor.nbytes > 0 for each in layer for tensor in each.kept)
        assert all(
            kernel.nbytes >= 0 for each in layer for kernel in (*each.forward, *each.input_grad, *each.weight_grad)
        )
        none, full, per_op, half = (layer_bytes(layer, way) for way in ways)
        assert 0 < full <= half <= none
        assert full <= per_op
        for way in sets:
            assert full <= layer_bytes(layer, way) <= none


@given(models())
def test_parameters_are_those_of_the_layers(model):
    each = sum(layer_params(model, kind) for kind in model.kind_of_layer)
    alone = model.replace(num_mtp_layers=0)
    module = (
        layer_params(model, model.mtp_kind) + 2 * model.hidden_size**2 + 3 * model.hidden_size * (1 + model.norm_bias)
    )
    assert total_params(model) - total_params(alone) == model.num_mtp_layers * module
    ends = total_params(alone) - each
    tables = 1 if model.tied_embeddings else 2
    norms = (1 + model.embedding_norm) * (1 + model.norm_bias) * model.hidden_size
    assert ends == tables * model.vocab_size * model.hidden_size + norms + model.head_bias * model.vocab_size
    # Of its experts a token uses so many.
    experts = sum(part_params(stage.part, alone, experts=True) for stage in deal_stages(alone, ParallelPlan()))
    idle = total_params(alone) - active_params(alone)
    assert idle * max(model.num_experts, 1) == experts * (model.num_experts - model.experts_per_token)


@given(models(), cuts(), st.sampled_from([64, 512, 1024]))
def test_model_flops_are_those_of_formulas_however_a_layer_is_cut(model, cut, sequence):
    """Credit is what the formulas say, whatever a kernel runs; with the sequence cut, no GPU repeats another's work."""
    stack = STACK.replace(context_by_heads=model.norm_bias)  # a ring of sends, or all-to-alls
    for kind in model.layer_kinds:
        here = replace(cut, sequence_length=sequence, microbatch_size=2)
        work, credited = layer_work(model, stack, here, kind), layer_forward_flop(model, 2, sequence, kind)
        gpus = cut.tp * cut.cp
        assert gpus * work.forward.model_flop == pytest.approx(credited, rel=1e-12)
        backward = work.input_grad.model_flop + work.weight_grad.model_flop
        assert gpus * backward == pytest.approx(2 * credited, rel=1e-12)
        if kind.attends:  # scores and values have no weights
            core = layer_forward_flop(model, 2, sequence, kind, cause=Cause.ATTENTION)
            assert gpus * work.weight_grad.model_flop == pytest.approx(credited - core, rel=1e-12)


@given(models())
def test_multi_token_prediction_adds_a_layer_a_projection_and_logits(model):
    alone, more = (model.replace(num_mtp_layers=number) for number in (0, 1))
    training = TrainingSpec(global_batch_size=2, sequence_length=256)
    h, tokens = model.hidden_size, 2 * 256
    layer, projection = layer_forward_flop(model, 2, 256, more.mtp_kind), 2.0 * tokens * 2 * h * h
    logits = 2.0 * tokens * h * model.vocab_size
    added = model_flop(more, training) - model_flop(alone, training)
    assert added == pytest.approx(3 * (layer + projection + logits), rel=1e-12)
    cut = Cut(1, 2, 256, False)
    work = layer_work(more, STACK, cut, more.mtp_kind)
    (module,) = block_works(block_operations(more, STACK, cut)[-1], STACK)
    assert module.forward.flop - work.forward.flop == projection
    assert module.weight_grad.flop - work.weight_grad.flop == projection
    heads = [head_work(each, STACK, cut).forward.flop for each in (alone, more)]
    assert heads[1] - heads[0] == logits


# Whole estimates


def scenario(stack=None, plan=None, sequence=512, **model):
    cluster = {"name": "eight", "node": "dgx-h100", "num_nodes": 1}
    shape, plan = {**SIZES, "num_layers": 8, **model}, {"dp": 8} if plan is None else plan
    return asked(shape, cluster, plan, stack=stack or "megatron-core", sequence=sequence)


def answers(scenario):
    found = estimate(scenario)
    return [found.step_time_s, found.mfu, found.hfu, *(use.total for use in found.memory)]


stacks = st.sampled_from(["megatron-core", "megatron-2021", "torchtitan"])
recomputes = st.sampled_from(["none", "selective", "full"])


@settings(max_examples=5)
@given(stack=stacks, recompute=recomputes, beyond=st.integers(0, 5000), cp=st.sampled_from([1, 2]))
def test_a_window_or_a_piece_as_long_as_the_sequence_is_full_attention(stack, recompute, beyond, cp):
    plan = {"dp": 8 // cp, "cp": cp, "recompute": recompute}
    full = answers(scenario(stack, plan))
    for kind in ("sliding_attention", "chunked_attention"):
        sizes = {"sliding_window": 512 + beyond, "attention_chunk_size": 512 + beyond}
        assert answers(scenario(stack, plan, layer_types=[kind], **sizes)) == pytest.approx(full, rel=1e-12)


@settings(max_examples=5)
@given(stack=stacks, recompute=recomputes, windows=st.tuples(st.integers(1, 4096), st.integers(1, 4096)))
def test_a_smaller_window_or_piece_is_never_slower_and_never_larger(stack, recompute, windows):
    small, large = sorted(windows)
    for kind in ("sliding_attention", "chunked_attention"):
        found = [
            estimate(
                scenario(
                    stack,
                    {"dp": 8, "recompute": recompute},
                    2048,
                    layer_types=[kind, "full_attention"],
                    sliding_window=size,
                    attention_chunk_size=size,
                )
            )
            for size in (small, large)
        ]
        assert found[0].step_time_s <= found[1].step_time_s * (1 + 1e-12)
        assert found[0].memory[0].total <= found[1].memory[0].total * (1 + 1e-12)


# Pipeline layouts


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Et*4|(t*4|)*14tmL", ["Etttt", *["tttt"] * 14, "tmL"]),  # Megatron-LM's own example
        ("Et*3|(tt|)*29m|L", ["Ettt", *["tt"] * 29, "m", "L"]),  # DeepSeek-V3's
        ("E|t|t|L", ["E", "t", "t", "L"]),
        ("Et*2, | tt,|ttL", ["Ett", "tt", "ttL"]),
        ("E(t|)*2tL", ["Et", "t", "tL"]),
    ],
)
def test_layouts_in_megatrons_letters(layout, stages):
    assert list(layout_stages(layout)) == stages
    assert list(ParallelPlan(pp=len(stages), pipeline_layout=layout).stages_of_layout) == stages


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 2))
def test_layouts_are_written_as_they_are_read(layers, modules):
    layers = [layers[0], *(max(1, each) for each in layers[1:])]
    stages = layout_stages(layout_of(layers, modules))
    assert [stage.count("t") for stage in stages] == layers
    plan = ParallelPlan(pp=len(layers), pipeline_layout=layout_of(layers, modules))
    assert plan.stages_of_layout[-1].endswith("m" * modules + "L")
