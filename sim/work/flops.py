"""FLOPs of a step by the field's formulas, for MFU and HFU and for comparing with papers.

Three conventions are in use and give different numbers for the same run; `mfu` and `hfu` here count the whole
sequence × sequence attention, as Megatron-LM does.
"""

from __future__ import annotations

from sim.specs import LayerKind, ModelSpec, ParallelPlan, TrainingSpec
from sim.work.adapters import adapters_forward_flop, adapters_of
from sim.work.params import counted_kinds, expert_width, latent_head_params, recurrent_widths
from sim.work.recompute import read_recompute, recompute_word


def layer_forward_flop(
    model: ModelSpec, batch: float, sequence: float, kind: LayerKind | None = None, packed: int | None = None
) -> float:
    """Forward matrix multiplies of one layer, attention not halved, of experts those a token goes through. [FLOP]

    Parameters
    ----------
    kind : LayerKind, optional
        Of the model's `layer_kinds`. Default: the last layer's.
    packed : int, optional
        Length of the sequences that are packed into one.
    """
    kind = kind or model.layer_kinds[0]
    tokens, h = batch * sequence, model.hidden_size
    products = 3 if model.gated_mlp else 2
    mlp = products * h * model.intermediate_size if kind.mlp == "dense" else 0
    if kind.sparse:
        shared = products * h * model.shared_expert_intermediate_size
        experts = model.experts_per_token * products * expert_width(model) * model.expert_intermediate_size
        mlp = shared + experts + h * (model.num_experts + model.shared_expert_gate + 2 * model.expert_latent_size)
    return 2.0 * tokens * (_projections(model, kind) + mlp) + mixer_core_flop(model, batch, sequence, kind, packed)


def _projections(model: ModelSpec, kind: LayerKind) -> int:
    """Weights of the matrices around what mixes the tokens: every one once, as in `sim.work.params`."""
    h = model.hidden_size
    if kind.recurs:
        return recurrent_widths(model, kind).weights
    if not kind.attends:
        return 0
    if model.key_value_rank:
        return latent_head_params(model) + h * (model.query_rank + model.key_value_rank + model.rotary_head_dim)
    query, values = model.num_heads * model.head_dim, model.num_heads * model.value_head_dim
    gate = values * model.attention_gate
    return h * (query + gate + values + model.num_kv_heads * (model.head_dim + model.value_head_dim))


def layers_forward_flop(model: ModelSpec, batch: float, sequence: float, packed: int | None = None) -> float:
    """Forward matrix multiplies of all layers, those of multi-token prediction included. [FLOP]"""
    projection = 2.0 * batch * sequence * 2 * model.hidden_size**2
    layers = sum(
        count * layer_forward_flop(model, batch, sequence, kind, packed) for count, kind in counted_kinds(model)
    )
    return layers + model.num_mtp_layers * projection


def reach(model: ModelSpec, sequence: float, kind: LayerKind, packed: int | None = None) -> float:
    """Tokens that a token of a layer attends to at most, the mask of what comes after it left aside.

    packed : length of the sequences that are packed into one, if any are.
    """
    limit = {"sliding_attention": model.sliding_window, "chunked_attention": model.attention_chunk_size}
    return min(sequence, limit.get(kind.mixer, sequence), packed or sequence)


def attention_core_flop(
    model: ModelSpec, batch: float, sequence: float, kind: LayerKind | None = None, packed: int | None = None
) -> float:
    """Scores and values of one layer, forward: 2 b s² times the columns of all heads' queries and values. [FLOP]

    Of a layer that sees a window or a piece of w tokens 2 b s w: like the whole, not halved for the mask.
    """
    seen = reach(model, sequence, kind or model.layer_kinds[0], packed)
    return 2.0 * batch * sequence * seen * model.num_heads * (model.head_dim + model.value_head_dim)


def mixer_core_flop(
    model: ModelSpec, batch: float, sequence: float, kind: LayerKind, packed: int | None = None
) -> float:
    """What mixes the tokens of a layer, forward, as formulas credit it. [FLOP]

    A state of k × v numbers a head: 6 k v a token and head (decayed and read by the key, added to, read by the query);
    for mamba2 7, the count of Megatron-LM (megatron/training/training.py, mamba_layer_flops).
    """
    if kind.attends:
        return attention_core_flop(model, batch, sequence, kind, packed)
    if not kind.recurs:
        return 0.0
    numbers = model.linear_num_heads * model.linear_head_dim * model.linear_key_head_dim
    return (7.0 if kind.mixer == "mamba2" else 6.0) * batch * sequence * numbers


def causal_flop(model: ModelSpec, training: TrainingSpec) -> float:
    """As `model_flop` with half of the scores and values, as causal attention needs them. [FLOP]"""
    batch, sequence, packed = training.global_batch_size, training.sequence_length, training.packed_length
    cores = modules_flop(model, batch, sequence, packed)["core_attn"]
    return model_flop(model, training) - 1.5 * cores


def logits_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Forward output projection, once for every token that is predicted. [FLOP]"""
    return 2.0 * batch * sequence * model.hidden_size * model.vocab_size * (1 + model.num_mtp_layers)


def model_flop(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs of one step without recomputation: three times the forward (MFU's numerator).

    For a GPT: 72 B s l h² (1 + s/(6h) + V/(12 l h)). Frozen weights have no gradients: twice the forward, but for what
    mixes the tokens, and adapters' three times.
    """
    batch, sequence, packed = training.global_batch_size, training.sequence_length, training.packed_length
    forward = layers_forward_flop(model, batch, sequence, packed) + logits_flop(model, batch, sequence)
    adapters = adapters_of(training)
    if adapters is None:
        return 3.0 * forward
    core = sum(count * mixer_core_flop(model, batch, sequence, kind, packed) for count, kind in counted_kinds(model))
    return 2.0 * forward + core + 3.0 * adapters_forward_flop(model, adapters, batch * sequence)


def hardware_flop(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> float:
    """FLOPs of one step with what recomputation runs again (HFU's numerator).

    For a GPT under full recomputation: 96 B s l h² (1 + s/(6h) + V/(16 l h)) [1]_. Selective recomputation runs the
    attention core's forward once more: 72 B s l h² (1 + 2s/(9h) + V/(12 l h)). The HFU printed in [2]_ follows from
    s/(3h) there, which counts the recomputed core three times; ours counts it once.

    .. [1] Narayanan et al. 2021, arXiv:2104.04473, equation 3.
    .. [2] Korthikanti et al. 2022, arXiv:2205.05198, appendix A.
    """
    batch, sequence = training.global_batch_size, training.sequence_length
    packed = training.packed_length
    core = modules_flop(model, batch, sequence, packed)["core_attn"]
    forward = layers_forward_flop(model, batch, sequence, packed)
    said = read_recompute(recompute_word(plan, model))
    if said.mode == "selective":
        names = said.names - {"shared_experts"} if "moe" in said.names else said.names  # they are a part of it
        again = sum(modules_flop(model, batch, sequence, packed)[name] for name in names)
    else:
        again = {"none": 0.0, "per_op": 0.5 * (forward - core), "full": said.share * forward}[said.mode]
    return model_flop(model, training) + again


def modules_flop(model: ModelSpec, batch: float, sequence: float, packed: int | None = None) -> dict[str, float]:
    """Forward matrix multiplies of all layers by module that may be recomputed, attention not halved. [FLOP]"""
    tokens, h, products = batch * sequence, model.hidden_size, 3 if model.gated_mlp else 2
    kinds = counted_kinds(model)
    with_experts = sum(count for count, kind in kinds if kind.sparse)
    dense = sum(count for count, kind in kinds if kind.mlp == "dense")
    attending = sum(count for count, kind in kinds if kind.attends)
    shared = model.shared_expert_intermediate_size
    up = 0
    if model.key_value_rank:
        up = latent_head_params(model) - model.num_heads * model.value_head_dim * h
    of_shared = h * (products * shared + model.shared_expert_gate)
    experts = products * model.experts_per_token * model.expert_intermediate_size * expert_width(model)
    routed = experts + h * (model.num_experts + 2 * model.expert_latent_size)
    cores = sum(
        count * attention_core_flop(model, batch, sequence, kind, packed) for count, kind in kinds if kind.attends
    )
    return {
        "core_attn": cores,
        "layernorm": 0.0,
        "mla_up_proj": 2.0 * tokens * attending * up,
        "mlp": 2.0 * tokens * dense * h * products * model.intermediate_size,
        "moe": 2.0 * tokens * with_experts * (routed + of_shared),
        "moe_act": 0.0,
        "shared_experts": 2.0 * tokens * with_experts * of_shared,
    }
