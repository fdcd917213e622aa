"""The attention block of one layer on one GPU: projections, rotary positions, the core, keys that are exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec, StackSpec
from sim.specs.formats import FORMATS
from sim.work.flops import reach
from sim.work.operations import BlockWork, Cause, Collective, Operation, Phase, matmul, memory
from sim.work.pieces import (
    Cut,
    gather_in,
    key_value_width,
    linear,
    norm_work,
    norms_of_block,
    reduce_out,
    residual,
)


def projections_around(core: BlockWork, model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Norm, projections to queries, keys and values, the attention core, output projection, residual."""
    h, w, tokens = model.hidden_size, cut.width, cut.tokens
    context = model.num_heads * model.value_head_dim / cut.tp
    # Transformer Engine runs the norm inside the module of the multiply after it; latent attention's stands alone.
    norm_f, norm_b = norms_of_block(model, stack, cut, "attn_layernorm" if model.key_value_rank else "attn")
    res_f, res_b = residual(model, stack, cut, model.attention_output_bias, "attn")
    before = _latent_projections(model, stack, cut) if model.key_value_rank else _projections(model, stack, cut)
    out_f, out_i, out_w = linear("attention output", tokens, h, context, stack, w, module="attn")
    # The heads are laid out anew around the core: one read and one write of the context.
    permute = memory("head layout", 2 * w * tokens * context, module="attn")
    gates: tuple[Operation, ...] = ()
    if model.attention_gate:  # a sigmoid and a product; backward the gradients of both
        gates = (memory("attention gate", 3 * w * tokens * context, 2, sort="activation", module="attn"),)
    reduce_f, reduce_b = reduce_out(cut, h, "attn")
    return BlockWork(
        forward=Phase((norm_f,)) + before.forward + core.forward + Phase((permute, *gates, out_f, res_f), reduce_f),
        input_grad=Phase((res_b, out_i, *gates, *gates, permute), reduce_b)
        + core.input_grad
        + before.input_grad
        + Phase((norm_b,)),
        weight_grad=Phase((out_w,)) + before.weight_grad,
    )


def _projections(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Queries, keys and values by one matrix multiply, their norms and rotary positions."""
    h, w, tokens = model.hidden_size, cut.width, cut.tokens
    query, key_value = model.num_heads * model.head_dim / cut.tp, key_value_width(model, cut.tp)
    turned = query + key_value * model.head_dim / (model.head_dim + model.value_head_dim)
    context = model.num_heads * model.value_head_dim / cut.tp * model.attention_gate
    qkv_f, qkv_i, qkv_w = linear("query, key, value", tokens, query + key_value + context, h, stack, w, module="attn")
    turns, turns_back = _rotary(tokens * turned, model, stack, cut, "attn")
    qk_f, qk_b = _query_key_norms(tokens * turned, model, stack, w)
    gather_f, gather_b = gather_in(cut, h, stack, "attn")
    return BlockWork(
        Phase((qkv_f, *qk_f, *turns), gather_f), Phase((*turns_back, *qk_b, qkv_i), gather_b), Phase((qkv_w,))
    )


def _latent_projections(model: ModelSpec, stack: StackSpec, cut: Cut) -> BlockWork:
    """Latent attention: down to two latent vectors, each normed, and up from them to the heads of this GPU.

    Every GPU has the projections down and applies them to its own tokens; under tensor parallelism the latent vectors
    are gathered, not the hidden state (DeepSeek-V2, arXiv:2405.04434, section 2.1; NVIDIA/Megatron-LM:megatron/core/
    transformer/multi_latent_attention.py).
    """
    h, w, tokens, own = model.hidden_size, cut.width, cut.tokens, cut.norm_tokens
    heads, turning = model.num_heads / cut.tp, model.rotary_head_dim
    latent = model.key_value_rank + turning
    up = "mla_up_proj"  # projections up and positions, from the normed latent vectors on
    down_f, down_i, down_w = linear("keys' and values' latent", own, latent, h, stack, w, module="attn")
    up_width = heads * (model.head_dim - turning + model.value_head_dim)
    up_f, up_i, up_w = linear(
        "keys and values from latent", tokens, up_width, model.key_value_rank, stack, w, module=up
    )
    of_queries = model.query_rank or h
    query_f, query_i, query_w = linear("queries", tokens, heads * model.head_dim, of_queries, stack, w, module=up)
    norm_f, norm_b = norm_work(own * model.key_value_rank, stack, w, module="attn")
    multiplies = [down_f, up_f, query_f], [query_i, up_i, down_i], [query_w, up_w, down_w]
    norms = [norm_f], [norm_b]
    if model.query_rank:
        for passes, one in zip(
            multiplies, linear("queries' latent", own, model.query_rank, h, stack, w, module="attn"), strict=True
        ):
            passes.append(one)
        for passes, one in zip(norms, norm_work(own * model.query_rank, stack, w, module="attn"), strict=True):
            passes.append(one)
    turns, turns_back = _rotary(tokens * (heads + 1) * turning, model, stack, cut, up)
    # Each head's key is its own part and the part that all heads share, joined.
    join = memory("keys joined", 2 * w * tokens * heads * model.head_dim, module=up)
    gather_f, gather_b = gather_in(cut, latent + of_queries, stack, up)
    return BlockWork(
        Phase((*multiplies[0], *norms[0], *turns, join), gather_f),
        Phase((join, *turns_back, *multiplies[1], *norms[1]), gather_b),
        Phase(tuple(multiplies[2])),
    )


ROTARY_SEQUENCE_S = 225e-6
"""Host time a forward for the angles of each packed sequence, which rotary positions that are not fused look up one
after the other: a loop that reads back where each sequence begins and slices the table of angles, for queries and for
keys (NVIDIA/Megatron-LM:megatron/core/models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_thd). Set on
Megatron-Bridge's card of Qwen3 30B fine-tuned at 32,768 tokens. [s]"""


def _rotary(
    elements: Number, model: ModelSpec, stack: StackSpec, cut: Cut, module: str
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Turning so many elements of queries and keys, forward and backward: one pass; step by step negate, join, two
    products and a sum.

    Step by step the host may look up one packed sequence's angles after the other's, which autograd does not do again
    (NVIDIA/Megatron-LM:megatron/core/models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_thd).
    """
    if model.position != "rotary":
        return (), ()
    if stack.fused_rotary and (stack.fused_scaled_rotary or not model.rotary_scaled or model.key_value_rank):
        turns = (memory("rotary positions", 2 * cut.width * elements, module=module),)
        return turns, turns
    turn = memory("rotary positions", 10 * cut.width * elements, 10, module=module)
    sequences = cut.microbatch_size * cut.sequence_length / cut.packed if cut.packed else 0.0
    return (replace(turn, host_s=stack.counted_launches * ROTARY_SEQUENCE_S * sequences),), (turn,)


TILE = 128
"""Keys of a tile of fused kernels, all of which are computed where a window ends inside it."""


def attention_core(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind | None = None) -> BlockWork:
    """Scores, softmax, dropout and values: what selective recomputation runs again.

    A fused kernel leaves out what a window or a piece of the sequence hides; step by step all scores are computed.
    """
    kind = kind or model.layer_kinds[0]
    s, b, w = cut.sequence_length, cut.microbatch_size, cut.width
    d, of_values = model.head_dim, model.value_head_dim
    # On this GPU are some queries of every head, by which the whole sequence's keys and values come, or all of some.
    by_heads = cut.cp if stack.context_by_heads else 1
    heads = model.num_heads / (cut.tp * by_heads) * b
    rows = s * by_heads / (cut.cp * cut.slices)
    # Two multiplies of rows × s × d a head forward (the second by the values' columns), four backward.
    full = 2.0 * rows * s * (d + of_values) * heads
    exchange_f, exchange_b = _exchanges(model, stack, cut)
    ordered = _ordering(stack, cut)
    if stack.attention == "flash":
        # Of the scores, what a kernel that skips the masked half computes; the slowest rank counts.
        skipped: Number = 1.0
        length: Number = s
        if stack.causal_attention:
            even = stack.balanced_context or stack.context_by_heads
            skipped = 0.5 if even else 1.0 - 0.5 / cut.cp
        seen = reach(model, s, kind, cut.packed)
        if seen < s:
            # Of a window also the corner before its first row; pieces and packed sequences are attended to one by one.
            window = kind.mixer == "sliding_attention" and seen == model.sliding_window
            whole = cut.packed or s
            corner = 0.5 * seen / whole if window else 0.5
            # Tiles at either end of a window are computed whole, as those on the diagonal are without one.
            more = TILE * window
            some = (seen + more) / (s + more) * (1.0 - corner if stack.causal_attention else 1.0)
            skipped, length = np.minimum(skipped, some), whole if window else seen
        queries, outputs = model.num_heads * d / cut.tp, model.num_heads * of_values / cut.tp
        read = core_width(stack, cut) * (queries + key_value_width(model, cut.tp))
        nbytes = cut.tokens * (read + w * outputs)

        def fused(name: str, times: float, credited: float, back: bool) -> Operation:
            return Operation(
                name, Cause.ATTENTION, "attention", flop=times * full * skipped, nbytes=nbytes * (2 if back else 1),
                k=0.5 * (d + of_values), batch=heads, length=length, backward=back,
                credited_flop=credited * full * seen / s, module="core_attn", host_s=ordered,
            )  # fmt: skip

        cast_f, cast_b = _casts_of_core(model, stack, cut)
        # The backward recomputes the scores: five multiplies instead of four (Dao 2023, arXiv:2307.08691, section 3.1),
        # two of them by the values' columns.
        multiplies = (3 * d + 2 * of_values) / (d + of_values)
        return BlockWork(
            forward=Phase((*cast_f, fused("flash attention", 1.0, 1.0, False)), exchange_f),
            input_grad=Phase((*cast_b, fused("flash attention backward", multiplies, 2.0, True)), exchange_b),
            weight_grad=Phase(),
        )

    scores = heads * rows * s
    softmax, softmax_back, kernels = _softmax_by_hand(w, heads, stack)
    attention, core = Cause.ATTENTION, "core_attn"
    forward = [
        matmul("scores", rows, s, d, w, batch=heads, cause=attention, module=core),
        replace(memory("softmax", softmax * scores, kernels, attention, sort="softmax", module=core), host_s=ordered),
    ]
    backward = [
        matmul("values' gradient", s, of_values, rows, w, batch=heads, cause=attention, module=core),
        matmul("probabilities' gradient", rows, s, of_values, w, batch=heads, cause=attention, module=core),
        replace(
            memory("softmax backward", softmax_back * scores, kernels, attention, sort="softmax", module=core),
            host_s=ordered,
        ),
        matmul("queries' gradient", rows, d, s, w, batch=heads, cause=attention, module=core),
        matmul("keys' gradient", s, d, rows, w, batch=heads, cause=attention, module=core),
    ]
    if model.dropout:
        forward.append(memory("attention dropout", (2 * w + 1) * scores, cause=attention, sort="dropout", module=core))
        backward.append(
            memory("attention dropout backward", (2 * w + 1) * scores, cause=attention, sort="dropout", module=core)
        )
    forward.append(matmul("values", rows, of_values, s, w, batch=heads, cause=attention, module=core))
    return BlockWork(Phase(tuple(forward), exchange_f), Phase(tuple(backward), exchange_b), Phase())


EIGHT_BITS = FORMATS["fp8"]


def core_width(stack: StackSpec, cut: Cut) -> float:
    """Bytes of a number of queries, keys and values as the attention core reads and keeps it."""
    return EIGHT_BITS.nbytes if _in_eight_bits(stack, cut) else cut.width


def _in_eight_bits(stack: StackSpec, cut: Cut) -> bool:
    """Whether the attention core multiplies in 8 bits."""
    return stack.fp8_attention and stack.attention == "flash" and cut.format is not None


def _casts_of_core(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Queries, keys and values to 8 bits before a core that multiplies these; the output's gradient in its backward."""
    if not _in_eight_bits(stack, cut):
        return (), ()
    moved, module = EIGHT_BITS.cast * cut.tokens, "core_attn"
    queries, outputs = (model.num_heads * columns / cut.tp for columns in (model.head_dim, model.value_head_dim))
    inputs = queries + key_value_width(model, cut.tp)
    return (
        (memory("casts of queries, keys, values", moved * inputs, 3, module=module),),
        (memory("cast of the output's gradient", moved * outputs, module=module),),
    )


def _softmax_by_hand(width: int, heads: Number, stack: StackSpec) -> tuple[Number, Number, Number]:
    """Bytes a score of scale, mask and softmax, forward and backward; and kernels in each direction.

    In one kernel, or one after the other; in fp32 with a cast before and one after. Megatron's fused kernel takes four
    sequences and heads at a time, and gives way to single ones otherwise (NVIDIA/Megatron-LM:megatron/model/
    fused_softmax.py).
    """
    w, wide = width, 4
    single, single_back, kernels = 6 * w, 7 * w, 3
    if stack.fp32_softmax:
        single, single_back, kernels = 2 * (w + wide) + 6 * wide, 2 * (w + wide) + 7 * wide, 5
    if not stack.fused_softmax:
        return single, single_back, kernels
    whole = np.asarray(heads) % 4 == 0
    return np.where(whole, 2 * w, single), np.where(whole, 3 * w, single_back), np.where(whole, 1, kernels)


def _exchanges(model: ModelSpec, stack: StackSpec, cut: Cut) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """What context-parallel ranks exchange for the attention, forward and backward."""
    if np.max(cut.cp) == 1:
        return (), ()
    return _exchange_heads(model, cut) if stack.context_by_heads else _exchange_keys(model, stack, cut)


def _exchange_keys(
    model: ModelSpec, stack: StackSpec, cut: Cut
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Keys and values of the other context-parallel ranks, forward; they and their gradients, backward.

    Passed round a ring beside the attention over what has arrived (Liu et al. 2023, arXiv:2310.01889), or gathered
    before it (Llama 3, arXiv:2407.21783, section 3.3.2): the same bytes.
    """
    nbytes = cut.width * cut.microbatch_size * cut.sequence_length * key_value_width(model, cut.tp)
    beside = stack.overlap_context

    def exchange(name: str, kind: Literal["all_gather", "reduce_scatter"]) -> Collective:
        return Collective(name, kind, nbytes, overlapped=beside, group="cp", module="core_attn")

    keys = exchange("exchange keys and values", "all_gather")
    return (keys,), (keys, exchange("exchange their gradients", "reduce_scatter"))


def _exchange_heads(model: ModelSpec, cut: Cut) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """All-to-alls of queries, keys and values before the attention, and of what it gives after it; of their gradients
    the other way round (Jacobs et al. 2023, arXiv:2309.14509, section 3.1)."""
    shared = key_value_width(model, cut.tp * cut.cp) * cut.cp / 2  # every rank has at least one head's of them
    columns = {
        "queries": model.num_heads * model.head_dim / cut.tp,
        "keys": shared,
        "values": shared,
        "outputs": model.num_heads * model.value_head_dim / cut.tp,
    }

    def each(what: str) -> tuple[Collective, ...]:
        return tuple(
            Collective(f"{name} {what}", "all_to_all", cut.width * cut.tokens * width, group="cp", module="core_attn")
            for name, width in columns.items()
        )

    return each("by heads"), each("by heads, gradients")


CONTEXT_SEQUENCE_S = 0.6e-3
"""Host time a pass through an attention for each packed sequence whose pieces are put in order around all-to-alls of
heads: a loop over sequences for each of four tensors, that reads back where each begins (NVIDIA/TransformerEngine:
transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
reorder_seq_chunks_after_a2a_before_attn_thd and its reverse). Set on Megatron-Bridge's card of Nemotron 3.5 Lightning
fine-tuned at 32,768 tokens on GB200. [s]"""


def _ordering(stack: StackSpec, cut: Cut) -> Number:
    """Host time in which packed sequences' pieces are put in order around all-to-alls of heads. [s]"""
    if not (stack.context_by_heads and stack.counted_launches and cut.packed):
        return 0.0
    sequences = cut.microbatch_size * cut.sequence_length / cut.packed
    return CONTEXT_SEQUENCE_S * sequences * (cut.cp > 1)


def _query_key_norms(
    elements: Number, model: ModelSpec, stack: StackSpec, width: int
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Norms of queries and keys where there are any, a kernel each: forward, backward."""
    if model.query_key_norm == "none":
        return (), ()
    forward, backward = norm_work(elements / 2, stack, width, 2, "attn")
    return (forward,), (backward,)
