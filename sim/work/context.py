"""What cutting sequences over context-parallel GPUs adds to attention: exchanges, steps of a ring, order of pieces."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec
from sim.work.operations import Cause, Collective, Kernel, memory
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
