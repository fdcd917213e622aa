"""One transformer layer, the embedding and the head as operations on one GPU of a tensor-parallel group.

Shapes are those of Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): column- then row-parallel
matrices, so that a layer needs two all-reduces forward and two backward; with sequence parallelism each becomes a
reduce-scatter and an all-gather, and norms and dropouts are cut along the sequence (Korthikanti et al. 2022,
arXiv:2205.05198, section 4.2.2).

Elementwise kernels are counted by the bytes they read and write: `width` bytes an activation, one byte a dropout mask.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.arrays import Number
from sim.specs import ModelSpec, StackSpec
from sim.specs.modules import GRAPH_MODULES
from sim.work.attention import attention_core, projections_around
from sim.work.experts import experts_work, routed
from sim.work.operations import BlockWork, Cause, Collective, Phase, memory
from sim.work.params import expert_params, layer_params
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


def block_works(model: ModelSpec, stack: StackSpec, cut: Cut, recomputes: Sequence[str]) -> list[list[BlockWork]]:
    """Work of every block of a model (`sim.work.stages.blocks_of`), each under all ways to recompute that it knows.

    Embedding and head are never recomputed.
    """
    layers = [
        layer_works(model, stack, cut, recomputes, dense) for dense in (False, True)[: 1 + bool(model.num_dense_layers)]
    ]
    return [layers[0], [embedding_work(model, stack, cut)], [head_work(model, stack, cut)], *layers[1:]]


def layer_work(model: ModelSpec, stack: StackSpec, cut: Cut, dense: bool = False) -> BlockWork:
    """One transformer layer, one micro-batch, on one GPU.

    Parameters
    ----------
    model, stack : records
    cut : Cut
        Degrees and sizes; arrays broadcast.
    dense : bool
        One of the first layers of a mixture of experts, which have none.

    Returns
    -------
    BlockWork
        Forward, input gradient, weight gradient, and what `cut.recompute` runs again in the backward.
    """
    return layer_works(model, stack, cut, (cut.recompute,), dense)[0]


def layer_works(
    model: ModelSpec, stack: StackSpec, cut: Cut, recomputes: Sequence[str], dense: bool = False
) -> list[BlockWork]:
    """As `layer_work`, for several ways to recompute instead of the cut's own; they share all other phases."""
    attention = projections_around(attention_core(model, stack, cut), model, stack, cut)
    experts = bool(model.num_experts) and not dense
    mlp = experts_work(model, stack, cut) if experts else _mlp(model, stack, cut)
    forward = attention.forward + mlp.forward
    params = (layer_params(model, dense) - experts * expert_params(model)) / cut.tp
    if experts:
        params = params + expert_params(model) / cut.ep
    accumulate = gradient_accumulation(params, stack, cut.width)
    cast_f, cast_b = _casts(params, model, stack, cut, experts)
    attention = BlockWork(cast_f + attention.forward, cast_b + attention.input_grad, attention.weight_grad)
    input_grad = mlp.input_grad + attention.input_grad
    weight_grad = mlp.weight_grad + attention.weight_grad + accumulate
    if stack.cuda_graph_scope:
        # One graph a layer and pass; its backward runs again what the forward's did and is recomputed.
        graphed = {name for each in stack.cuda_graph_scope for name in GRAPH_MODULES[each]}
        forward, input_grad = forward.in_graph(graphed, 1), input_grad.in_graph(graphed, 1)
        weight_grad = weight_grad.in_graph(graphed, 0)
    return [BlockWork(forward, input_grad, weight_grad, _again(forward, each)) for each in recomputes]


def _again(forward: Phase, recompute: str) -> Phase:
    """What of a forward runs again in the backward; of several layers' mean, as much as that."""
    said = read_recompute(recompute)
    if said.mode == "selective":
        return forward.of_modules(said.modules)
    if said.mode == "full" and said.share < 1.0:
        return forward.scaled(said.share)
    return {"none": Phase(), "per_op": _per_op(forward), "full": forward}[said.mode]


def _per_op(forward: Phase) -> Phase:
    """What torchtitan's selective activation checkpointing runs again: every other multiply, every cheap kernel."""
    multiplies = [item for item in forward.operations if item.kind == "matmul" and item.cause is Cause.MATMUL]
    cheap = [item for item in forward.operations if item.kind == "memory" and item.cause is Cause.MEMORY_BOUND]
    return Phase((*multiplies[1::2], *cheap), tuple(item for item in forward.collectives if item.kind == "all_gather"))


def _casts(params: Number, model: ModelSpec, stack: StackSpec, cut: Cut, experts: bool) -> tuple[Phase, Phase]:
    """Scaling linears' inputs, weights and output gradients to 8 bits, where no other kernel does it in passing.

    A pass finds the largest magnitude (2 bytes a number), another scales and writes (2 + 1); a gradient is written
    twice, once transposed for the weight gradient.
    """
    if not cut.fp8 or stack.fused_casts:
        return Phase(), Phase()
    h, tokens = model.hidden_size, cut.tokens
    query, products = model.num_heads * model.head_dim / cut.tp, 2 if model.gated_mlp else 1
    if experts:
        copies, inner = routed(model, cut).copies, model.expert_intermediate_size
    else:
        copies, inner = tokens, model.intermediate_size / cut.tp
    inputs = tokens * (h + query) + copies * (h + inner)
    gradients = tokens * (query + key_value_width(model, cut.tp) + h) + copies * (h + products * inner)
    return (
        Phase((memory("casts to fp8", 5 * (inputs + params), kernels=16),)),
        Phase((memory("gradients' casts to fp8", 6 * gradients + inputs, kernels=12),)),
    )


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
    token (Shoeybi et al. 2019, section 3). A stack without a vocabulary-parallel loss gathers them.
    """
    h, w, tokens = model.hidden_size, cut.width, cut.tokens
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
    gather_f, gather_b = gather_in(cut, h, stack)
    statistics = tuple(Collective(f"loss {name}", "all_reduce", 4.0 * tokens) for name in ("maximum", "target", "sum"))
    if whole:
        statistics = (Collective("gather logits", "all_gather", w * logits),)
    weights = model.vocab_size * h / cut.tp
    return BlockWork(
        forward=Phase((norm_f, logit_f, loss_f), gather_f + statistics),
        input_grad=Phase((loss_b, logit_i, norm_b), gather_b),
        weight_grad=Phase((logit_w,)) + gradient_accumulation(weights, stack, w),
    )
