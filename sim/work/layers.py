"""One transformer layer, the embedding and the head as operations on one GPU of a tensor-parallel group.

Shapes are those of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): column- then row-parallel
matrices, so that a layer needs two all-reduces forward and two backward; with sequence parallelism each becomes a
reduce-scatter and an all-gather, and norms and dropouts are cut along the sequence (Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2).

Elementwise kernels are counted by the bytes they read and write: `width` bytes an activation, one byte a dropout mask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec, Scenario, StackSpec
from sim.specs.modules import GRAPH_MODULES, RECOMPUTE_MODULES
from sim.work.adapters import with_adapters
from sim.work.attention import attention_core, projections_around
from sim.work.experts import experts_work, routed
from sim.work.operations import BlockWork, Cause, Collective, Operation, Phase, matmul, memory
from sim.work.params import expert_params, layer_params, recurrent_widths
from sim.work.pieces import (
    Cut,
    gather_in,
    gradient_accumulation,
    key_value_width,
    linear,
    mlp_between,
    norm_work,
    norms_of_block,
    residual,
)
from sim.work.recompute import read_recompute
from sim.work.recurrent import recurrent_work


def block_works(model: ModelSpec, stack: StackSpec, cut: Cut, recomputes: Sequence[str]) -> list[list[BlockWork]]:
    """Work of every block of a model (`sim.work.stages.blocks_of`), each under all ways to recompute that it knows.

    Embedding and head are never recomputed.
    """
    layers = [layer_works(model, stack, cut, recomputes, kind) for kind in model.layer_kinds]
    mtp = [[BlockWork(Phase(), Phase(), Phase())]]
    if model.num_mtp_layers:
        mtp = [mtp_works(model, stack, cut, layers[model.layer_kinds.index(model.mtp_kind)])]
    ends = (embedding_work(model, stack, cut), head_work(model, stack, cut))
    return [*([with_adapters(end, cut.adapters, cut.width)] for end in ends), *layers, *mtp]


def layer_work(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind | None = None) -> BlockWork:
    """One transformer layer, one micro-batch, on one GPU.

    Parameters
    ----------
    model, stack : records
    cut : Cut
        Degrees and sizes; arrays broadcast.
    kind : LayerKind, optional
        Of the model's `layer_kinds`. Default: the last layer's.

    Returns
    -------
    BlockWork
        Forward, input gradient, weight gradient, and what `cut.recompute` runs again in the backward.
    """
    return layer_works(model, stack, cut, (cut.recompute,), kind)[0]


def layer_works(
    model: ModelSpec, stack: StackSpec, cut: Cut, recomputes: Sequence[str], kind: LayerKind | None = None
) -> list[BlockWork]:
    """As `layer_work`, for several ways to recompute instead of the cut's own; they share all other phases."""
    kind = kind or model.layer_kinds[0]
    mixer = _mixer(model, stack, cut, kind)
    mlp = _NOTHING
    if kind.mlp != "none":
        mlp = experts_work(model, stack, cut) if kind.sparse else _mlp(model, stack, cut)
    params = (layer_params(model, kind) - kind.sparse * expert_params(model)) / cut.tp
    if kind.sparse:
        params = params + expert_params(model) / (cut.ep * cut.etp)
    accumulate = gradient_accumulation(params, stack, cut.width)
    cast_f, cast_b = _casts(params, model, stack, cut, kind)
    mixer = BlockWork(cast_f + mixer.forward, cast_b + mixer.input_grad, mixer.weight_grad)
    forward = mixer.forward + mlp.forward
    input_grad = mlp.input_grad + mixer.input_grad
    weight_grad = mlp.weight_grad + mixer.weight_grad + accumulate
    frozen = with_adapters(BlockWork(forward, input_grad, weight_grad), cut.adapters, cut.width, stack.adapter_stall_s)
    forward, input_grad, weight_grad = frozen.forward, frozen.input_grad, frozen.weight_grad
    if stack.cuda_graph_scope:
        # One graph a layer and pass; its backward runs again what the forward's did and is recomputed.
        graphed = {name for each in stack.cuda_graph_scope for name in GRAPH_MODULES[each]}
        forward, input_grad = forward.in_graph(graphed, 1), input_grad.in_graph(graphed, 1)
        weight_grad = weight_grad.in_graph(graphed, 0)
    return [BlockWork(forward, input_grad, weight_grad, _again(forward, each, stack)) for each in recomputes]


_NOTHING = BlockWork(Phase(), Phase(), Phase())


def _mixer(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> BlockWork:
    """What mixes the tokens of a layer."""
    if kind.recurs:
        return recurrent_work(model, stack, cut, kind)
    if not kind.attends:
        return _NOTHING
    return projections_around(attention_core(model, stack, cut, kind), model, stack, cut)


def mtp_works(model: ModelSpec, stack: StackSpec, cut: Cut, layers: Sequence[BlockWork]) -> list[BlockWork]:
    """One module of multi-token prediction, around a layer: it looks the next token up, norms that and the hidden
    state, projects both to one, and norms what the layer makes of it; the head is the model's (DeepSeek-V3,
    arXiv:2412.19437, section 2.2; NVIDIA/Megatron-LM:megatron/core/transformer/multi_token_prediction.py).
    """
    h, w = model.hidden_size, cut.width
    norm_f, norm_b = norm_work(cut.norm_tokens * h, stack, w, 3)
    both = memory("hidden states joined", 4 * w * cut.norm_tokens * h)
    up_f, up_i, up_w = linear("multi-token projection", cut.tokens, h / cut.tp, 2 * h, stack, w)
    gather_f, gather_b = gather_in(cut, 2 * h, stack)
    whole = Collective("gather multi-token projection", "all_gather", w * cut.tokens * h)
    table = embedding_work(model, stack, cut)
    around = BlockWork(
        table.forward + Phase((norm_f, both, up_f), (*gather_f, whole)),
        Phase((up_i, both, norm_b), gather_b) + table.input_grad,
        Phase((up_w,)) + table.weight_grad + gradient_accumulation(2 * h * h / cut.tp, stack, w),
    )
    around = with_adapters(around, cut.adapters, cut.width)
    return [
        BlockWork(
            around.forward + layer.forward,
            layer.input_grad + around.input_grad,
            layer.weight_grad + around.weight_grad,
            layer.recompute,
        )
        for layer in layers
    ]


def _again(forward: Phase, recompute: str, stack: StackSpec) -> Phase:
    """What of a forward runs again in the backward; of several layers' mean, as much as that."""
    said = read_recompute(recompute)
    if said.mode == "selective":
        again = forward.of_modules(said.modules)
        return replace(again, setups=stack.checkpoint_launches * _checkpoints(forward, said.names))
    if said.mode == "full":
        again = replace(forward, setups=stack.checkpoint_launches / said.group)
        return again.scaled(said.share) if said.share < 1.0 else again
    return {"none": Phase(), "per_op": _per_op(forward)}[said.mode]


def _checkpoints(forward: Phase, names: Collection[str]) -> int:
    """Of modules to run again, those that are one by one: every norm is by itself. CUDA graphs launch their own."""
    launched = {item.module for item in forward.operations if not item.graphed}
    count = 0
    for name in names:
        here = [part in launched for part in RECOMPUTE_MODULES[name]]
        count += sum(here) if name == "layernorm" else any(here)
    return count


def _per_op(forward: Phase) -> Phase:
    """What torchtitan's selective activation checkpointing runs again: every other multiply, every cheap kernel."""
    multiplies = [item for item in forward.operations if item.kind == "matmul" and item.cause is Cause.MATMUL]
    cheap = [item for item in forward.operations if item.kind == "memory" and item.cause is Cause.MEMORY_BOUND]
    return Phase((*multiplies[1::2], *cheap), tuple(item for item in forward.collectives if item.kind == "all_gather"))


def _casts(params: Number, model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> tuple[Phase, Phase]:
    """Scaling linears' inputs, weights and output gradients to 8 or 4 bits, where no other kernel does it in passing.

    Where casts are fused, or a compiler fuses them, a norm writes 8 bits itself; what attention, activations and
    dispatched tokens are, and all gradients, a kernel reads and writes by rows and by columns (NVIDIA/
    TransformerEngine: quantizers of transformer_engine/pytorch/module). To 4 bits norms do not cast. Elsewhere a pass
    finds the largest magnitude (2 bytes a number), another scales and writes (2 + 1); a gradient is written twice, once
    transposed for the weight gradient.
    """
    if cut.format is None:
        return Phase(), Phase()
    h, tokens = model.hidden_size, cut.tokens
    products = 2 if model.gated_mlp else 1
    copies: Number = 0.0
    inner: Number = 0.0
    if kind.sparse:
        copies, inner = routed(model, cut).copies, model.expert_intermediate_size / cut.etp
    elif kind.mlp == "dense":
        copies, inner = tokens, model.intermediate_size / cut.tp
    columns, context = _mixer_columns(model, cut, kind)
    mixes = tokens * (kind.mixer != "none")
    between = 0 if kind.sparse and stack.fused_experts else inner  # else experts' kernels write it as it is read
    inputs = mixes * (h + context) + copies * (h + between)
    gradients = mixes * (columns + h) + copies * (h + products * between)
    fused = cut.format.norms_cast and (stack.fused_casts or stack.compiled)
    if fused or not cut.format.norms_cast:  # weights are cast once a step
        by_norms = mixes * h + (copies * h if kind.mlp == "dense" else 0.0)
        there, back = cut.format.cast * (inputs - fused * by_norms), cut.format.cast * gradients
        first, kernels = (2 if fused else 4) * cut.format.kernels, 4 * cut.format.kernels
        return Phase((memory("casts", there, first),)), Phase((memory("gradients' casts", back, kernels),))
    return (
        Phase((memory("casts to fp8", 5 * (inputs + params), kernels=16),)),
        Phase((memory("gradients' casts to fp8", 6 * gradients + inputs, kernels=12),)),
    )


def _mixer_columns(model: ModelSpec, cut: Cut, kind: LayerKind) -> tuple[Number, Number]:
    """Columns that come out of a mixer's first multiply on one GPU, and that go into its last."""
    if kind.recurs:
        wide = recurrent_widths(model, kind)
        return (wide.mixed + wide.gates) / cut.tp, wide.values / cut.tp
    query = model.num_heads * model.head_dim / cut.tp
    return query + key_value_width(model, cut.tp), query


def _mlp(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Norm, up (and gate), activation, down, residual."""
    # Transformer Engine runs the norm inside the module of the multiply after it.
    norm_f, norm_b = norms_of_block(model, stack, cut, "mlp")
    res_f, res_b = residual(model, stack, cut, model.mlp_bias, "mlp_residual")
    inner = mlp_between("MLP", model.intermediate_size, model, stack, cut, "mlp")
    return BlockWork(
        forward=Phase((norm_f,)) + inner.forward + Phase((res_f,)),
        input_grad=Phase((res_b,)) + inner.input_grad + Phase((norm_b,)),
        weight_grad=inner.weight_grad,
    )


def embedding_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Token (and position) embedding, cut by vocabulary; the reduction after it; its dropout."""
    h, w = model.hidden_size, cut.width
    elements = cut.tokens * h
    lookups = 2 if model.position == "learned" else 1
    mask = (2 * w + 1) * cut.norm_tokens * h if model.dropout else 0.0
    norms = norm_work(cut.norm_tokens * h, stack, w) if model.embedding_norm else ()
    reduction = Collective(
        "reduce embedding", "reduce_scatter" if cut.sequence_parallel else "all_reduce", w * elements
    )
    backward_gather = (
        (Collective("gather embedding gradient", "all_gather", w * elements),) if cut.sequence_parallel else ()
    )
    return BlockWork(
        forward=Phase((memory("embedding", 2 * w * elements * lookups + mask, lookups + 2), *norms[:1]), (reduction,)),
        input_grad=Phase((memory("embedding dropout backward", mask), *norms[1:]), backward_gather),
        weight_grad=Phase((memory("embedding gradient", 3 * w * elements * lookups, 2 * lookups),))
        + gradient_accumulation(model.vocab_size * h / cut.tp, stack, w),
    )


def head_work(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Final norm, logits and cross-entropy over a vocabulary cut by tp; never recomputed.

    Megatron-LM computes the loss in fp32 from 16-bit logits without gathering them: three all-reduces of one number a
    token (Shoeybi et al. 2019, section 3). A stack without a vocabulary-parallel loss gathers them. Every module of
    multi-token prediction has its tokens' logits and loss besides. A policy's loss goes through the vocabulary piece by
    piece, and again in the backward.
    """
    h, w, tokens = model.hidden_size, cut.width, cut.tokens * (1 + model.num_mtp_layers)
    vocabulary = model.vocab_size / cut.tp
    whole = not stack.vocab_parallel_loss
    logits = tokens * (model.vocab_size if whole else vocabulary)
    norm_f, norm_b = norm_work(cut.norm_tokens * h, stack, w)
    logit_f, logit_i, logit_w = linear("logits", tokens, vocabulary, h, stack, w, cause=Cause.LOGITS)
    if stack.fused_cross_entropy:
        # One pass reads the logits for maximum and sum, one more in the backward writes their gradient in place.
        loss_f, loss_b = (
            memory("cross-entropy", 2 * w * logits, 2, sort="softmax"),
            memory("cross-entropy backward", 2 * w * logits, 1, sort="softmax"),
        )
    else:
        # Cast to fp32 (w + 4), maximum (4), subtract in place (8), exponential (8), sum (4), divide in place (8);
        # backward: scale in place (8), cast back (4 + w).
        loss_f = memory("cross-entropy", (w + 36) * logits, 6)
        loss_b = memory("cross-entropy backward", (w + 12) * logits, 3)
    gather_f, gather_b = gather_in(cut, h * (1 + model.num_mtp_layers), stack)
    statistics = tuple(Collective(f"loss {name}", "all_reduce", 4.0 * tokens) for name in ("maximum", "target", "sum"))
    if whole:
        statistics = (Collective("gather logits", "all_gather", w * logits),)
    weights = model.vocab_size * h / cut.tp
    if stack.policy_loss_columns:
        forward, backward = _policy_loss(tokens, vocabulary, h, stack.policy_loss_columns, w)
        return BlockWork(
            forward=Phase((norm_f, *forward), gather_f + statistics),
            input_grad=Phase((*backward, norm_b), gather_b),
            weight_grad=Phase() + gradient_accumulation(weights, stack, w),
        )
    return BlockWork(
        forward=Phase((norm_f, logit_f, loss_f), gather_f + statistics),
        input_grad=Phase((loss_b, logit_i, norm_b), gather_b),
        weight_grad=Phase((logit_w,)) + gradient_accumulation(weights, stack, w),
    )


def _policy_loss(
    tokens: Number, vocabulary: Number, hidden: int, columns: int, width: int
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Log-probabilities and entropies of tokens, and all gradients of these, by pieces of the vocabulary.

    Each piece's logits are cast to fp32 (w + 4 bytes), divided by the temperature in place (8), and added to running
    maxima (4), sums of exponentials (8, 8, 4) and of these times the logits (12, 4). The backward multiplies again,
    casts and scales alike, subtracts (8), exponentiates (8), multiplies (8), scales (8) and casts what it found for
    each of two multiplies (8 + 2w), whose results it adds to what the pieces before left (PrimeIntellect-ai/prime-rl:
    src/prime_rl/trainer/models/layers/lm_head.py, _ChunkedLogProbEntropyFn).
    """
    pieces, logits, w = vocabulary / columns, tokens * vocabulary, width
    score, loss = partial(matmul, width=w, batch=pieces, cause=Cause.LOGITS), partial(memory, sort="softmax")
    added = 3 * w * hidden * (tokens * pieces + vocabulary)
    return (
        (score("logits", tokens, columns, hidden), loss("log-probabilities", (w + 52) * logits, 19 * pieces)),
        (
            score("logits again", tokens, columns, hidden),
            loss("log-probabilities backward", (3 * w + 52) * logits, 14 * pieces),
            score("logits input gradient", tokens, hidden, columns),
            score("logits weight gradient", columns, hidden, tokens),
            memory("gradients of pieces added", added, 2 * pieces, sort="add"),
        ),
    )


def assumed(scenario: Scenario) -> Iterator[str]:
    """What is taken of layers that do not attend to the whole sequence, and of sequences longer than the model's."""
    model, length = scenario.model, scenario.training.sequence_length
    kinds = sorted(model.layer_kinds, key=lambda kind: kind.mixer)
    partial = dict.fromkeys(kind.mixer for kind in kinds if kind.attends and kind.mixer != "full_attention")
    carried = dict.fromkeys(kind.mixer for kind in kinds if not kind.attends and kind.mixer != "none")
    if partial:
        yield f"{' and '.join(partial)} reaches full attention's rate, on the tiles that it computes"
    if carried:
        yield f"{' and '.join(carried)}: chunks as products of matrices and bytes; no kernel of it was measured"
    if model.position == "rotary" and length > model.max_sequence_length:
        yield f"sequences of {length:,} tokens exceed the model's {model.max_sequence_length:,}"
