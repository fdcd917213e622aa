"""What layers keep for the backward of one micro-batch, by what is recomputed, and what attention holds meanwhile."""

from __future__ import annotations

from sim.arrays import Number
from sim.specs import LayerKind, ModelSpec, StackSpec
from sim.work.adapters import spared_bytes
from sim.work.attention import core_width
from sim.work.experts import experts_activations, routed
from sim.work.pieces import WRITTEN_OUT, Cut, key_value_width
from sim.work.recompute import Recompute, mixture, read_recompute
from sim.work.recurrent import recurrent_activation_bytes


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
        return said.kept * rows_bytes(model, cut)
    whole = kind.attends and kind.mlp != "none"
    if said.mode == "per_op" and whole:
        return _per_op_bytes(model, stack, cut, kind)
    everything = _attention_layer_bytes(model, stack, cut, kind) if whole else _blocks_bytes(model, stack, cut, kind)
    if cut.adapters is not None:
        of_cut = (cut.tokens, cut.norm_tokens, cut.tp, cut.etp)
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
    return rows_bytes(model, cut) + outputs + attention_core_bytes(model, stack, cut)


def _blocks_bytes(model: ModelSpec, stack: StackSpec, cut: Cut, kind: LayerKind) -> Number:
    """Activations that a layer keeps of whose two blocks one is missing, or carries a state. [bytes]"""
    kept: Number = 0.0
    if kind.recurs:
        kept = rows_bytes(model, cut) + recurrent_activation_bytes(model, stack, cut, kind)
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
        around
        + tokens * (core_width(stack, cut) * (query + key_value) + kept * context + norms + _gate_bytes(model, cut))
        + core
        + latent
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
    if not (experts or model.gated_mlp or stack.fused_activation):
        products += WRITTEN_OUT.kept
    inner = 0.0 if experts else model.intermediate_size / cut.tp
    cut_by_tp = tokens * (core_width(stack, cut) * (query + key_value) + w * (products - 1) * inner)
    cut_by_tp = cut_by_tp + tokens * kept * (context + inner)
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
        columns = heads * model.head_dim + key_value_width(model, cut.tp)
        spared = spared + core_width(stack, cut) * tokens * columns
    if "layernorm" in names and model.key_value_rank and kind.attends:
        spared = spared + norm
    if kind.sparse:
        parts = experts_activations(model, stack, cut)
        if "layernorm" in names:
            spared = spared + parts.norm + inside
        if "moe" in names:
            spared = spared + parts.scores + parts.copies + parts.activation + parts.shared
        elif names & {"moe_act", "shared_experts"}:
            alone = "moe_act" in names and not stack.fused_experts
            spared = spared + parts.activation * alone + parts.shared * ("shared_experts" in names)
    elif "mlp" in names and kind.mlp == "dense":
        products = 2 if model.gated_mlp else 1
        unfused = 1 if model.gated_mlp and not stack.fused_bias_activation else 0
        unfused += 0 if model.gated_mlp or stack.fused_activation else WRITTEN_OUT.kept
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
    cast = 0 if stack.fused_softmax or cut.width == 4 else 4  # in fp32 there is none
    per_score = cut.width + cast + ((1 + cut.width) if model.dropout else 0)
    return per_score * rows * cut.sequence_length


def attention_moment_bytes(model: ModelSpec, stack: StackSpec, cut: Cut) -> Number:
    """What the backward of one attention core holds for a moment besides what was kept. [bytes]

    The gradients of the probabilities and of the scores; step by step also the first one's cast to fp32 and the fp32
    gradient of the scores, in place of the second.
    """
    if stack.attention == "flash":
        return 0.0
    per_score = 2 * cut.width if stack.fused_softmax or cut.width == 4 else cut.width + 4 + 4
    return per_score * model.num_heads / cut.tp * cut.tokens * cut.sequence_length


def rows_bytes(model: ModelSpec, cut: Cut) -> Number:
    """Hidden states of the tokens that one GPU norms. [bytes]"""
    return cut.width * cut.norm_tokens * model.hidden_size
