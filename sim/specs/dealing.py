"""How many layers each virtual pipeline stage holds, as a plan deals them."""

from __future__ import annotations

from sim.specs.plan import ParallelPlan


def layers_of_stages(num_layers: int, plan: ParallelPlan) -> tuple[int, ...]:
    """Layers of each of the pp · num_chunks stages, in the order that a micro-batch goes through them: as the plan's
    layout says, or evenly.

    Under `embedding_as_layer` and `head_as_layer` the first and the last stage have a layer less; under
    `uneven_layers` some have one more.
    """
    if plan.pipeline_layout:
        return tuple(stage.count("t") for stage in plan.stages_of_layout)
    stages = plan.num_stages
    share, rest = divmod(num_layers + plan.embedding_as_layer + plan.head_as_layer, stages)
    # The rest goes to the stages from the second on: the first has the embedding, the last the head.
    layers = [share + ((stage - 1) % stages < rest) for stage in range(stages)]
    layers[0] -= plan.embedding_as_layer
    layers[-1] -= plan.head_as_layer
    return tuple(layers)
