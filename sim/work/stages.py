"""Which virtual pipeline stage holds what: layers, embedding, head; and the parameters on each rank."""

from __future__ import annotations

from dataclasses import dataclass

from sim.specs import ModelSpec, ParallelPlan
from sim.work.params import embedding_params, head_params, layer_params


@dataclass(frozen=True, slots=True)
class Stage:
    """One virtual stage: what it holds of the model."""

    index: int
    num_layers: int
    has_embedding: bool
    has_head: bool


def deal_stages(model: ModelSpec, plan: ParallelPlan) -> tuple[Stage, ...]:
    """Deal the layers evenly, in order, to pp · num_chunks stages.

    The first stage holds the embedding, the last the head; `embedding_as_layer` and `head_as_layer` let them take the
    place of a layer (Llama 3, arXiv:2407.21783, section 3.3.2).
    """
    num_stages = plan.num_stages
    share = (model.num_layers + plan.embedding_as_layer + plan.head_as_layer) // num_stages
    return tuple(
        Stage(
            index=index,
            num_layers=share
            - (plan.embedding_as_layer and index == 0)
            - (plan.head_as_layer and index == num_stages - 1),
            has_embedding=index == 0,
            has_head=index == num_stages - 1,
        )
        for index in range(num_stages)
    )


def stage_params(stage: Stage, model: ModelSpec, tp: int) -> float:
    """Parameters of a stage on one GPU of its tensor-parallel group.

    Matrices are cut by tp; norms and the biases of row-parallel layers are replicated in fact, but count as cut here:
    their share is below 1e-4. A tied output projection on another stage than the embedding is a second copy.
    """
    params: float = stage.num_layers * layer_params(model)
    if stage.has_embedding:
        params += embedding_params(model)
    if stage.has_head:
        params += head_params(model)
        if model.tied_embeddings and not stage.has_embedding:
            params += model.vocab_size * model.hidden_size
    return params / tp
