"""Parameters, exactly: per layer, per embedding, per model."""

from __future__ import annotations

from dataclasses import dataclass

from sim.specs import LayerKind, ModelSpec


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
    projected = query + key_value + context * model.attention_gate
    weights = model.hidden_size * projected + context * model.hidden_size
    biases = projected * model.qkv_bias + model.hidden_size * model.attention_output_bias
    return weights + biases + query_key_norm_params(model) + sinks


def mixer_params(model: ModelSpec, kind: LayerKind) -> int:
    """What mixes the tokens of a layer: attention's projections, or those around a state that is carried along."""
    if kind.recurs:
        return recurrent_params(model, kind) + recurrent_whole_params(model, kind)
    return attention_params(model) if kind.attends else 0


@dataclass(frozen=True, slots=True)
class RecurrentWidths:
    """Columns of the projections, all heads together.

    gates : that come from the hidden state beside what is mixed: the output's gate, steps, decays.
    mixed : that the convolution mixes: values and twice the keys.
    narrow : of projections to one head's width and up again: columns of the two together, or 0.
    """

    values: int
    keys: int
    gates: int
    mixed: int
    narrow: int
    weights: int


def recurrent_widths(model: ModelSpec, kind: LayerKind) -> RecurrentWidths:
    """Of one layer; `weights` are those of its matrices, each once."""
    h, heads = model.hidden_size, model.linear_num_heads
    values, keys = heads * model.linear_head_dim, model.linear_num_key_heads * model.linear_key_head_dim
    mixed = values + 2 * keys
    gates = {"mamba2": values + heads, "gated_delta_net": values + 2 * heads, "kimi_delta_attention": heads}[kind.mixer]
    narrow = 2 * model.linear_head_dim if kind.mixer == "kimi_delta_attention" else 0
    weights = h * (mixed + gates + values) + narrow * (h + values)
    return RecurrentWidths(values, keys, gates, mixed, narrow, weights)


def recurrent_params(model: ModelSpec, kind: LayerKind) -> int:
    """Of a layer that carries a state what tensor parallelism cuts by heads.

    mamba2: the gate, x, B, C and a step a head from one projection; a convolution with a bias over x, B and C; decay,
    skip and bias of the step a head; the gated norm (Dao and Gu 2024, arXiv:2405.21060, section 7.1). gated_delta_net:
    queries, keys, values, a gate, and two numbers a head (Yang et al. 2024, arXiv:2412.06464). kimi_delta_attention:
    its decays and gates come through projections of one head's width (Kimi 2025, arXiv:2510.26692, section 4).
    """
    h, heads = model.hidden_size, model.linear_num_heads
    values, keys = heads * model.linear_head_dim, model.linear_num_key_heads * model.linear_key_head_dim
    mixed = values + 2 * keys  # what the convolution sees
    conv, out = mixed * model.linear_conv_kernel, values * h
    if kind.mixer == "mamba2":
        return h * (values + mixed + heads) + conv + mixed + 3 * heads + values + out
    if kind.mixer == "gated_delta_net":
        return h * (values + mixed + 2 * heads) + conv + 2 * heads + out
    gates = 2 * model.linear_head_dim * values  # up from one head's width: decays, and the output's gate
    return h * (mixed + heads) + gates + conv + values + heads + out


def recurrent_whole_params(model: ModelSpec, kind: LayerKind) -> int:
    """Of a layer that carries a state what is on every GPU: norms of one head, and projections to one head's width."""
    if kind.mixer == "mamba2":
        return 0
    down = 2 * model.hidden_size * model.linear_head_dim * (kind.mixer == "kimi_delta_attention")
    return model.linear_head_dim + down


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


def _mlp_of(model: ModelSpec, width: int, outer: int | None = None) -> int:
    inputs, outer = 2 if model.gated_mlp else 1, outer or model.hidden_size
    weights = (inputs + 1) * outer * width
    return weights + (inputs * width + outer) * model.mlp_bias


def expert_params(model: ModelSpec) -> int:
    """All experts of one layer that a router picks from; 0 for a model without."""
    return model.num_experts * _mlp_of(model, model.expert_intermediate_size, expert_width(model))


def expert_width(model: ModelSpec) -> int:
    """Numbers a token that experts read and give."""
    return model.expert_latent_size or model.hidden_size


def router_params(model: ModelSpec) -> int:
    """The router of one layer, which has a bias where the experts have, the gate of shared experts, and projections to
    the vector that experts work on and back."""
    columns = model.num_experts + model.shared_expert_gate + 2 * model.expert_latent_size
    return model.hidden_size * columns + model.num_experts * model.mlp_bias


def shared_expert_params(model: ModelSpec) -> int:
    """Experts of one layer that every token goes through."""
    size = model.shared_expert_intermediate_size
    return _mlp_of(model, size) if size else 0


def norms_of(model: ModelSpec, kind: LayerKind) -> int:
    """Normalisations of a layer: those of its blocks."""
    both = kind.mixer != "none" and kind.mlp != "none"
    return model.norms_per_layer if both else max(1, model.norms_per_layer // 2)


def layer_params(model: ModelSpec, kind: LayerKind | None = None) -> int:
    """One transformer layer, its norms and experts included.

    Parameters
    ----------
    kind : LayerKind, optional
        Of the model's `layer_kinds`. Default: the last layer's.
    """
    kind = kind or model.layer_kinds[0]
    mlp = {"none": 0, "dense": mlp_params(model), "sparse": 0}[kind.mlp]
    if kind.sparse:
        mlp = expert_params(model) + router_params(model) + shared_expert_params(model)
    return mixer_params(model, kind) + mlp + norms_of(model, kind) * norm_params(model)


def layers_params(model: ModelSpec) -> int:
    """All layers."""
    return sum(model.layers_of(kind) * layer_params(model, kind) for kind in model.layer_kinds)


def mtp_params(model: ModelSpec) -> int:
    """One module of multi-token prediction: a layer (`ModelSpec.mtp_kind`), a projection from two hidden states to one,
    norms of both and of what comes out.

    Embedding and head are the model's (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """
    return layer_params(model, model.mtp_kind) + 2 * model.hidden_size**2 + 3 * norm_params(model)


def counted_kinds(model: ModelSpec) -> list[tuple[int, LayerKind]]:
    """How many layers there are of each kind, those of multi-token prediction among them."""
    return [
        (model.layers_of(kind) + model.num_mtp_layers * (kind == model.mtp_kind), kind) for kind in model.layer_kinds
    ]


def active_params(model: ModelSpec) -> int:
    """Parameters that a token meets: all but the experts it is not sent to."""
    idle = expert_params(model) // max(model.num_experts, 1) * (model.num_experts - model.experts_per_token)
    with_experts = model.num_sparse_layers + model.num_mtp_layers * model.mtp_kind.sparse
    return total_params(model) - with_experts * idle


def embedding_params(model: ModelSpec) -> int:
    """Token embedding and, where there are any, the position embedding and the norm after them."""
    positions = model.max_sequence_length if model.position == "learned" else 0
    return (model.vocab_size + positions) * model.hidden_size + norm_params(model) * model.embedding_norm


def head_params(model: ModelSpec) -> int:
    """The output projection where it has weights of its own, its bias, and the final norm."""
    weights = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    return weights + model.vocab_size * model.head_bias + norm_params(model)


def total_params(model: ModelSpec) -> int:
    """All parameters of the model, tied ones once, modules of multi-token prediction included.

    For a GPT this is 12 l h² (1 + 13/(12h) + (V + s)/(12 l h)) [1]_ plus the 2h of the final norm, which the
    formula leaves out.

    .. [1] Narayanan et al. 2021, arXiv:2104.04473, equation 2.
    """
    mtp = model.num_mtp_layers * mtp_params(model)
    return layers_params(model) + embedding_params(model) + head_params(model) + mtp
