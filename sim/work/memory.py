"""Bytes on one GPU: weights, gradients, optimizer state, activations by recompute mode, logits, allowances."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec, StackSpec
from sim.work.experts import experts_activations, routed
from sim.work.pieces import Cut, key_value_width
from sim.work.recompute import Recompute, mixture, read_recompute
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
    model: ModelSpec, stack: StackSpec, cut: Cut, recompute: str | None = None, dense: bool = False
) -> Number:
    """Activations one layer keeps for the backward of one micro-batch. [bytes]

    For a GPT in 16 bits with math attention these are Korthikanti's s b h (34 + 5 a s / h), (10 + 24/t + 5 a s/(h t)),
    (34/t) and 2 s b h [1]_.

    Parameters
    ----------
    recompute : str, optional
        Instead of the cut's own: a word of `sim.work.recompute`. Of layers that are treated differently, the mean.
    dense : bool
        One of the first layers of a mixture of experts, which have none.

    .. [1] Korthikanti et al. 2022, arXiv:2205.05198, table 2.
    """
    w, h, tokens = cut.width, model.hidden_size, cut.tokens
    said = read_recompute(recompute or cut.recompute)
    mode = said.mode
    if said.share < 1.0:
        modes = mixture(recompute or cut.recompute)
        return sum(share * layer_activation_bytes(model, stack, cut, each, dense) for each, share in modes)
    if mode == "full":
        return said.kept * w * cut.norm_tokens * h
    query, context = (model.num_heads * columns / cut.tp for columns in (model.head_dim, model.value_head_dim))
    key_value = key_value_width(model, cut.tp)
    experts = bool(model.num_experts) and not dense
    inputs = 2 if model.gated_mlp else 1
    if mode == "per_op":  # the layer's input, the attention's output, and the outputs of every other multiply
        up = (
            routed(model, cut).copies * model.expert_intermediate_size
            if experts
            else tokens * model.intermediate_size / cut.tp
        )
        outputs = w * tokens * (context + query + key_value) + w * inputs * up
        return w * cut.norm_tokens * h + outputs + attention_core_bytes(model, stack, cut)
    mask = 1 if model.dropout else 0
    # Inputs of the norms and of the two column-parallel linears (one, if both read the same), both residual dropouts'
    # masks; an unfused norm also keeps its input and its normalised input in fp32 (and would let go of the former in
    # 16 bits, but which layouts ran says that it stays).
    # Experts read copies of their norm's output, and count that themselves.
    count, linears = model.norms_per_layer, min(model.norms_per_layer, 2) - experts
    norms = 0 if stack.fused_norm else count * (4 + 4)
    # Linears that multiply 8-bit numbers keep their inputs in 8 bits.
    kept = 1 if cut.fp8 else w
    around = cut.norm_tokens * h * (count * w + linears * kept + norms + 2 * mask)
    if cut.sequence_parallel and not stack.regather_sequence:
        around += linears * kept * (tokens - cut.norm_tokens) * h
    # Query, key and value, rotated where positions are (a rotation's gradient needs its angles, not its input); the
    # context; the activation's input and output.
    products = inputs + 1 + (1 if model.gated_mlp and not stack.fused_bias_activation else 0)
    inner = 0.0 if experts else model.intermediate_size / cut.tp
    cut_by_tp = tokens * (w * (query + key_value + (products - 1) * inner) + kept * (context + inner))
    if model.key_value_rank:  # the latent vectors, before and after their norms
        latent = model.query_rank + model.key_value_rank
        around = around + cut.norm_tokens * (w * (latent + model.rotary_head_dim) + kept * latent)
    if experts:
        around = around + experts_activations(model, stack, cut).total
    if model.query_key_norm != "none":  # what they normalise, besides what comes out
        cut_by_tp = cut_by_tp + tokens * w * (query + key_value / 2)
    everything = around + cut_by_tp + attention_core_bytes(model, stack, cut)
    return everything - (_spared_bytes(model, stack, cut, said, experts) if mode == "selective" else 0.0)


def _spared_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, said: Recompute, experts: bool) -> Number:
    """Of what one layer keeps, what recomputation of its modules spares. [bytes]

    A module that runs again keeps its input; one that throws its output away keeps all but that, and the norm's output
    which only the module reads goes with it where Transformer Engine runs it inside.
    """
    w, h, tokens, own = cut.width, model.hidden_size, cut.tokens, cut.norm_tokens
    kept, names = 1 if cut.fp8 else w, said.names
    # The norm's output, as the multiply after it keeps it; gathered and kept whole, it is not thrown away.
    whole = cut.sequence_parallel and not stack.regather_sequence
    inside = 0 if stack.fused_norm else 8 * own * h * model.norms_per_layer / 2
    norm = kept * own * h * (0 if whole else 1) + inside
    spared: Number = 0.0
    if "core_attn" in names:
        spared = spared + attention_core_bytes(model, stack, cut)
    if "mla_up_proj" in names:
        heads = model.num_heads / cut.tp
        spared = spared + w * tokens * (heads * model.head_dim + key_value_width(model, cut.tp))
    if "layernorm" in names and model.key_value_rank:
        spared = spared + norm
    if experts:
        parts = experts_activations(model, stack, cut)
        if "layernorm" in names:
            spared = spared + parts.norm + inside
        if "moe" in names:
            spared = spared + parts.scores + parts.copies + parts.activation + parts.shared
        elif names & {"moe_act", "shared_experts"}:
            spared = spared + parts.activation * ("moe_act" in names) + parts.shared * ("shared_experts" in names)
    elif "mlp" in names:
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
    if np.any(part.num_layers):
        kept = (part.num_layers - part.num_dense_layers) * layer_activation_bytes(model, stack, cut)
    if np.any(part.num_dense_layers):
        kept = kept + part.num_dense_layers * layer_activation_bytes(model, stack, cut, dense=True)
    kept = kept * (1.0 - offloaded_layers / model.num_layers)
    if model.dropout:
        kept = kept + part.embeddings * cut.norm_tokens * model.hidden_size
    # Inputs of the final norm and of the logits' matrix.
    return kept + part.heads * (2 * cut.width * cut.norm_tokens * model.hidden_size)


def logits_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """Logits of one micro-batch: 16-bit, and their fp32 probabilities unless the loss is fused. [bytes]

    A loss on gathered logits holds them whole: 16 bits, and in its backward the cast to fp32, log-probabilities, their
    gradient and the cast's gradient (4 bytes each); the 16-bit gradient takes the place of the second.
    """
    if stack.chunked_loss:
        return 0.0
    if not stack.vocab_parallel_loss:
        return held_logits_bytes(model, stack, cut) + 16 * cut.tokens * model.vocab_size
    per_logit = cut.width + (0 if stack.fused_cross_entropy else 4)
    return per_logit * cut.tokens * model.vocab_size / cut.tp


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
    everything = layer_activation_bytes(model, stack, cut, "none")
    if model.num_experts:
        to = routed(model, cut)
        widest = to.copies * max(model.expert_intermediate_size, model.hidden_size)
    else:
        widest = cut.tokens * np.maximum(model.intermediate_size / cut.tp, model.hidden_size)
    said = read_recompute(cut.recompute)
    if said.mode == "full":  # a group of layers, whose inputs but the first one's are alive only then
        again = said.group * everything
    elif said.mode == "selective":
        again = _spared_bytes(model, stack, cut, said, bool(model.num_experts))
    else:
        again = everything - layer_activation_bytes(model, stack, cut, cut.recompute)
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
