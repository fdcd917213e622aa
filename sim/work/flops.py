"""FLOPs of a step by the field's formulas, for MFU and HFU and for comparing with papers.

Three conventions are in use and give different numbers for the same run; `mfu` and `hfu` here count the whole
sequence × sequence attention, as Megatron-LM does.
"""

from __future__ import annotations

from sim.specs import ModelSpec, ParallelPlan, TrainingSpec


def layer_forward_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Forward matrix multiplies of one layer, attention not halved. [FLOP]"""
    tokens = batch * sequence
    query, key_value = model.num_heads * model.head_dim, 2 * model.num_kv_heads * model.head_dim
    projections = model.hidden_size * (2 * query + key_value)
    mlp = (3 if model.gated_mlp else 2) * model.hidden_size * model.intermediate_size
    return 2.0 * tokens * (projections + mlp) + attention_core_flop(model, batch, sequence)


def attention_core_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Scores and values of one layer, forward: 4 b s² times the width of the heads. [FLOP]"""
    return 4.0 * batch * sequence**2 * model.num_heads * model.head_dim


def logits_flop(model: ModelSpec, batch: float, sequence: float) -> float:
    """Forward output projection. [FLOP]"""
    return 2.0 * batch * sequence * model.hidden_size * model.vocab_size


def model_flop(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs of one step without recomputation: three times the forward (MFU's numerator).

    For a GPT: 72 B s l h² (1 + s/(6h) + V/(12 l h)).
    """
    batch, sequence = training.global_batch_size, training.sequence_length
    forward = model.num_layers * layer_forward_flop(model, batch, sequence) + logits_flop(model, batch, sequence)
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
    again = {
        "none": 0.0,
        "selective": attention_core_flop(model, batch, sequence),
        "per_op": 0.5 * (layer_forward_flop(model, batch, sequence) - attention_core_flop(model, batch, sequence)),
        "full": layer_forward_flop(model, batch, sequence),
    }[plan.recompute]
    return model_flop(model, training) + model.num_layers * again
