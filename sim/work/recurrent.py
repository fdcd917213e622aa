"""The block of a layer that carries a state along the sequence instead of attending: Mamba-2, gated delta rules.

A projection gives every token its queries, keys, values (mamba2: C, B, x), gates and steps; a short convolution mixes
neighbours; the state is carried chunk by chunk [1]_ [2]_: inside a chunk as masked products of matrices, between chunks
through the states at their ends; the output is normed, gated and projected back. Heads are cut by tensor parallelism.
Context parallelism exchanges the sequence's cut for one of heads before the convolution, and back behind the state
(Megatron-LM: megatron/core/ssm/mamba_context_parallel.py).

.. [1] Dao and Gu 2024, "Transformers are SSMs", arXiv:2405.21060, section 6.
.. [2] Yang et al. 2024, "Gated delta networks", arXiv:2412.06464, section 3.3.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec, StackSpec
from sim.work.operations import BlockWork, Cause, Collective, Operation, Phase, matmul, memory
from sim.work.params import recurrent_widths
from sim.work.pieces import Cut, gather_in, linear, norms_of_block, reduce_out, residual

CHUNK = {"mamba2": 128, "gated_delta_net": 64, "kimi_delta_attention": 64}
"""Tokens of a chunk (Megatron-Core's mamba_chunk_size; flash-linear-attention's chunk kernels)."""
STATE_WIDTH = 4
"""Bytes of a number of a state at a chunk's end: kept in fp32."""


def recurrent_work(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> BlockWork:
    """Norm, projection in, convolution, the state, gated norm, projection out, residual."""
    h, w, tokens, wide = model.hidden_size, cut.width, cut.tokens, recurrent_widths(model, kind)
    values, mixed, columns = (each / cut.tp for each in (wide.values, wide.mixed, wide.mixed + wide.gates))
    norm_f, norm_b = norms_of_block(model, stack, cut, "mamba")
    res_f, res_b = residual(model, stack, cut, False, "mamba")
    multiplies = [linear(f"{kind.mixer} in", tokens, columns, h, stack, w, module="mamba")]
    if wide.narrow:
        multiplies += [
            linear("gates' narrow projection", cut.norm_tokens, wide.narrow, h, stack, w, module="mamba"),
            *(linear("gates", tokens, values, wide.narrow / 2, stack, w, module="mamba") for _ in range(2)),
        ]
    out_f, out_i, out_w = linear(f"{kind.mixer} out", tokens, h, values, stack, w, module="mamba")
    conv_f, conv_b = (
        memory("convolution", 2 * w * tokens * mixed, module="mamba"),
        memory("convolution backward", 4 * w * tokens * mixed, 2, module="mamba"),
    )
    core = recurrent_core(model, cut, kind)
    # The gated norm reads the state's output and the gate, writes one; backward reads both and a gradient, writes two.
    gated_f = memory("gated norm", 3 * w * tokens * values, 1, sort="norm", module="mamba")
    gated_b = memory("gated norm backward", 5 * w * tokens * values, 2, sort="norm", module="mamba")
    gather_f, gather_b = gather_in(cut, h, stack, "mamba")
    reduce_f, reduce_b = reduce_out(cut, h, "mamba")
    heads_f, heads_b = _cut_by_heads(w * tokens * columns, w * tokens * values, cut)
    return BlockWork(
        forward=Phase((norm_f, *(each[0] for each in multiplies), conv_f), gather_f + heads_f)
        + core.forward
        + Phase((gated_f, out_f, res_f), reduce_f),
        input_grad=Phase((res_b, out_i, gated_b), reduce_b)
        + core.input_grad
        + Phase((conv_b, *(each[1] for each in reversed(multiplies)), norm_b), heads_b + gather_b),
        weight_grad=Phase((out_w, *(each[2] for each in reversed(multiplies)))),
    )


def recurrent_core(model: ModelSpec, cut: Cut, kind: LayerKind) -> BlockWork:
    """The state, carried chunk by chunk: what selective recomputation runs again."""
    heads, groups = model.linear_num_heads / cut.tp, model.linear_num_key_heads / cut.tp
    columns, state, chunk = model.linear_head_dim, model.linear_key_head_dim, CHUNK[kind.mixer]
    w, chunks = cut.width, cut.tokens / chunk

    def product(name: str, m: int, n: int, k: int, count: Number) -> Operation:
        return matmul(name, m, n, k, w, batch=count * chunks, cause=Cause.ATTENTION, module="mamba")

    scores = product("chunk scores", chunk, chunk, state, groups)
    mixed = product("chunk values", chunk, columns, chunk, heads)
    build = product("chunk states", state, columns, chunk, heads)
    read = product("state read", chunk, columns, state, heads)
    multiplies = [scores, mixed, build, read]
    if kind.mixer != "mamba2":
        # Keys' products with each other, the triangular system they give, and both solved for keys and values; what
        # the state holds of the values is taken from them before they are added.
        multiplies += [
            product("keys with keys", chunk, chunk, state, heads),
            product("system solved for keys", chunk, state, chunk, heads),
            product("system solved for values", chunk, columns, chunk, heads),
            product("state taken from values", chunk, columns, state, heads),
        ]
    # States at the ends of chunks: written, carried along, and read.
    states = STATE_WIDTH * heads * chunks * columns * state
    carry = memory("states carried", 3 * states, 2, Cause.ATTENTION, module="mamba")
    credited = (7.0 if kind.mixer == "mamba2" else 6.0) * cut.tokens * heads * columns * state
    executed = sum(each.flop for each in multiplies)
    forward = Phase((*(_credited(each, each.flop / executed * credited) for each in multiplies), carry))
    # States and scores are computed again, then two gradients of every product.
    again = [_credited(each, 0.0) for each in multiplies if each is not mixed and each is not read]
    twice = [_credited(each, each.flop / executed * credited) for each in multiplies for _ in range(2)]
    backward = Phase((*again, *twice, memory("states carried back", 5 * states, 4, Cause.ATTENTION, module="mamba")))
    return BlockWork(forward, backward, Phase())


def _credited(operation: Operation, flop: Number) -> Operation:
    return Operation(
        operation.name, operation.cause, operation.kind, operation.flop, operation.nbytes, operation.m, operation.n,
        operation.k, operation.batch, credited_flop=flop, module="mamba",
    )  # fmt: skip


def _cut_by_heads(before: Number, after: Number, cut: Cut) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """All-to-alls that give every context-parallel GPU whole sequences of its heads, and pieces of all: both ways."""
    if np.max(cut.cp) == 1:
        return (), ()
    there = Collective("sequence to heads", "all_to_all", before, group="cp")
    back = Collective("heads to sequence", "all_to_all", after, group="cp")
    return (there, back), (back, there)


def recurrent_activation_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> Number:
    """What the block keeps for the backward beside its norm's input. [bytes]

    What comes out of the projection, before and after the convolution; the state's output, before and after its norm
    and gate. States at the ends of chunks are computed again.
    """
    w, wide, kept = cut.width, recurrent_widths(model, kind), cut.kept
    columns = w * (2 * wide.mixed + wide.gates + wide.values) + kept * wide.values + w * wide.narrow
    return cut.tokens * columns / cut.tp + kept * cut.norm_tokens * model.hidden_size
