"""Which virtual pipeline stage holds what: layers, embedding, head; and the parameters on each rank."""

from __future__ import annotations

from dataclasses import dataclass

from sim.specs import ModelSpec, ParallelPlan
from sim.work.params import embedding_params, layer_params, norm_params, query_key_norm_params


@dataclass(frozen=True, slots=True)
class Stage:
    """One virtual stage: what it holds of the model."""

    index: int
    num_layers: int
    has_embedding: bool
    has_head: bool


def deal_stages(model: ModelSpec, plan: ParallelPlan) -> tuple[Stage, ...]:
    """Deal the layers evenly, in order, to pp · num_chunks stages; under `uneven_layers` some get one more.

    The first stage holds the embedding, the last the head; `embedding_as_layer` and `head_as_layer` let them take the
    place of a layer (Llama 3, arXiv:2407.21783, section 3.3.2).
    """
    num_stages = plan.num_stages
    dealt = model.num_layers + plan.embedding_as_layer + plan.head_as_layer
    share, rest = divmod(dealt, num_stages)
    return tuple(
        Stage(
            index=index,
            # The rest goes to the stages from the second on: the first has the embedding, the last the head.
            num_layers=share
            + ((index - 1) % num_stages < rest)
            - (plan.embedding_as_layer and index == 0)
            - (plan.head_as_layer and index == num_stages - 1),
            has_embedding=index == 0,
            has_head=index == num_stages - 1,
        )
        for index in range(num_stages)
    )


def stage_params(stage: Stage, model: ModelSpec, tp: int) -> float:
    """Parameters of a stage on one GPU of its tensor-parallel group.

    Matrices, the embedding and the biases of column-parallel layers are cut by tp; norms, the biases of row-parallel
    layers and learned positions are on every GPU, and so are key/value heads that are fewer than the GPUs. A tied
    output projection on another stage than the embedding is a second copy.
    """
    norms = norm_params(model)
    row_biases = model.hidden_size * (model.attention_output_bias + model.mlp_bias)
    whole = model.norms_per_layer * norms + row_biases
    if model.query_key_norm == "head":  # one weight for all heads
        whole += query_key_norm_params(model)
    # Each GPU holds at least one key/value head.
    head_weights = model.head_dim * (model.hidden_size + (1 if model.qkv_bias else 0))
    extra_heads = max(0, tp - model.num_kv_heads) * 2 * head_weights
    replicated: float = stage.num_layers * whole
    cut: float = stage.num_layers * (layer_params(model) - whole + extra_heads)
    table = model.vocab_size * model.hidden_size
    if stage.has_embedding:
        cut += table
        replicated += embedding_params(model) - table
    if stage.has_head:
        replicated += norms
        cut += model.vocab_size * model.head_bias
        if not (model.tied_embeddings and stage.has_embedding):
            cut += table
    return cut / tp + replicated
