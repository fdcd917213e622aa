"""Which virtual pipeline stage holds what: layers, embedding, head; and the parameters on each rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Number
from sim.specs import ModelSpec, ParallelPlan
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
class ModelPart:
    """How much of the model a stage holds, or a rank; numbers, or arrays over plans.

    num_layers : all of them; of which `num_dense_layers` have no experts though the model has.
    embeddings, heads : how often the embedding and the output head.
    shared_tables : how often both on one stage, where a tied head needs no second table.
    """

    num_layers: Number = 0
    num_dense_layers: Number = 0
    embeddings: Number = 0
    heads: Number = 0
    shared_tables: Number = 0

    def __add__(self, other: ModelPart) -> ModelPart:
        return ModelPart(*(getattr(self, name) + getattr(other, name) for name in ModelPart.__slots__))


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

    @property
    def part(self) -> ModelPart:
        """What it holds."""
        both = int(self.has_embedding and self.has_head)
        return ModelPart(self.num_layers, self.num_dense_layers, int(self.has_embedding), int(self.has_head), both)


LAYER, EMBEDDING, HEAD = ModelPart(num_layers=1), ModelPart(embeddings=1), ModelPart(heads=1)
DENSE_LAYER = ModelPart(num_layers=1, num_dense_layers=1)
"""What models are made of."""


def blocks_of(model: ModelSpec) -> tuple[ModelPart, ...]:
    """The blocks that this model is made of: layer, embedding, head, and a layer without experts where some have none.

    Seconds and bytes of blocks stand in this order wherever blocks are an axis.
    """
    return (LAYER, EMBEDDING, HEAD, *([DENSE_LAYER] if model.num_dense_layers else []))


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


def part_expert_params(part: ModelPart, model: ModelSpec, ep: Number) -> Number:
    """Of `part_params`, those of the experts on one GPU: every ep-th expert, whole."""
    return (part.num_layers - part.num_dense_layers) * expert_params(model) / ep


def part_params(part: ModelPart, model: ModelSpec, tp: Number, ep: Number = 1) -> Number:
    """Parameters of a part of the model on one GPU. Takes arrays.

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
    extra_heads = np.maximum(0, tp - model.num_kv_heads) * 2 * head_weights
    with_experts = part.num_layers - part.num_dense_layers if model.num_experts else 0
    dense = part.num_layers - with_experts
    row_bias = model.hidden_size * model.mlp_bias
    replicated = part.num_layers * whole + dense * row_bias
    cut = dense * (layer_params(model, dense=True) - whole - row_bias) + part.num_layers * extra_heads
    if model.num_experts:
        row_bias = row_bias if model.shared_expert_intermediate_size else 0
        router = router_params(model)
        replicated = replicated + with_experts * (row_bias + router)
        cut = cut + with_experts * (layer_params(model) - expert_params(model) - router - whole - row_bias)
    table = model.vocab_size * model.hidden_size
    tables = part.embeddings + part.heads - (part.shared_tables if model.tied_embeddings else 0)
    cut = cut + table * tables + part.heads * (model.vocab_size * model.head_bias)
    replicated = replicated + part.embeddings * (embedding_params(model) - table) + part.heads * norms
    held: Number = cut / tp + replicated + part_expert_params(part, model, ep)
    return held
