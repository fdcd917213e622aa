"""Bytes on one GPU: weights, gradients, optimizer state, activations by recompute mode, logits, allowances."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec, StackSpec
from sim.work.adapters import spared_bytes
from sim.work.experts import experts_activations, routed
from sim.work.pieces import Cut, key_value_width
from sim.work.recompute import Recompute, mixture, read_recompute
from sim.work.recurrent import recurrent_activation_bytes
from sim.work.stages import ModelPart


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Peak memory of one GPU of a pipeline rank, by purpose; floats, or arrays over plans. [bytes]"""

    weights: Number
    gradients: Number
    optimizer: Number
    activations: Number
    """Kept for the backward, micro-batches in flight times layers."""
    logits: Number
    working: Number
    """Alive for a moment: the layer being recomputed, gathered weights, the optimizer's temporaries."""
    buffers: Number
    """Pipeline receive buffers."""
    framework: Number
    """Allowance for the CUDA context, workspaces and NCCL, from the stack."""
    fragmentation: Number
    """Allowance for the allocator's losses, from the stack."""

    @property
    def total(self) -> Number:
        """All of it. [bytes]"""
        return sum(getattr(self, field.name) for field in fields(self))

    def to_dict(self) -> dict[str, float]:
        """By purpose, with the total."""
        return {
            **{field.name: float(getattr(self, field.name)) for field in fields(self)},
            "total": float(self.total),
        }


def by_rank(use: MemoryUse, num_ranks: int) -> tuple[MemoryUse, ...]:
    """Memory of ranks, whose numbers are arrays over them, one by one."""
    columns = [np.broadcast_to(getattr(use, field.name), num_ranks).tolist() for field in fields(use)]
    return tuple(MemoryUse(*numbers) for numbers in zip(*columns, strict=True))


def layer_activation_bytes(
    model: ModelSpec, stack: StackSpec, cut: Cut, recompute: str | None = None, kind: LayerKind | None = None
) -> Number:
    """Activations one layer keeps for the backward of one micro-batch. [bytes]

    For a GPT in 16 bits with math attention these are Korthikanti's s b h (34 + 5 a s / h), (10 + 24/t + 5 a s/(h t)),
    (34/t) and 2 s b h [1]_.

    Parameters
    ----------
    recompute : str, optional
        Instead of the cut's own: a word of `sim.work.recompute`. Of layers that are treated differently, the mean.
    kind : LayerKind, optional
        Of the model's `layer_kinds`. Default: the last layer's.

    .. [1] Korthikanti et al. 2022, arXiv:2205.05198, table 2.
    """
    kind, word = kind or model.layer_kinds[0], recompute or cut.recompute
    said = read_recompute(word)
    if said.share < 1.0:
        return sum(share * layer_activation_bytes(model, stack, cut, each, kind) for each, share in mixture(word))
    if said.mode == "full":
        return said.kept * _rows_bytes(model, cut)
    whole = kind.attends and kind.mlp != "none"
    if said.mode == "per_op" and whole:
        return _per_op_bytes(model, stack, cut, kind)
    everything = _attention_layer_bytes(model, stack, cut, kind) if whole else _blocks_bytes(model, stack, cut, kind)
    if cut.adapters is not None:
        of_cut = (cut.tokens, cut.norm_tokens, cut.tp)
        everything = everything - spared_bytes(model, cut.adapters, kind, *of_cut, cut.kept, cut.width)
    return everything - (_spared_bytes(model, stack, cut, said, kind) if said.mode == "selective" else 0.0)


def _per_op_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> Number:
    """The layer's input, the attention's output, and the outputs of every other multiply. [bytes]"""
    w, tokens, inputs = cut.width, cut.tokens, 2 if model.gated_mlp else 1
    query, context = (model.num_heads * columns / cut.tp for columns in (model.head_dim, model.value_head_dim))
    up = (
        routed(model, cut).copies * model.expert_intermediate_size
        if kind.sparse
        else tokens * model.intermediate_size / cut.tp
    )
    outputs = w * tokens * (context + query + key_value_width(model, cut.tp)) + w * inputs * up
    return _rows_bytes(model, cut) + outputs + attention_core_bytes(model, stack, cut)


def _blocks_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> Number:
    """Activations that a layer keeps of whose two blocks one is missing, or carries a state. [bytes]"""
    kept: Number = 0.0
    if kind.recurs:
        kept = _rows_bytes(model, cut) + recurrent_activation_bytes(model, stack, cut, kind)
    elif kind.attends:
        kept = _block_bytes(model, stack, cut, LayerKind(kind.mixer, "none"))
    if kind.mlp != "none":
        kept = kept + _block_bytes(model, stack, cut, LayerKind("none", kind.mlp))
    return kept


def _block_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> Number:
    """Activations that the attention block or the MLP block of a layer keeps. [bytes]"""
    w, h, tokens, own = cut.width, model.hidden_size, cut.tokens, cut.norm_tokens
    kept = cut.kept
    inputs = 2 if model.gated_mlp else 1
    around = own * h * (w + (0 if kind.sparse else kept) + (0 if stack.fused_norm else 8) + bool(model.dropout))
    if kind.sparse:
        return around + experts_activations(model, stack, cut).total
    if cut.sequence_parallel and not stack.regather_sequence:
        around = around + kept * (tokens - own) * h
    if kind.mlp == "dense":
        return around + tokens * model.intermediate_size / cut.tp * (w * inputs + kept)
    query, context = (model.num_heads * columns / cut.tp for columns in (model.head_dim, model.value_head_dim))
    key_value = key_value_width(model, cut.tp)
    norms = w * (query + key_value / 2) * (model.query_key_norm != "none")
    core = attention_core_bytes(model, stack, cut)
    latent = _latent_bytes(model, cut)
    return (
        around + tokens * (w * (query + key_value) + kept * context + norms + _gate_bytes(model, cut)) + core + latent
    )


def _latent_bytes(model: ModelSpec, cut: Cut) -> Number:
    """Of latent attention the latent vectors, before and after their norms. [bytes]"""
    if not model.key_value_rank:
        return 0.0
    latent = model.query_rank + model.key_value_rank
    return cut.norm_tokens * (cut.width * (latent + model.rotary_head_dim) + cut.kept * latent)


def _gate_bytes(model: ModelSpec, cut: Cut) -> Number:
    """Of a token what a gate of the attention's output keeps: the gate, and the output before it. [bytes]"""
    return 2 * cut.width * model.num_heads * model.value_head_dim / cut.tp * model.attention_gate


def _attention_layer_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> Number:
    """Activations that a layer of attention and an MLP or experts keeps. [bytes]"""
    w, h, tokens = cut.width, model.hidden_size, cut.tokens
    query, context = (model.num_heads * columns / cut.tp for columns in (model.head_dim, model.value_head_dim))
    key_value = key_value_width(model, cut.tp)
    experts, inputs = kind.sparse, 2 if model.gated_mlp else 1
    mask = 1 if model.dropout else 0
    # Inputs of the norms and of the two column-parallel linears (one, if both read the same), both residual dropouts'
    # masks; an unfused norm also keeps its input and its normalised input in fp32 (and would let go of the former in
    # 16 bits, but which layouts ran says that it stays).
    # Experts read copies of their norm's output, and count that themselves.
    count, linears = model.norms_per_layer, min(model.norms_per_layer, 2) - experts
    norms = 0 if stack.fused_norm else count * (4 + 4)
    # Linears that multiply 8-bit numbers keep their inputs in 8 bits.
    kept = cut.kept
    around = cut.norm_tokens * h * (count * w + linears * kept + norms + 2 * mask)
    if cut.sequence_parallel and not stack.regather_sequence:
        around += linears * kept * (tokens - cut.norm_tokens) * h
    # Query, key and value, rotated where positions are (a rotation's gradient needs its angles, not its input); the
    # context; the activation's input and output.
    products = inputs + 1 + (1 if model.gated_mlp and not stack.fused_bias_activation else 0)
    inner = 0.0 if experts else model.intermediate_size / cut.tp
    cut_by_tp = tokens * (w * (query + key_value + (products - 1) * inner) + kept * (context + inner))
    cut_by_tp = cut_by_tp + tokens * _gate_bytes(model, cut)
    around = around + _latent_bytes(model, cut)
    if experts:
        around = around + experts_activations(model, stack, cut).total
    if model.query_key_norm != "none":  # what they normalise, besides what comes out
        cut_by_tp = cut_by_tp + tokens * w * (query + key_value / 2)
    return around + cut_by_tp + attention_core_bytes(model, stack, cut)


def _spared_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, said: Recompute, kind: LayerKind) -> Number:
    """Of what one layer keeps, what recomputation of its modules spares. [bytes]

    A module that runs again keeps its input; one that throws its output away keeps all but that, and the norm's output
    which only the module reads goes with it where Transformer Engine runs it inside.
    """
    w, h, tokens, own = cut.width, model.hidden_size, cut.tokens, cut.norm_tokens
    kept, names = cut.kept, said.names
    # The norm's output, as the multiply after it keeps it; gathered and kept whole, it is not thrown away.
    whole = cut.sequence_parallel and not stack.regather_sequence
    inside = 0 if stack.fused_norm else 8 * own * h * model.norms_per_layer / 2
    norm = kept * own * h * (0 if whole else 1) + inside
    spared: Number = 0.0
    if "core_attn" in names and kind.attends:
        spared = spared + attention_core_bytes(model, stack, cut)
    if "mla_up_proj" in names and kind.attends:
        heads = model.num_heads / cut.tp
        spared = spared + w * tokens * (heads * model.head_dim + key_value_width(model, cut.tp))
    if "layernorm" in names and model.key_value_rank and kind.attends:
        spared = spared + norm
    if kind.sparse:
        parts = experts_activations(model, stack, cut)
        if "layernorm" in names:
            spared = spared + parts.norm + inside
        if "moe" in names:
            spared = spared + parts.scores + parts.copies + parts.activation + parts.shared
        elif names & {"moe_act", "shared_experts"}:
            spared = spared + parts.activation * ("moe_act" in names) + parts.shared * ("shared_experts" in names)
    elif "mlp" in names and kind.mlp == "dense":
        products = 2 if model.gated_mlp else 1
        unfused = 1 if model.gated_mlp and not stack.fused_bias_activation else 0
        inner = model.intermediate_size / cut.tp
        spared = spared + tokens * inner * (w * (products + unfused) + kept)
        if model.norms_per_layer > 1:  # one norm for both blocks is the attention's too
            spared = spared + kept * (tokens if whole else own) * h + inside
    return spared


def attention_core_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """What the attention core alone keeps: the probabilities and their dropout, or flash's row statistics. [bytes]

    Step by step the softmax is taken in fp32: its output is kept, and the cast to 16 bits that multiplies the values
    (NVIDIA/Megatron-LM:megatron/model/fused_softmax.py, forward_torch_softmax).
    """
    rows = model.num_heads / cut.tp * cut.tokens
    if stack.attention == "flash":
        return 4.0 * rows
    per_score = cut.width + (0 if stack.fused_softmax else 4) + ((1 + cut.width) if model.dropout else 0)
    return per_score * rows * cut.sequence_length


def attention_moment_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """What the backward of one attention core holds for a moment besides what was kept. [bytes]

    The gradients of the probabilities and of the scores; step by step also the first one's cast to fp32 and the fp32
    gradient of the scores, in place of the second.
    """
    if stack.attention == "flash":
        return 0.0
    per_score = 2 * cut.width if stack.fused_softmax else cut.width + 4 + 4
    return per_score * model.num_heads / cut.tp * cut.tokens * cut.sequence_length


def activation_bytes(
    part: ModelPart, model: ModelSpec, stack: StackSpec, cut: Cut, offloaded_layers: int = 0
) -> Number:
    """Activations that a part of the model keeps for one micro-batch, without logits. [bytes]

    Parameters
    ----------
    offloaded_layers : int
        Layers of the whole model that keep theirs in host memory; every stage has its share of them.
    """
    kept: Number = 0.0
    for count, kind in zip(part.layers, model.layer_kinds, strict=False):
        if np.any(count):
            kept = kept + count * layer_activation_bytes(model, stack, cut, kind=kind)
    if model.num_mtp_layers and np.any(part.mtps):
        # Inputs of the two norms and of the one behind the layer, and both normed, joined.
        kept = kept + part.mtps * (
            layer_activation_bytes(model, stack, cut, kind=model.mtp_kind) + 5 * _rows_bytes(model, cut)
        )
    kept = kept * (1.0 - offloaded_layers / model.num_layers)
    if model.dropout:
        kept = kept + part.embeddings * cut.norm_tokens * model.hidden_size
    # Inputs of the final norm and of the logits' matrix; of multi-token prediction those of the matrix.
    return kept + part.heads * (2 + model.num_mtp_layers) * _rows_bytes(model, cut)


def _rows_bytes(model: ModelSpec, cut: Cut) -> Number:
    """Hidden states of the tokens that one GPU norms. [bytes]"""
    return cut.width * cut.norm_tokens * model.hidden_size


def logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Logits of one micro-batch: 16-bit, and their fp32 probabilities unless the loss is fused. [bytes]

    A loss on gathered logits holds them whole: 16 bits, and in its backward the cast to fp32, log-probabilities, their
    gradient and the cast's gradient (4 bytes each); the 16-bit gradient takes the place of the second.
    """
    if stack.chunked_loss:
        return 0.0
    if not stack.vocab_parallel_loss:
        return held_logits_bytes(model, stack, cut) + 16 * cut.tokens * model.vocab_size
    # Every module of multi-token prediction has logits besides, kept until its loss's gradient.
    tokens = cut.tokens * (1 + model.num_mtp_layers)
    per_logit = cut.width + (0 if stack.fused_cross_entropy else 4)
    return per_logit * tokens * model.vocab_size / cut.tp


def held_logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Of the logits, what the training loop still holds while the layers' backward runs: the 16-bit ones. [bytes]"""
    if stack.chunked_loss:
        return 0.0
    own = cut.width / cut.tp
    gathered = cut.width * (np.asarray(cut.tp) > 1) * (not stack.vocab_parallel_loss)
    return cut.tokens * model.vocab_size * (own + gathered)


@dataclass(frozen=True, slots=True)
class CutMemory:
    """What of a GPU's memory follows from the cut alone, of one micro-batch; floats or arrays. [bytes]

    working : the largest thing alive for a moment besides what is kept.
    logits, held_logits : all of them, and those still held while the layers' backward runs.
    boundary : activations that one rank sends to the next.
    """

    working: Number
    logits: Number
    held_logits: Number
    boundary: Number


def cut_memory(model: ModelSpec, stack: StackSpec, cut: Cut, offloaded_layers: int = 0) -> CutMemory:
    """Sizes of a cut. Takes arrays in its numbers.

    Parameters
    ----------
    offloaded_layers : int
        As of `activation_bytes`.
    """
    return CutMemory(
        _working_bytes(model, stack, cut, offloaded_layers),
        logits_bytes(model, stack, cut),
        held_logits_bytes(model, stack, cut),
        cut.width * cut.norm_tokens * model.hidden_size,
    )


def _working_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, offloaded_layers: int) -> Number:
    """The largest thing alive for a moment besides what is kept."""
    if model.num_experts:
        to = routed(model, cut)
        widest = to.copies * max(model.expert_intermediate_size, model.hidden_size)
    else:
        widest = cut.tokens * np.maximum(model.intermediate_size / cut.tp, model.hidden_size)
    said = read_recompute(cut.recompute)
    again: Number = 0.0
    for kind in model.layer_kinds:
        whole = layer_activation_bytes(model, stack, cut, "none", kind)
        if said.mode == "full":  # a group of layers, whose inputs but the first one's are alive only then
            again = np.maximum(again, said.group * whole)
        elif said.mode != "none":
            again = np.maximum(again, whole - layer_activation_bytes(model, stack, cut, cut.recompute, kind))
    # The largest gradients of the backward: the activation's beside its input, or the attention core's.
    backward = 2 * cut.width * widest
    if offloaded_layers:  # one layer's activations on their way to the host or back
        again = again + layer_activation_bytes(model, stack, cut)
    attention = attention_moment_bytes(model, stack, cut)
    if stack.cuda_graph_scope:
        return again + backward + attention + graph_bytes(model, cut)
    return again + np.maximum(backward, attention)


def graph_bytes(model: ModelSpec, cut: Cut) -> Number:
    """What CUDA graphs of parts of a layer hold beside what they keep for the backward. [bytes]

    Graphs have a pool of their own, whose temporaries nothing outside can use (the gradients of queries, keys, values
    and context), and read and write at fixed places: a layer's input and output, and the gradients of both. All graphs
    share the pool and, as they follow each other, the places (NVIDIA/TransformerEngine:transformer_engine/pytorch/
    graph.py, _reuse_graph_input_output_buffers): those of one layer are counted. Assumed.
    """
    columns = model.num_heads * (model.head_dim + model.value_head_dim) / cut.tp + key_value_width(model, cut.tp)
    return cut.width * (cut.tokens * columns + 4 * cut.norm_tokens * model.hidden_size)
