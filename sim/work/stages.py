"""Which virtual pipeline stage holds what: layers, embedding, head; and the parameters on each rank."""

from __future__ import annotations

from dataclasses import dataclass

from sim.specs import ModelSpec, ParallelPlan
from sim.work.operations import Number
from sim.work.params import (
    embedding_params,
    expert_params,
    latent_projection_params,
    layer_params,
    norm_params,
    query_key_norm_params,
    router_params,
)


@dataclass(frozen=True, slots=True)
class Stage:
    """One virtual stage: what it holds of the model.

    num_layers : all of them; of which `num_dense_layers` have no experts though the model has.
    """

    index: int
    num_layers: int
    has_embedding: bool
    has_head: bool
    num_dense_layers: int = 0


LAYER, EMBEDDING, HEAD = Stage(0, 1, False, False), Stage(0, 0, True, False), Stage(0, 0, False, True)
DENSE_LAYER = Stage(0, 1, False, False, 1)
"""What stages are made of, each as a stage of its own."""


def deal_stages(model: ModelSpec, plan: ParallelPlan) -> tuple[Stage, ...]:
    """Deal the layers evenly, in order, to pp · num_chunks stages; under `uneven_layers` some get one more.

    The first stage holds the embedding, the last the head; `embedding_as_layer` and `head_as_layer` let them take the
    place of a layer (Llama 3, arXiv:2407.21783, section 3.3.2).
    """
    num_stages = plan.num_stages
    dealt = model.num_layers + plan.embedding_as_layer + plan.head_as_layer
    share, rest = divmod(dealt, num_stages)
    stages: list[Stage] = []
    dense = model.num_dense_layers  # the first ones
    for index in range(num_stages):
        # The rest goes to the stages from the second on: the first has the embedding, the last the head.
        layers = share + ((index - 1) % num_stages < rest)
        layers -= (plan.embedding_as_layer and index == 0) + (plan.head_as_layer and index == num_stages - 1)
        stages.append(Stage(index, layers, index == 0, index == num_stages - 1, min(dense, layers)))
        dense -= stages[-1].num_dense_layers
    return tuple(stages)


def stage_expert_params(stage: Stage, model: ModelSpec, ep: Number) -> Number:
    """Of `stage_params`, those of the experts on one GPU: every ep-th expert, whole."""
    return (stage.num_layers - stage.num_dense_layers) * expert_params(model) / ep


def stage_params(stage: Stage, model: ModelSpec, tp: int, ep: int = 1) -> float:
    """Parameters of a stage on one GPU.

    Matrices, the embedding and the biases of column-parallel layers are cut by tp; norms, the biases of row-parallel
    layers, routers, latent attention's projections down and learned positions are on every GPU, and so are key/value
    heads that are fewer than the GPUs. Experts are dealt over ep GPUs, whole. A tied output projection on another
    stage than the embedding is a second copy.
    """
    norms = norm_params(model)
    whole = model.norms_per_layer * norms
    if model.key_value_rank:
        whole += latent_projection_params(model)
    else:
        whole += model.hidden_size * model.attention_output_bias
        if model.query_key_norm == "head":  # one weight for all heads
            whole += query_key_norm_params(model)
    # Each GPU holds at least one key/value head.
    head_weights = model.head_dim * (model.hidden_size + (1 if model.qkv_bias else 0))
    extra_heads = max(0, tp - model.num_kv_heads) * 2 * head_weights
    with_experts = stage.num_layers - stage.num_dense_layers if model.num_experts else 0
    row_bias = model.hidden_size * model.mlp_bias
    replicated: float = stage.num_layers * whole + (stage.num_layers - with_experts) * row_bias
    cut: float = (stage.num_layers - with_experts) * (layer_params(model, dense=True) - whole - row_bias)
    if with_experts:
        row_bias = row_bias if model.shared_expert_intermediate_size else 0
        router = router_params(model)
        replicated += with_experts * (row_bias + router)
        cut += with_experts * (layer_params(model) - expert_params(model) - router - whole - row_bias)
    cut += stage.num_layers * extra_heads
    table = model.vocab_size * model.hidden_size
    if stage.has_embedding:
        cut += table
        replicated += embedding_params(model) - table
    if stage.has_head:
        replicated += norms
        cut += model.vocab_size * model.head_bias
        if not (model.tied_embeddings and stage.has_embedding):
            cut += table
    held: float = cut / tp + replicated + stage_expert_params(stage, model, ep)
    return held
