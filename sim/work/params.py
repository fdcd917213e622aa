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
    """Query, key, value and output projections of one layer, norms of queries and keys, and sinks."""
    sinks = model.num_heads * model.attention_sinks
    if model.key_value_rank:
        return latent_projection_params(model) + latent_head_params(model) + sinks
    query, context = model.num_heads * model.head_dim, model.num_heads * model.value_head_dim
    key_value = model.num_kv_heads * (model.head_dim + model.value_head_dim)
    weights = model.hidden_size * (query + key_value) + context * model.hidden_size
    biases = (query + key_value) * model.qkv_bias + model.hidden_size * model.attention_output_bias
    return weights + biases + query_key_norm_params(model) + sinks


def latent_projection_params(model: ModelSpec) -> int:
    """Of latent attention what is on every GPU: the projections down to the latent vectors, and their norms.

    DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C; it has no biases.
    """
    down = model.hidden_size * (model.query_rank + model.key_value_rank + model.rotary_head_dim)
    return down + model.query_rank + model.key_value_rank


def latent_head_params(model: ModelSpec) -> int:
    """Of latent attention what is cut by heads: the projections up to queries, keys and values, and the output's."""
    queries = (model.query_rank or model.hidden_size) * model.num_heads * model.head_dim
    keys = model.key_value_rank * model.num_heads * (model.head_dim - model.rotary_head_dim + model.value_head_dim)
    return queries + keys + model.num_heads * model.value_head_dim * model.hidden_size


def mlp_params(model: ModelSpec) -> int:
    """The MLP of one layer without experts: two matrices, three when gated."""
    return _mlp_of(model, model.intermediate_size)


def _mlp_of(model: ModelSpec, width: int) -> int:
    inputs = 2 if model.gated_mlp else 1
    weights = (inputs + 1) * model.hidden_size * width
    return weights + (inputs * width + model.hidden_size) * model.mlp_bias


def expert_params(model: ModelSpec) -> int:
    """All experts of one layer that a router picks from; 0 for a model without."""
    return model.num_experts * _mlp_of(model, model.expert_intermediate_size)


def router_params(model: ModelSpec) -> int:
    """The router of one layer, which has a bias where the experts have, and the gate of shared experts."""
    columns = model.num_experts + model.shared_expert_gate
    return model.hidden_size * columns + model.num_experts * model.mlp_bias


def shared_expert_params(model: ModelSpec) -> int:
    """Experts of one layer that every token goes through."""
    size = model.shared_expert_intermediate_size
    return _mlp_of(model, size) if size else 0


def layer_params(model: ModelSpec, dense: bool = False) -> int:
    """One transformer layer, its norms and experts included.

    Parameters
    ----------
    dense : bool
        One of the first layers of a mixture of experts, which have none.
    """
    mlp = mlp_params(model)
    if model.num_experts and not dense:
        mlp = expert_params(model) + router_params(model) + shared_expert_params(model)
    return attention_params(model) + mlp + model.norms_per_layer * norm_params(model)


def layers_params(model: ModelSpec) -> int:
    """All layers."""
    dense = model.num_dense_layers
    return (model.num_layers - dense) * layer_params(model) + dense * layer_params(model, dense=True)


def active_params(model: ModelSpec) -> int:
    """Parameters that a token meets: all but the experts it is not sent to."""
    idle = expert_params(model) // max(model.num_experts, 1) * (model.num_experts - model.experts_per_token)
    return total_params(model) - (model.num_layers - model.num_dense_layers) * idle


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
    return layers_params(model) + embedding_params(model) + head_params(model)
