"""The attention block of one layer on one GPU: projections, positions, the core, what context parallelism adds."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec
from sim.specs.base import FORMATS
from sim.work.operations import Cause, Collective, Kernel, Tensor, Weight, matmul, memory
from sim.work.pieces import Cut, Writer, key_value_width


def exchanges(write: Writer) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """Keys and values of the other context-parallel ranks, forward; they and their gradients, backward.

    Sent round a ring beside the attention over what has arrived (Liu et al. 2023, arXiv:2310.01889), or gathered before
    it (Llama 3, arXiv:2407.21783, section 3.3.2): the same bytes. A ring is sends to the next rank (batched isend and
    irecv, NVIDIA/TransformerEngine:transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
    flash_attn_p2p_communicate; a permute, pytorch/pytorch:torch/distributed/tensor/experimental/_context_parallel/
    _attention.py, _AllToAllRotater), no collective of a library, which would use every card of a node.
    """
    model, cut, beside = write.model, write.cut, write.stack.overlap_context
    if write.stack.context_by_heads:
        return _exchanges_of_heads(model, cut)
    nbytes = cut.width * cut.microbatch_size * cut.sequence_length * key_value_width(model, cut.tp)

    def exchange(name: str, kind: Literal["all_gather", "reduce_scatter"]) -> Collective:
        return Collective(name, "send_ring" if beside else kind, nbytes, beside, group="cp")

    keys = exchange("exchange keys and values", "all_gather")
    return (keys,), (keys, exchange("exchange their gradients", "reduce_scatter"))


def _exchanges_of_heads(model: ModelSpec, cut: Cut) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """All-to-alls of queries, keys and values before the attention, and of what it gives after it; of their gradients
    the other way round (Jacobs et al. 2023, arXiv:2309.14509, section 3.1)."""
    shared = key_value_width(model, cut.tp * cut.cp) * cut.cp / 2  # every rank has at least one head's of them
    queries, outputs = (model.num_heads * each / cut.tp for each in (model.head_dim, model.value_head_dim))
    columns = {"queries": queries, "keys": shared, "values": shared, "outputs": outputs}
    there, back = (
        tuple(
            Collective(f"{name} {what}", "all_to_all", cut.width * cut.tokens * width, group="cp")
            for name, width in columns.items()
        )
        for what in ("by heads", "by heads, gradients")
    )
    return there, back


CONTEXT_SEQUENCE_S = 0.6e-3
"""Host time a pass through an attention for each packed sequence whose pieces are put in order around all-to-alls of
heads: a loop over sequences for each of four tensors, that reads back where each begins (NVIDIA/TransformerEngine:
transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
reorder_seq_chunks_after_a2a_before_attn_thd and its reverse). Set on Megatron-Bridge's card of Nemotron 3.5 Lightning
fine-tuned at 32,768 tokens on GB200. [s]"""


def ordering(write: Writer) -> Number:
    """Host time in which packed sequences' pieces are put in order around all-to-alls of heads. [s]"""
    stack, cut = write.stack, write.cut
    if not (stack.context_by_heads and stack.counted_launches and cut.packed):
        return 0.0
    return CONTEXT_SEQUENCE_S * (cut.microbatch_size * cut.sequence_length / cut.packed) * (cut.cp > 1)


def in_a_ring(write: Writer) -> bool:
    """Whether keys and values go round a ring of Transformer Engine's kind: ranks hold a piece from each end, and each
    step's kernel attends to the piece that has come. Steps of PyTorch's own ring, whose ranks do unequal work, are in
    what that inequality was inferred from."""
    stack, degree = write.stack, np.max(write.cut.cp)
    return stack.overlap_context and stack.balanced_context and not stack.context_by_heads and bool(degree > 1)


def ring_steps(write: Writer, outputs: Number, queries: Number, eight_bits: bool) -> tuple[Kernel, Kernel]:
    """What a ring's steps do beside attending, forward and backward, on the rank all of whose queries see every piece.

    Forward: keys and values are joined to be sent; of the pieces that come a half is laid out anew; statistics are
    merged; the first step's output is scaled (read and written), every other one's is scaled and added (two reads and a
    write). Backward: the gradients of queries are copied from the first step and added from the others; those of keys
    and values are joined in every step, copied or added to what the ring brings, and sent on (NVIDIA/TransformerEngine:
    transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P and
    flash_attn_fwd_out_correction, which a compiler fuses). Launches count those of the steps' attention, sends and
    receives; sums over steps but the first have `more`.

    Attention in 8 bits gives every step's results in these, and sums are in fp32 all the same. Forward: a step's output
    is cast (1 byte read and 4 written) and then scaled (8) or scaled and added (12); the sum is cast to 16 bits and to
    8 (9). Backward: each step's gradients are copied (2; 4 where keys and values are joined), cast (5) and read for the
    sum (4), which is written, and cast to 16 bits (10).

    outputs, queries : columns of each on this GPU.
    eight_bits : attention multiplies in 8 bits.
    """
    cut = write.cut
    shared, more, ring = key_value_width(write.model, cut.tp), cut.cp - 1, np.asarray(cut.cp) > 1
    if eight_bits:
        there = outputs * (22 + 17 * more) + shared * (2 + more)
        back = queries * (21 + 11 * more) + shared * (23 + 13 * more)
    else:
        there = cut.width * (outputs * (2 + 3 * more) + shared * (2 + more))
        back = cut.width * (queries * (2 + 3 * more) + shared * (6 + 6 * more))
    casts = 3 if eight_bits else 0
    each = partial(memory, cause=Cause.ATTENTION, sort="add")
    return (
        each("steps of the ring", cut.tokens * ring * there, ring * (3 + casts + 7 * more)),
        each("steps of the ring backward", cut.tokens * ring * back, ring * (4 + 2 * casts + 8 * more)),
    )


def attention(write: Writer, y: Tensor, kind: LayerKind) -> Tensor:
    """Projections to queries, keys and values, the attention core, its gate, output projection."""
    model, cut, h = write.model, write.cut, write.model.hidden_size
    q, k, v = _latent_projections(write, y) if model.key_value_rank else _projections(write, y)
    context = write.tensor("context", model.num_heads * model.value_head_dim / cut.tp)
    attention_core(write, q, k, v, context, kind)
    # The heads are laid out anew around the core: one read and one write of the context.
    moved = cut.width * cut.tokens * context.columns
    layout = memory("head layout", 2 * moved)
    write.add("head layout", "attn", forward=(layout,), input_grad=(layout,))
    if model.attention_gate:  # a sigmoid and a product; backward the gradients of both
        before, gate = context, context.like("gate")
        context = context.like("context gated")
        kernel = memory("attention gate", 3 * moved, 2, sort="activation")
        write.add(
            "attention gate", "attn", reads=(before, gate), writes=(context,), kept=(before, gate), forward=(kernel,),
            input_grad=(kernel, kernel),
        )  # fmt: skip
    out, bias = write.tensor("attention output", h), [Weight(h)] * model.attention_output_bias
    weights = [Weight(h, context.columns), *bias]
    # The core keeps its output anyway, so that the projection keeps that too, and no copy in fewer bits (NVIDIA/
    # Megatron-LM:megatron/core/transformer/attention.py, set_save_original_input).
    write.linear(out.name, "attn", context, [out], weights, cut_by="rows", width=cut.width, exchanged=True)
    return write.reduce("attn", out, linear=out.name)


def _projections(write: Writer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by one matrix multiply, their norms and rotary positions."""
    model, cut, h, heads = write.model, write.cut, write.model.hidden_size, write.model.num_heads / write.cut.tp
    shared = np.maximum(model.num_kv_heads / cut.tp, 1)  # a GPU holds one head of keys and values at least
    q, k = write.tensor("queries", heads * model.head_dim), write.tensor("keys", shared * model.head_dim)
    v = write.tensor("values", shared * model.value_head_dim)
    outs = [q, k, v, *[write.tensor("gate", heads * model.value_head_dim)] * model.attention_gate]
    weights = [Weight(out.columns, h) for out in outs] + [Weight(out.columns) for out in outs] * model.qkv_bias
    name = "query, key, value"
    (whole,) = write.gather("attn", y, linear=name)
    write.linear(name, "attn", whole, outs, weights, cut_by="columns", own=y, exchanged=True)
    if model.query_key_norm != "none":
        q, k = (
            write.norm("attn", each, weights=model.head_dim if model.query_key_norm == "head" else each.columns)
            for each in (q, k)
        )
    if model.position == "rotary":
        q, k = _rotary(write, "attn", (q, k), cut.tokens * (q.columns + k.columns))
    return q, k, v


def _latent_projections(write: Writer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latent attention: down to two latent vectors, each normed, and up from them to the heads of this GPU.

    Every GPU has the projections down and applies them to its own tokens; under tensor parallelism the latent vectors
    are gathered, not the hidden state (DeepSeek-V2, arXiv:2405.04434, section 2.1; NVIDIA/Megatron-LM:megatron/core/
    transformer/multi_latent_attention.py).
    """
    model, cut, h, heads = write.model, write.cut, write.model.hidden_size, write.model.num_heads / write.cut.tp
    turning, source = model.rotary_head_dim, y
    up = "mla_up_proj"  # projections up and positions, from the normed latent vectors on
    if model.query_rank:
        down = y.like("queries' latent", model.query_rank)
        write.linear(down.name, "attn", y, [down], [Weight(model.query_rank, h)])
        source = write.norm("attn", down, weights=model.query_rank)
    both = y.like("keys' and values' latent", model.key_value_rank + turning)
    write.linear(both.name, "attn", y, [both], [Weight(both.columns, h)])
    normed = write.norm("attn", both, model.key_value_rank, model.key_value_rank)
    q, k = (write.tensor(name, heads * model.head_dim) for name in ("queries", "keys"))
    v, parts = write.tensor("values", heads * model.value_head_dim), k.like("keys apart", q.columns - heads * turning)
    of_queries, of_keys = write.gather(up, source, normed, columns=source.columns + both.columns)
    write.linear("queries", up, of_queries, [q], [Weight(q.columns, source.columns)], cut_by="columns", own=source)
    weight = Weight(parts.columns + v.columns, model.key_value_rank)
    write.linear("keys and values from latent", up, of_keys, [parts, v], [weight], cut_by="columns", own=normed)
    (turned,) = _rotary(write, up, (q,), cut.tokens * (heads + 1) * turning)
    # Each head's key is its own part and the part that all heads share, joined.
    join = memory("keys joined", 2 * cut.width * cut.tokens * k.columns)
    write.add("keys joined", up, reads=(parts, both), writes=(k,), forward=(join,), input_grad=(join,))
    return turned, k, v


ROTARY_SEQUENCE_S = 225e-6
"""Host time a forward for the angles of each packed sequence, which rotary positions that are not fused look up one
after the other: a loop that reads back where each sequence begins and slices the table of angles, for queries and for
keys (NVIDIA/Megatron-LM:megatron/core/models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_thd). Set on
Megatron-Bridge's card of Qwen3 30B fine-tuned at 32,768 tokens. [s]"""


def _rotary(write: Writer, module: str, tensors: tuple[Tensor, ...], elements: Number) -> tuple[Tensor, ...]:
    """Turn so many elements of queries and keys: in one pass; step by step negate, join, two products and a sum.

    A rotation's gradient needs its angles, not its input. Step by step the host may look up one packed sequence's
    angles after the other's, which autograd does not do again (NVIDIA/Megatron-LM:megatron/core/models/common/
    embeddings/rope_utils.py, _apply_rotary_pos_emb_thd).
    """
    model, stack, cut = write.model, write.stack, write.cut
    if model.position != "rotary":
        return tensors
    turned = tuple(each.like(f"{each.name} turned") for each in tensors)
    if stack.fused_rotary and (stack.fused_scaled_rotary or not model.rotary_scaled or model.key_value_rank):
        there = back = memory("rotary positions", 2 * cut.width * elements)
    else:
        # Of two products, a negation of one half, a join and a sum autograd's backward also fills what it has of each
        # half with zeros, and adds the halves and the products. In PyTorch's own modules heads and tokens of what is
        # turned have changed places. Beside angles in fp32 products, sum and their gradients are too, and are cast.
        sort = "copy" if stack.fused_linears else "apart"
        there, back = (
            memory("rotary positions", times * cut.width * elements, kernels, sort=sort)
            for times, kernels in (((18, 12), (28, 22)) if stack.autocast else ((10, 10), (15, 18)))
        )
        sequences = cut.microbatch_size * cut.sequence_length / cut.packed if cut.packed else 0.0
        there = there._replace(host_s=stack.counted_launches * ROTARY_SEQUENCE_S * sequences)
    write.add("rotary positions", module, reads=tensors, writes=turned, forward=(there,), input_grad=(back,))
    return turned


HEAD_COLUMNS = {
    "1": (32, 64, 128),
    "2": (32, 64, 96, 128, 192, 256),
    "3": (64, 96, 128, 192, 256),
    "4": (64, 96, 128, 192, 256),
    "cudnn": (64, 128, 192, 256),
    "efficient": (64, 128, 256),
    "flex": (16, 32, 64, 128, 256),
}
"""Columns of a head that fused kernels are made for; a head between two of them takes as long as the larger.
FlashAttention's as its repository lists them (Dao-AILab/flash-attention:csrc/flash_attn/src/static_switch.h and
hopper/static_switch.h), cuDNN's and PyTorch's memory-efficient ones as measured on H200 with heads of 32 to 256
(calibration/data/h200.jsonl). FlexAttention's blocks are powers of two
(pytorch/pytorch:torch/_inductor/kernel/flex, QK_HEAD_DIM_ROUNDED)."""


def padded_head(columns: int, version: str) -> int:
    """Columns of a head as the fused kernel of this version computes it."""
    return min(filter(columns.__le__, HEAD_COLUMNS[version]), default=columns)


TILE = 128
"""Keys of a tile of fused kernels, all of which are computed where a window ends inside it."""


def attention_core(write: Writer, q: Tensor, k: Tensor, v: Tensor, context: Tensor, kind: LayerKind) -> None:
    """Scores, softmax, dropout and values: what selective recomputation runs again.

    A fused kernel leaves out what a window or a piece of the sequence hides; step by step all scores are computed.
    Its backward finds them again, from what it read and wrote and from each row's statistics; step by step the
    probabilities are kept.
    """
    model, stack, cut, fused = write.model, write.stack, write.cut, write.stack.attention == "flash"
    kept = [each.in_bytes(_core_width(write)) for each in (q, k, v)]
    forward, backward = _fused_core(write, kind) if fused else _core_by_hand(write)
    exchange, exchange_back = ((), ()) if np.max(cut.cp) == 1 else exchanges(write)
    scratch: Number = 0.0
    if fused:
        kept += [context, context.like("row statistics", model.num_heads / cut.tp, width=4)]
    else:
        # Step by step the softmax is taken in fp32: its output is kept, and the cast to 16 bits that multiplies the
        # values (NVIDIA/Megatron-LM:megatron/model/fused_softmax.py, forward_torch_softmax); in fp32 there is none.
        # Dropout keeps a mask and what it leaves. The backward holds the gradients of the probabilities and of the
        # scores; step by step also the first one's cast to fp32 and the fp32 gradient of the scores, in place of the
        # second.
        w, cast = cut.width, not (stack.fused_softmax or cut.width == 4)
        columns = model.num_heads / cut.tp * cut.sequence_length
        kept.append(context.like("probabilities", columns, width=w + 4 * cast + (1 + w) * bool(model.dropout)))
        scratch = (w + 8 if cast else 2 * w) * cut.tokens * columns
    sinks = (Weight(model.num_heads / cut.tp),) if model.attention_sinks else ()
    write.add(
        "attention", "core_attn", reads=(q, k, v), writes=(context,), kept=tuple(kept), weights=sinks, forward=forward,
        input_grad=backward, sent=exchange, sent_back=exchange_back, scratch=scratch,
    )  # fmt: skip


_Both = tuple[tuple[Kernel, ...], tuple[Kernel, ...]]
"""Kernels of the forward, and of the backward."""


def _fused_core(write: Writer, kind: LayerKind) -> _Both:
    """The core in one kernel each way."""
    model, stack, cut = write.model, write.stack, write.cut
    s, d, of_values = cut.sequence_length, model.head_dim, model.value_head_dim
    heads, rows = _heads_and_rows(write)
    # Two multiplies of rows × s × d a head forward (the second by the values' columns), four backward.
    full = 2.0 * rows * s * (d + of_values) * heads
    seen = model.reach(kind, s, cut.packed)
    skipped, length = _seen_share(write, kind, seen)
    # The backward recomputes the scores: five multiplies instead of four (Dao 2023, arXiv:2307.08691, section 3.1),
    # two of them by the values' columns.
    multiplies = (3 * d + 2 * of_values) / (d + of_values)
    queries, outputs = model.num_heads * d / cut.tp, model.num_heads * of_values / cut.tp
    inputs = queries + key_value_width(model, cut.tp)
    nbytes = cut.tokens * (_core_width(write) * inputs + cut.width * outputs)
    beside: list[tuple[Kernel, Kernel]] = []
    if _core_width(write) < cut.width:
        # Queries, keys and values are cast to 8 bits before the core, the output's gradient in its backward.
        moved = FORMATS["fp8"].cast * cut.tokens
        casts = memory("casts of queries, keys, values", moved * inputs, 3)
        beside.append((casts, memory("cast of the output's gradient", moved * outputs)))
    if stack.masked_attention:
        skipped, length, masked = 1.0, s, _mask(write, heads * rows * s)
        beside.append((masked, masked))
    if in_a_ring(write):
        beside.append(ring_steps(write, outputs, queries, _core_width(write) < cut.width))
    padded = 0.5 * (padded_head(d, stack.flash_version) + padded_head(of_values, stack.flash_version))
    draws = heads * rows * s * skipped * bool(model.dropout)
    there, back = (
        Kernel(
            name, Cause.ATTENTION, "attention", flop=times * full * skipped, nbytes=nbytes * (2 if backward else 1),
            n=0.5 * (d + of_values), k=padded, batch=heads, length=length, backward=backward,
            credited_flop=credited * full * seen / s, host_s=ordering(write), draws=draws,
        )
        for name, times, credited, backward in (
            ("flash attention", 1.0, 1.0, False), ("flash attention backward", multiplies, 2.0, True)
        )
    )  # fmt: skip
    return (*(one for one, _ in beside), there), (*(other for _, other in beside), back)


def _seen_share(write: Writer, kind: LayerKind, seen: Number) -> tuple[Number, Number]:
    """Share of the scores that a kernel computes which skips the masked half, on the slowest rank; and the length of
    the sequence as its rate has it."""
    stack, cut, s = write.stack, write.cut, write.cut.sequence_length
    share: Number = 0.5 if stack.balanced_context or stack.context_by_heads else 1.0 - 0.5 / cut.cp
    if not seen < s:
        return share, s
    # Of a window also the corner before its first row; pieces and packed sequences are attended to one by one.
    window = kind.mixer == "sliding_attention" and seen == write.model.sliding_window
    whole = cut.packed or s
    corner = 0.5 * seen / whole if window else 0.5
    # Tiles at either end of a window are computed whole, as those on the diagonal are without one.
    more = TILE * window
    return np.minimum(share, (seen + more) / (s + more) * (1.0 - corner)), whole if window else seen


MASK_RATE = 2.0
"""Times the memory's bandwidth at which a kernel reads a mask that all heads share, since the cache holds it. Set on
attention of compiled steps of Llama 3.2 1B and GPT-2 medium on H100 and H200 (calibration/data/h100-steps.csv)."""


def _mask(write: Writer, scores: Number) -> Kernel:
    """The mask as a fused kernel reads it beside its scores, and keys and values repeated for every head of queries.

    Under a compiler transformers cannot look whether sequences are packed, and gives a mask of all scores instead of
    saying that they are causal (huggingface/transformers:src/transformers/masking_utils.py,
    find_packed_sequence_indices; integrations/sdpa_attention.py, use_gqa_in_sdpa: no groups of queries with it).
    """
    model, cut = write.model, write.cut
    groups = model.num_heads > model.num_kv_heads
    repeated = cut.tokens * (2 * model.num_heads * model.head_dim / cut.tp + key_value_width(model, cut.tp)) * groups
    nbytes = cut.width * (scores / MASK_RATE + repeated)
    return memory("attention mask", nbytes, 2 * groups, cause=Cause.ATTENTION, sort="add")


def _core_by_hand(write: Writer) -> _Both:
    """The core step by step."""
    model, cut, w = write.model, write.cut, write.cut.width
    s, d, of_values = cut.sequence_length, model.head_dim, model.value_head_dim
    heads, rows = _heads_and_rows(write)
    scores, wide = heads * rows * s, write.stack.fp32_softmax
    # Scale, mask and softmax: bytes a score forward and backward, and kernels, one after the other, in fp32 with a cast
    # before and one after; or in one. Megatron's fused kernel takes four sequences and heads at a time, and gives way
    # otherwise (NVIDIA/Megatron-LM:megatron/model/fused_softmax.py).
    each: tuple[Number, ...] = (2 * (w + 4) + 6 * 4, 2 * (w + 4) + 7 * 4, 5) if wide else (6 * w, 7 * w, 3)
    if write.stack.fused_softmax:
        fits = np.asarray(heads) % 4 == 0
        each = tuple(np.where(fits, *both) for both in zip((2 * w, 3 * w, 1), each, strict=True))
    softmax, softmax_back, kernels = each
    multiply = partial(matmul, width=w, batch=heads, cause=Cause.ATTENTION)
    move = partial(memory, cause=Cause.ATTENTION)
    dropout = [move("attention dropout", (2 * w + 1) * scores, sort="dropout")] * bool(model.dropout)
    there, back = (
        move(name, times * scores, kernels, sort="softmax")._replace(host_s=ordering(write))
        for name, times in (("softmax", softmax), ("softmax backward", softmax_back))
    )
    return (
        (multiply("scores", rows, s, d, layout="nt"), there, *dropout, multiply("values", rows, of_values, s)),
        (
            multiply("values' gradient", s, of_values, rows, layout="tn"),
            multiply("probabilities' gradient", rows, s, of_values, layout="nt"),
            *dropout,
            back,
            multiply("queries' gradient", rows, d, s),
            multiply("keys' gradient", s, d, rows, layout="tn"),
        ),
    )


def _heads_and_rows(write: Writer) -> tuple[Number, Number]:
    """Heads of all sequences of a micro-batch on this GPU, and rows of queries of each.

    On this GPU are some queries of every head, by which the whole sequence's keys and values come, or all of some.
    """
    cut = write.cut
    by_heads = cut.cp if write.stack.context_by_heads else 1
    heads = write.model.num_heads / (cut.tp * by_heads) * cut.microbatch_size
    return heads, cut.sequence_length * by_heads / (cut.cp * cut.slices)


def _core_width(write: Writer) -> float:
    """Bytes of a number of queries, keys and values as the attention core reads and keeps it."""
    eight_bits = write.stack.fp8_attention and write.stack.attention == "flash" and write.cut.format is not None
    return FORMATS["fp8"].nbytes if eight_bits else write.cut.width
