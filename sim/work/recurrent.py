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
from sim.specs import LayerKind
from sim.work.operations import Cause, Collective, Kernel, Tensor, Weight, memory
from sim.work.pieces import Writer

MODULE = "mamba"
"""The module of all its operations, by Megatron-Core's name."""

CHUNK = {"mamba2": 128, "gated_delta_net": 64, "kimi_delta_attention": 64}
"""Tokens of a chunk (Megatron-Core's mamba_chunk_size; flash-linear-attention's chunk kernels)."""
LAUNCHES = {"mamba2": (12, 55), "gated_delta_net": (36, 69), "kimi_delta_attention": (29, 55)}
"""Launches in whose time the host runs the kernels of a forward and of a backward.

However short a sequence is, they take 0.5 and 2.2 ms in mamba-ssm 2.3.2, and 1.4 ms, and 1.2 and 2.2 ms, in
flash-linear-attention 0.6 (calibration/data/h100.jsonl): at 40 us a launch as many as stand here. The backward of gated
delta nets is taken to be to its forward as Kimi's is, since that kernel is wrong under the Triton that ran."""
NORM_PASSES = {"mamba2": 11}
"""Times that the backward of the gated norm takes to move its tensor: mamba-ssm's sums up its weight's gradient on few
multiprocessors: 551 us for 8,192 x 8,192 on an H100, timed once and not among the data that ship. Others move five
tensors."""


def recurrent(write: Writer, y: Tensor, kind: LayerKind) -> Tensor:
    """Projection in, convolution, the state, gated norm, projection out."""
    model, cut, h = write.model, write.cut, write.model.hidden_size
    wide, heads = model.recurrent_widths(kind), model.linear_num_heads / cut.tp
    mamba = kind.mixer == "mamba2"
    mixed, gates = write.tensor("mixed", wide.mixed / cut.tp), write.tensor("gates", wide.gates / cut.tp)
    convolved, state = mixed.like("convolved"), mixed.like("state's output", wide.values / cut.tp)
    weight, name = Weight(mixed.columns + gates.columns, h), f"{kind.mixer} in"
    (whole,) = write.gather(MODULE, y, linear=name)
    write.linear(name, MODULE, whole, [mixed, gates], [weight], cut_by="columns", own=y, exchanged=True)
    steps = [gates, *_gates_of_two_projections(write, y, state, wide.narrow / 2)]
    write.add(
        "convolution", MODULE, reads=(mixed,), writes=(convolved,), kept=(mixed,),
        weights=(Weight(mixed.columns * (model.linear_conv_kernel + mamba)),),
        forward=(memory("convolution", 2 * mixed.nbytes),),
        input_grad=(memory("convolution backward", 4 * mixed.nbytes, 2),),
    )  # fmt: skip
    # Context parallelism exchanges what comes out of the projections.
    there = Collective("sequence to heads", "all_to_all", mixed.nbytes + gates.nbytes, group="cp")
    back = Collective("heads to sequence", "all_to_all", state.nbytes, group="cp")
    sent = (there, back) if np.max(cut.cp) > 1 else ()
    own = {"mamba2": 3 * heads, "gated_delta_net": 2 * heads}.get(kind.mixer, heads + state.columns)
    forward, backward = recurrent_core(
        kind.mixer, cut.tokens, heads, model.linear_num_key_heads / cut.tp, model.linear_head_dim,
        model.linear_key_head_dim, cut.width,
    )  # fmt: skip
    # States at the ends of chunks are computed again.
    write.add(
        "state", MODULE, reads=(convolved, *steps), writes=(state,), kept=(convolved, *steps), weights=(Weight(own),),
        forward=(forward,), input_grad=(backward,), sent=sent, sent_back=sent[::-1],
    )  # fmt: skip
    # The gated norm reads the state's output and the gate, writes one; backward reads both and a gradient, writes two.
    normed = state.like("state's output normed")
    write.add(
        "gated norm", MODULE, reads=(state,), writes=(normed,), kept=(state,),
        weights=(Weight(state.columns if mamba else model.linear_head_dim),),
        forward=(memory("gated norm", 3 * state.nbytes, 1, sort="norm"),),
        input_grad=(memory("gated norm backward", NORM_PASSES.get(kind.mixer, 5) * state.nbytes, 2, sort="norm"),),
    )  # fmt: skip
    out, name = write.tensor("recurrent output", h), f"{kind.mixer} out"
    write.linear(name, MODULE, normed, [out], [Weight(h, normed.columns)], cut_by="rows", exchanged=True)
    return write.reduce(MODULE, out, linear=name)


def _gates_of_two_projections(write: Writer, y: Tensor, state: Tensor, columns: Number) -> list[Tensor]:
    """Decays and output gates that a narrow projection of so many columns each and a wide one give; none if 0."""
    if not columns:
        return []
    narrow = [y.like(f"{name}, narrow", columns) for name in ("decays", "output gates")]
    write.linear("gates' narrow projection", MODULE, y, narrow, [Weight(columns, write.model.hidden_size, 2)])
    found = []
    for each in narrow:
        up, gathered = state.like(f"{each.name}, wide"), each.like(f"{each.name} gathered", rows=write.cut.tokens)
        write.linear("gates", MODULE, gathered, [up], [Weight(up.columns, each.columns)], own=each)
        found.append(up)
    return found


def recurrent_core(
    mixer: str, tokens: Number, heads: Number, key_heads: Number, columns: Number, state: Number, width: Number
) -> tuple[Kernel, Kernel]:
    """Return the kernels that carry a state of `heads` times `columns` by `state` numbers: forward, backward.

    Both are bound by neither matrix units nor memory, but reach a measured share of peak
    (`sim.costs.compute.STATE_SHARE`).
    """
    chunk = CHUNK[mixer]
    # Multiplies of a token: for scores in its chunk and what it adds to the state; for values and what it reads of it.
    again = key_heads * chunk * state + heads * columns * state
    once = again + heads * columns * (chunk + state)
    if mixer != "mamba2":
        # Keys' products with each other, the triangular system they give, and both solved for keys and values; what
        # the state holds of the values is taken from them before they are added.
        delta = heads * (2 * chunk * state + chunk * columns + columns * state)
        again, once = again + delta, once + delta
    credited = (7.0 if mixer == "mamba2" else 6.0) * tokens * heads * columns * state
    moved = width * tokens * 2 * (heads * columns + key_heads * state)
    forward = Kernel(
        "state carried", Cause.ATTENTION, "state", flop=2.0 * tokens * once, nbytes=moved,
        sort=mixer, kernels=LAUNCHES[mixer][0], credited_flop=credited,
    )  # fmt: skip
    # States and scores are computed again, then two gradients of every product.
    backward = forward._replace(
        name="state carried back", flop=2.0 * tokens * (again + 2 * once), nbytes=2 * moved, backward=True,
        kernels=LAUNCHES[mixer][1], credited_flop=2 * credited,
    )  # fmt: skip
    return forward, backward
