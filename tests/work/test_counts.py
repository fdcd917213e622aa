"""Parameters, FLOPs, activation bytes and communication volumes are the papers' formulas, number for number."""

import numpy as np
import pytest
from asked import asked
from counts import attention_core, attention_core_bytes, core_operation, layer_activation_bytes, layer_work
from open_space import search
from rows import rows

from sim import build_scenario, estimate
from sim.errors import InfeasiblePlan
from sim.pricing.cells import plans_of
from sim.pricing.deal import params_of
from sim.pricing.layouts import cut_of
from sim.pricing.memory import peak_memory
from sim.specs import ModelSpec, ParallelPlan, StackSpec, TrainingSpec, load_scenario
from sim.work.layers import block_operations, deal_stages
from sim.work.memory import by_rank, graph_bytes, logits_bytes, working_bytes
from sim.work.pieces import Cut
from sim.work.recompute import NOTHING, WHOLE, Recompute
from sim.work.sums import hardware_flop, model_flop, part_params, total_params

MATH = StackSpec(attention="math", fused_cross_entropy=False, kernel_launch_s=0.0)


SELECTIVE = Recompute("selective", ("core_attn",))


def gpt(heads, hidden, layers, **more):
    return ModelSpec(num_heads=heads, hidden_size=hidden, num_layers=layers, vocab_size=51200, **more)


GPT3 = gpt(96, 12288, 96, dropout=0.1)
GPT_22B = gpt(64, 6144, 48, dropout=0.1)
GPT_530B = gpt(128, 20480, 105, dropout=0.1)


# Equation 2 of arXiv:2104.04473. Rounding to the printed digits is all that separates it from the table.
@rows("printed", ["1.7", "3.6", "7.5", "18.4", "39.1", "76.1", "145.6", "310.1", "529.6", "1008"])
def test_parameters_of_table_1(printed, scenarios):
    """Billions of parameters as printed; tests/specs holds the scenarios against the rest of the table."""
    model = load_scenario(scenarios / "megatron-2021" / f"{printed}b.yaml").model
    layers, hidden = model.num_layers, model.hidden_size  # Narayanan et al. 2021, equation 2, V = 51200, s = 2048
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden))
    assert f"{formula / 1e9:.{len(printed.partition('.')[2])}f}" == printed
    assert total_params(model) == pytest.approx(formula + 2 * model.hidden_size, rel=1e-12)  # and the final norm


def step_flop(kind, model, batch, recompute="full", sequence=2048):
    training = TrainingSpec(global_batch_size=batch, sequence_length=sequence)
    return (
        model_flop(model, training)
        if kind == "model"
        else hardware_flop(model, training, ParallelPlan(recompute=recompute))
    )


@rows("model", [GPT3, GPT_530B, gpt(24, 2304, 24)])
@rows("sequence", [512, 2048])
def test_flop_formulas(model, sequence):
    h, layers, s, vocabulary, batch = model.hidden_size, model.num_layers, sequence, 51200, 24
    # Equation 3, and the same without recomputation (Korthikanti et al. 2022, appendix A).
    eq3 = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert step_flop("hardware", model, batch, "full", s) == pytest.approx(eq3, rel=1e-12)
    base = 72 * batch * s * layers * h**2
    assert step_flop("model", model, batch, sequence=s) == pytest.approx(
        base * (1 + s / (6 * h) + vocabulary / (12 * layers * h)), rel=1e-12
    )
    # Selective recomputation runs 4 B s² h again in every layer. (The paper's own HFU credits 12 B s² h.)
    again = step_flop("hardware", model, batch, "selective", s) - step_flop("model", model, batch, sequence=s)
    assert again == pytest.approx(4 * batch * s**2 * h * layers, rel=1e-9)


def cut(tp=1, batch=1, sequence=2048, sequence_parallel=False):
    return Cut(tp, batch, sequence, sequence_parallel)


# Korthikanti et al. 2022, table 2: name -> (sequence parallel, recompute, bytes as a multiple of s b h).
KORTHIKANTI = {
    "tensor parallel": (False, NOTHING, lambda t, score: 10 + 24 / t + 5 * score / t),
    "and sequence parallel": (True, NOTHING, lambda t, score: (34 + 5 * score) / t),
    "and selective": (False, SELECTIVE, lambda t, score: 10 + 24 / t),
    "and both": (True, SELECTIVE, lambda t, score: 34 / t),
    "full": (False, WHOLE, lambda t, score: 2),
}


@rows("mode", KORTHIKANTI)
@rows("tp", [1, 2, 8])
@rows(("model", "batch", "sequence"), [(GPT3, 1, 2048), (GPT_22B, 4, 2048), (GPT_530B, 1, 1024)])
def test_activation_bytes_of_a_layer(mode, tp, model, batch, sequence):
    sequence_parallel, recompute, formula = KORTHIKANTI[mode]
    kept = layer_activation_bytes(model, MATH, cut(tp, batch, sequence, sequence_parallel), recompute)
    sbh = sequence * batch * model.hidden_size
    assert kept == pytest.approx(sbh * formula(tp, model.num_heads * sequence / model.hidden_size), rel=1e-12)


def test_logits_are_as_long_as_the_vocabulary():
    # Korthikanti et al. 2022, section 4.3: 4 s b V / t for the fp32 logits, and 2 s b V / t for their 16-bit input.
    assert logits_bytes(GPT3, MATH, cut(tp=8)) == 6 * 2048 * 51200 / 8
    # Two modules of multi-token prediction keep the fp32 ones of their losses besides.
    assert logits_bytes(GPT3.replace(num_mtp_layers=2), MATH, cut(tp=8)) == (6 + 2 * 4) * 2048 * 51200 / 8


# Own 16-bit logits; gathered, those of all, the gather's two buffers, and four in fp32 of the loss's backward.
@rows(("tp", "per_logit"), [(1, 2 + 16), (4, 2 / 4 + 2 + 4 + 16)])
def test_a_loss_on_gathered_logits_holds_them_whole(tp, per_logit):
    stack = StackSpec(vocab_parallel_loss=False, kernel_launch_s=0.0)
    assert logits_bytes(GPT3, stack, cut(tp=tp)) == per_logit * 2048 * 51200


# What autograd keeps of a score, and holds for a moment in its backward. [bytes]
@rows(
    ("stack", "kept", "moment"),
    [
        ({"attention": "math", "fused_softmax": True}, 2, 4),  # probabilities; the gradients of both
        ({"attention": "math", "fused_softmax": False}, 2 + 4, 2 + 4 + 4),  # and in fp32
        ({"attention": "flash"}, 0, 0),
    ],
)
def test_bytes_of_a_score(stack, kept, moment):
    model, stack = gpt(96, 12288, 96), StackSpec(kernel_launch_s=0.0, **stack)
    short, long = cut(batch=4, sequence=1024), cut(batch=2, sequence=2048)  # as many tokens, twice the scores
    scores = 96 * 4 * 1024**2
    more = attention_core_bytes(model, stack, long) - attention_core_bytes(model, stack, short)
    assert more == pytest.approx(kept * scores)
    for_a_moment = [core_operation(model, stack, each).scratch for each in (long, short)]
    assert for_a_moment[0] - for_a_moment[1] == pytest.approx(moment * scores)


def volume(collectives, tp):
    """Bytes each rank sends in ring collectives."""
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    return sum(passes[item.kind] * (tp - 1) / tp * item.nbytes for item in collectives)


# Narayanan et al. 2021, section 3.2: 8 b s h (t − 1)/t elements a layer.
@rows("sequence_parallel", [False, True])
def test_tensor_parallel_volume_of_a_layer(sequence_parallel):
    work = layer_work(GPT3, MATH, cut(tp=8, sequence_parallel=sequence_parallel))
    again = [item for item in work.input_grad.collectives if item.name.endswith("again")]
    both = [*work.forward.collectives, *(item for item in work.input_grad.collectives if item not in again)]
    assert volume(both, 8) == pytest.approx(352.3e6, abs=5e4)
    # With sequence parallelism the backward gathers its two inputs once more, beside compute.
    assert volume(again, 8) == (2 * 2 * 2048 * 12288 * 7 / 8 if sequence_parallel else 0)
    assert all(item.overlapped for item in again)
    assert not work.weight_grad.collectives


def test_full_recomputation_repeats_the_forwards_collectives():
    work = layer_work(GPT3, MATH, cut(tp=8), recompute=WHOLE)
    assert work.recompute.collectives == work.forward.collectives
    assert not layer_work(GPT3, MATH, cut(tp=8), recompute=SELECTIVE).recompute.collectives


# Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: 7.5B parameters, 64 replicas, 2 + 2 + 12 bytes each. [GB]
@rows(("zero_stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_memory(zero_stage, gigabytes, scenarios):
    changes = ["plan.tp=1", "plan.dp=64", "plan.microbatch_size=1", f"plan.zero_stage={zero_stage}"]
    scenario = load_scenario(scenarios / "megatron-2021" / "7.5b.yaml", changes)
    batch, stages = plans_of(scenario), deal_stages(scenario.model, scenario.plan)
    held = params_of(np.array([sum(stage.part for stage in stages)]), batch.layouts)
    use = by_rank(peak_memory(batch, held[..., 0], 0.0), 1)[0]
    per_param = (use.weights + use.gradients + use.optimizer) / total_params(scenario.model)
    assert 7.5 * per_param == pytest.approx(gigabytes, abs=0.05)


@rows("tied", [True, False])
@rows(("tp", "pp", "chunks"), [(1, 1, 1), (1, 8, 3), (4, 1, 1), (8, 8, 1), (2, 96, 1)])
def test_stages_hold_the_model_once_and_a_tied_head_twice(tied, tp, pp, chunks):
    model = GPT3.replace(tied_embeddings=tied)
    h, layers = model.hidden_size, model.num_layers
    held = sum(
        part_params(stage.part, model, tp) for stage in deal_stages(model, ParallelPlan(pp=pp, num_chunks=chunks))
    )
    copy = model.vocab_size * h if tied and pp > 1 else 0
    # Every GPU holds all of the norms, of the biases after the reductions, and of the positions.
    replicated = layers * (4 * h + 2 * h) + 2 * h + model.max_sequence_length * h
    assert tp * held == pytest.approx(total_params(model) + copy + (tp - 1) * replicated, rel=1e-12)


@rows("tied", [True, False])
def test_a_vocabulary_over_all_stages_is_held_once_and_evenly(tied):
    model = GPT3.replace(tied_embeddings=tied)
    stages = deal_stages(model, ParallelPlan(pp=8, num_chunks=3, schedule="interleaved", vocabulary_over_stages=True))
    held = [part_params(stage.part, model, 1) for stage in stages]
    assert held == pytest.approx([total_params(model) / 24] * 24)


@rows("attention", ["math", "flash"])
def test_context_parallelism_exchanges_keys_and_values_of_the_sequence(attention):
    """Two matrices of 8192 tokens by 8 heads of 128 over tp 2, 16 bits a number."""
    model, stack = gpt(32, 4096, 32, num_kv_heads=8), StackSpec(attention=attention, kernel_launch_s=0.0)
    works = (layer_work(model, stack, Cut(2, 1, 8192, True, cp=cp)) for cp in (1, 4))
    exchanged = [[item.nbytes for item in work.forward.collectives if item.group == "cp"] for work in works]
    assert exchanged == [[], [2 * 2 * 8192 * 8 * 128 / 2]]


GPT_175B = {
    "model": "gpt3-175b",
    "cluster": "selene",
    "plan": {"tp": 8, "pp": 12, "dp": 4, "microbatch_size": 1, "recompute": "full"},
    "training": {"global_batch_size": 1536, "sequence_length": 2048, "precision": "fp16"},
    "stack": "megatron-2021",
    "profile": "a100",
}
ONE_BY_ONE = "stack.fused_softmax=false"
SCORES = 96 / 8 * 2048**2


def softmax_of(*changes):
    scenario = build_scenario(GPT_175B, changes)
    work = layer_work(scenario.model, scenario.stack, cut_of(scenario))
    return [
        next(item for item in phase.operations if item.name.startswith("softmax"))
        for phase in (work.forward, work.input_grad)
    ]


@pytest.mark.parametrize(
    ("changes", "forward", "backward", "kernels"),
    [
        ((), 2 + 2, 2 + 2 + 2, 1),
        # float, scale, masked_fill, softmax, half; backward the product's gradient reads two tensors.
        ((ONE_BY_ONE,), (2 + 4) + 3 * (4 + 4) + (4 + 2), (2 + 4) + 12 + 2 * 8 + (4 + 2), 5),
        ((ONE_BY_ONE, "stack.fp32_softmax=false"), 3 * (2 + 2), 6 + 2 * 4, 3),
    ],
)
def test_bytes_that_a_softmax_moves_for_a_score(changes, forward, backward, kernels):
    for found, expected in zip(softmax_of(*changes), (forward, backward), strict=True):
        assert found.nbytes == pytest.approx(expected * SCORES)
        assert found.kernels == kernels


@pytest.mark.parametrize(
    ("changes", "published", "within"),
    [((), 135 / 113, 0.04), (("model.num_layers=105", "model.hidden_size=20480", "model.num_heads=128", "plan.pp=35"), 148 / 133, 0.03)],
)  # fmt: skip
def test_what_fused_operators_gain(changes, published, within):
    """Narayanan et al. 2021, section 5.8: 19 % of 175B and 11 % of 530B."""
    fused, apart = (
        estimate(build_scenario(GPT_175B, [*changes, *more]))
        for more in ((), (ONE_BY_ONE, "stack.fused_bias_activation=false"))
    )
    assert apart.step_time_s / fused.step_time_s == pytest.approx(published, rel=within)


def test_memory_of_graphs():
    """Places for a layer's input, output and their gradients, and temporaries that nothing else can use. [bytes]"""
    scope = {"cuda_graphs": "scoped", "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"]}
    one, plain = (
        asked("qwen3-30b-a3b", "superpod-h100", {"dp": 8, "ep": 8}, stack={"preset": "megatron-core", **stack})
        for stack in (scope, {})
    )
    here = Cut(tp=1, microbatch_size=1, sequence_length=1024, sequence_parallel=False, ep=8)
    more, less = (
        working_bytes(block_operations(each.model, each.stack, here), each.model, each.stack, here)
        for each in (one, plain)
    )
    assert more - less == graph_bytes((), one.model, here) == 2 * 1024 * (2 * 32 * 128 + 2 * 4 * 128 + 4 * 2048)
    assert any("CUDA graphs of attn" in line for line in estimate(one).assumptions)


GROUPED = ModelSpec(num_layers=4, hidden_size=4096, num_heads=32, num_kv_heads=8, vocab_size=32000, position="rotary")


def piece_of(cp, **changes):
    return Cut(**{"tp": 2, "cp": cp, "microbatch_size": 1, "sequence_length": 8192, "sequence_parallel": False, **changes})  # fmt: skip


def core(by_heads, cp, **changes):
    return attention_core(GROUPED, StackSpec(context_by_heads=by_heads, kernel_launch_s=0.0), piece_of(cp, **changes))


@pytest.mark.parametrize("cp", [2, 4])
def test_a_rank_hands_out_what_it_has_of_each_tensor(cp):
    work = core(True, cp)
    held = {"queries": 16, "keys": 4, "values": 4, "outputs": 16}  # heads of a tensor-parallel rank, 128 columns each
    for phase in (work.forward, work.input_grad):
        assert [item.kind for item in phase.collectives] == ["all_to_all"] * 4
        assert [item.nbytes for item in phase.collectives] == [2 * 8192 / cp * heads * 128 for heads in held.values()]
        assert not any(item.overlapped for item in phase.collectives)


def test_two_steps_of_a_ring_move_what_is_counted_by_hand():
    work = core(False, 2)
    (there,), (back,) = (
        [item for item in phase.operations if item.name.startswith("steps of the ring")]
        for phase in (work.forward, work.input_grad)
    )
    held, heads, shared = (
        2 * 8192 / 2,
        16 * 128,
        2 * 4 * 128,
    )  # bytes of a column, columns of queries, of keys and values
    # Scale the first output, add the other one; join keys and values, lay out half of those that come.
    assert there.nbytes == held * (2 * heads + 3 * heads + 2 * shared + shared)
    # Copy and add the queries' gradients; the ring's keys, joins, a copy and a sum of the keys' gradients.
    assert back.nbytes == held * (2 * heads + 3 * heads + (2 + 2 + 2) * shared + (1 + 2 + 3) * shared)
    assert (there.kernels, back.kernels) == (10, 12)


def test_a_search_deals_heads_evenly_too(scenarios):
    scenario = load_scenario(scenarios / "megatron-2021" / "7.5b.yaml", ["stack.context_by_heads=true"])
    found = search(scenario, fixed={"cp": (1, 2, 4)})
    plans = [each.scenario.plan for each in found.best]
    assert all(scenario.model.num_heads % (plan.tp * plan.cp) == 0 for plan in plans)
    with pytest.raises(InfeasiblePlan, match="deals 32 heads"):
        search(scenario, fixed={"cp": 64})
