"""Parameters, exactly: per layer, per embedding, per model."""

from __future__ import annotations

from sim.specs import ModelSpec


def norm_params(model: ModelSpec) -> int:
    """One normalisation: a weight, and where there is one a bias, per hidden unit."""
    return model.hidden_size * (2 if model.norm_bias else 1)


def query_key_norm_params(model: ModelSpec) -> int:
    """Norms of queries and keys in one layer: weights only."""
    heads = {"none": 0, "head": 2, "all": model.num_heads + model.num_kv_heads}[model.query_key_norm]
    return heads * model.head_dim


def attention_params(model: ModelSpec) -> int:
    """Query, key, value and output projections of one layer, and norms of queries and keys."""
    query = model.num_heads * model.head_dim
    key_value = 2 * model.num_kv_heads * model.head_dim
    weights = model.hidden_size * (query + key_value) + query * model.hidden_size
    biases = (query + key_value) * model.qkv_bias + model.hidden_size * model.attention_output_bias
    return weights + biases + query_key_norm_params(model)


def mlp_params(model: ModelSpec) -> int:
    """The MLP of one layer: two matrices, three when gated."""
    inputs = 2 if model.gated_mlp else 1
    weights = (inputs + 1) * model.hidden_size * model.intermediate_size
    return weights + (inputs * model.intermediate_size + model.hidden_size) * model.mlp_bias


def layer_params(model: ModelSpec) -> int:
    """One transformer layer, its norms included."""
    return attention_params(model) + mlp_params(model) + model.norms_per_layer * norm_params(model)


def embedding_params(model: ModelSpec) -> int:
    """Token embedding and, where there are any, the position embedding and the norm after them."""
    positions = model.max_sequence_length if model.position == "learned" else 0
    return (model.vocab_size + positions) * model.hidden_size + norm_params(model) * model.embedding_norm


def head_params(model: ModelSpec) -> int:
    """The output projection where it has weights of its own, its bias, and the final norm."""
    weights = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    return weights + model.vocab_size * model.head_bias + norm_params(model)


def total_params(model: ModelSpec) -> int:
    """All parameters of the model, tied ones once.

    For a GPT this is 12 l h² (1 + 13/(12h) + (V + s)/(12 l h)) [1]_ plus the 2h of the final norm, which the
    formula leaves out.

    .. [1] Narayanan et al. 2021, arXiv:2104.04473, equation 2.
    """
    return model.num_layers * layer_params(model) + embedding_params(model) + head_params(model)
