"""How many layers each virtual pipeline stage holds, as a plan deals them."""

from __future__ import annotations

from sim.specs.plan import ParallelPlan


def num_stages_of(num_layers: int, plan: ParallelPlan) -> int:
    """Virtual stages of a model of so many layers: pp · num_chunks, or in a modular pipeline no more than layers
    are dealt, one a stage, so that the last round over the ranks may be incomplete (Lamy-Poirier 2021,
    arXiv:2106.02679).
    """
    if plan.schedule != "modular" or plan.pipeline_layout:
        return plan.num_stages
    return min(plan.num_stages, num_layers + plan.embedding_as_layer + plan.head_as_layer)


def layers_of_stages(num_layers: int, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers of each of the stages (`num_stages_of`), in the order that a micro-batch goes through them: as the plan's
    layout says, or evenly.

    Under `embedding_as_layer` and `head_as_layer` the first and the last stage have a layer less; under
    `uneven_layers` some have one more.
    """
    if plan.pipeline_layout:
        return tuple(stage.count("t") for stage in plan.stages_of_layout)
    stages = num_stages_of(num_layers, plan)
    share, rest = divmod(num_layers + plan.embedding_as_layer + plan.head_as_layer, stages)
    # The rest goes to the stages from the second on: the first has the embedding, the last the head.
    layers = [share + ((stage - 1) % stages < rest) for stage in range(stages)]
    layers[0] -= plan.embedding_as_layer
    layers[-1] -= plan.head_as_layer
    return tuple(layers)
