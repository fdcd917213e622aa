"""FLOPs of a step by the field's formulas, for MFU and HFU and for comparing with papers.

Three conventions are in use and give different numbers for the same run; `mfu` and `hfu` here count the whole
sequence × sequence attention, as Megatron-LM does.
"""

from __future__ import annotations

from sim.specs import ModelSpec, ParallelPlan, TrainingSpec
from sim.work.params import latent_head_params
from sim.work.recompute import read_recompute, recompute_word


def layer_forward_flop(model: ModelSpec, batch: float, sequence: float, dense: bool = False) -> float:
    """Forward matrix multiplies of one layer, attention not halved, of experts those a token goes through. [FLOP]

    Parameters
    ----------
    dense : bool
        One of the first layers of a mixture of experts, which have none.
    """
    tokens, h = batch * sequence, model.hidden_size
    if model.key_value_rank:  # every matrix once, as in sim.work.params
        projections = latent_head_params(model) + h * (model.query_rank + model.key_value_rank + model.rotary_head_dim)
    else:
        query, values = model.num_heads * model.head_dim, model.num_heads * model.value_head_dim
        projections = h * (query + values + model.num_kv_heads * (model.head_dim + model.value_head_dim))
    width = model.intermediate_size
    router = 0
    if model.num_experts and not dense:
        width = model.experts_per_token * model.expert_intermediate_size + model.shared_expert_intermediate_size
        router = h * (model.num_experts + model.shared_expert_gate)
    mlp = (3 if model.gated_mlp else 2) * h * width + router
    return 2.0 * tokens * (projections + mlp) + attention_core_flop(model, batch, sequence)


def layers_forward_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Forward matrix multiplies of all layers. [FLOP]"""
    dense = model.num_dense_layers
    with_experts = layer_forward_flop(model, batch, sequence)
    return (model.num_layers - dense) * with_experts + dense * layer_forward_flop(model, batch, sequence, dense=True)


def attention_core_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Scores and values of one layer, forward: 2 b s² times the columns of all heads' queries and values. [FLOP]"""
    return 2.0 * batch * sequence**2 * model.num_heads * (model.head_dim + model.value_head_dim)


def logits_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Forward output projection. [FLOP]"""
    return 2.0 * batch * sequence * model.hidden_size * model.vocab_size


def model_flop(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs of one step without recomputation: three times the forward (MFU's numerator).

    For a GPT: 72 B s l h² (1 + s/(6h) + V/(12 l h)).
    """
    batch, sequence = training.global_batch_size, training.sequence_length
    forward = layers_forward_flop(model, batch, sequence) + logits_flop(model, batch, sequence)
    return 3.0 * forward


def hardware_flop(model: ModelSpec, training: TrainingSpec, plan: ParallelPlan) -> float:
    """FLOPs of one step with what recomputation runs again (HFU's numerator).

    For a GPT under full recomputation: 96 B s l h² (1 + s/(6h) + V/(16 l h)) [1]_. Selective recomputation runs the
    attention core's forward once more: 72 B s l h² (1 + 2s/(9h) + V/(12 l h)). The HFU printed in [2]_ follows from
    s/(3h) there, which counts the recomputed core three times; ours counts it once.

    .. [1] Narayanan et al. 2021, arXiv:2104.04473, equation 3.
    .. [2] Korthikanti et al. 2022, arXiv:2205.05198, appendix A.
    """
    batch, sequence = training.global_batch_size, training.sequence_length
    core = model.num_layers * attention_core_flop(model, batch, sequence)
    forward = layers_forward_flop(model, batch, sequence)
    said = read_recompute(recompute_word(plan, model))
    if said.mode == "selective":
        names = said.names - {"shared_experts"} if "moe" in said.names else said.names  # they are a part of it
        again = sum(modules_flop(model, batch, sequence)[name] for name in names)
    else:
        again = {"none": 0.0, "per_op": 0.5 * (forward - core), "full": said.share * forward}[said.mode]
    return model_flop(model, training) + again


def modules_flop(model: ModelSpec, batch: float, sequence: float) -> dict[str, float]:
    """Forward matrix multiplies of all layers by module that may be recomputed, attention not halved. [FLOP]"""
    tokens, h, products = batch * sequence, model.hidden_size, 3 if model.gated_mlp else 2
    with_experts = model.num_layers - model.num_dense_layers if model.num_experts else 0
    dense, shared = model.num_layers - with_experts, model.shared_expert_intermediate_size
    up = 0
    if model.key_value_rank:
        up = latent_head_params(model) - model.num_heads * model.value_head_dim * h
    of_shared = h * (products * shared + model.shared_expert_gate)
    routed = h * (products * model.experts_per_token * model.expert_intermediate_size + model.num_experts)
    return {
        "core_attn": model.num_layers * attention_core_flop(model, batch, sequence),
        "layernorm": 0.0,
        "mla_up_proj": 2.0 * tokens * model.num_layers * up,
        "mlp": 2.0 * tokens * dense * h * products * model.intermediate_size,
        "moe": 2.0 * tokens * with_experts * (routed + of_shared),
        "moe_act": 0.0,
        "shared_experts": 2.0 * tokens * with_experts * of_shared,
    }
