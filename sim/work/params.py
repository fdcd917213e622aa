"""Parameters, exactly: per layer, per embedding, per model."""

from __future__ import annotations

from sim.specs import ModelSpec


def norm_params(model: ModelSpec) -> int:
    """One normalisation: a weight, and with LayerNorm a bias, per hidden unit."""
    return model.hidden_size * (2 if model.norm == "layernorm" else 1)


def attention_params(model: ModelSpec) -> int:
    """Query, key, value and output projections of one layer."""
    query = model.num_heads * model.head_dim
    key_value = 2 * model.num_kv_heads * model.head_dim
    weights = model.hidden_size * (query + key_value) + query * model.hidden_size
    return weights + (query + key_value if model.qkv_bias else 0) + (model.hidden_size if model.bias else 0)


def mlp_params(model: ModelSpec) -> int:
    """The MLP of one layer: two matrices, three when gated."""
    inputs = 2 if model.gated_mlp else 1
    weights = (inputs + 1) * model.hidden_size * model.intermediate_size
    return weights + (inputs * model.intermediate_size + model.hidden_size if model.bias else 0)


def layer_params(model: ModelSpec) -> int:
    """One transformer layer, both norms included."""
    return attention_params(model) + mlp_params(model) + 2 * norm_params(model)


def embedding_params(model: ModelSpec) -> int:
    """Token embedding and, where positions are learned, the position embedding."""
    positions = model.max_sequence_length if model.position == "learned" else 0
    return (model.vocab_size + positions) * model.hidden_size


def head_params(model: ModelSpec) -> int:
    """The output projection where it has weights of its own, and the final norm."""
    return (0 if model.tied_embeddings else model.vocab_size * model.hidden_size) + norm_params(model)


def total_params(model: ModelSpec) -> int:
    """All parameters of the model, tied ones once.

    For a GPT this is 12 l h² (1 + 13/(12h) + (V + s)/(12 l h)) [1]_ plus the 2h of the final norm, which the
    formula leaves out.

    .. [1] Narayanan et al. 2021, arXiv:2104.04473, equation 2.
    """
    return model.num_layers * layer_params(model) + embedding_params(model) + head_params(model)
