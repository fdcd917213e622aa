"""A scenario's own layers as a profile, so that the planners answer for every model of the house."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.errors import SpecError
from sim.estimate import Estimate, estimate
from sim.planners.layers import LayerProfile
from sim.planners.two_buffered import TwoBufferedPlan
from sim.pricing.cells import sent_bytes
from sim.pricing.cost_model import cut_of
from sim.pricing.plans import plans_of
from sim.pricing.replicas import HELD, MOMENTS, TRAINED, block_params
from sim.search.layout import layout_text
from sim.specs import Scenario
from sim.work.optimizer import GRADIENT_WIDTH, state_bytes
from sim.work.stages import EMBEDDING, FIRST_KIND, HEAD


def one_worker(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario on one worker, which holds all layers: a GPU, or a tensor- and context-parallel group of them.

    Parameters
    ----------
    **changes
        Other fields of its plan.

    Raises
    ------
    SpecError
        Experts dealt over replicas, state sharded over them, or a micro-batch that does not divide the plans.
    """
    plan = scenario.plan
    if plan.ep > 1:
        raise SpecError(
            f"plan.ep = {plan.ep} deals experts over replicas, of which each stage may have another number; set "
            "plan.ep to 1, or give a profile of the layers"
        )
    if plan.zero_stage:
        raise SpecError(
            f"plan.zero_stage = {plan.zero_stage} shards state over replicas, and PipeDream's are whole; set it to 0"
        )
    alone = {"pp": 1, "dp": 1, "num_chunks": 1, "schedule": "1f1b", "pipeline_layout": "", "uneven_layers": False}
    return scenario.replace(plan=plan.replace(**alone, **changes))


def profile_of(scenario: Scenario, **changes: Any) -> LayerProfile:
    """What a scenario's blocks (embedding, layers, multi-token prediction, head) take and keep of one micro-plans.

    Seconds and bytes are those that an estimate puts together, of one GPU of a worker.

    Parameters
    ----------
    **changes
        Of its plan: the micro-batch, recomputation.

    Raises
    ------
    SpecError
        As `one_worker`.
    """
    scenario = one_worker(scenario, **changes)
    plans, model, training = plans_of(scenario), scenario.model, scenario.training
    forward, backward = (table[:, 0, 0, 0] for table in plans.prices.total_s[:2])
    kept = plans.prices.activation_bytes[:, 0, 0]
    held = block_params(plans.layouts)[..., 0]
    of_blocks = np.stack([held[HELD].sum(axis=0), held[TRAINED].sum(axis=0), held[MOMENTS]], axis=1).tolist()
    width = GRADIENT_WIDTH[scenario.stack.gradient_precision]
    output = float(np.asarray(sent_bytes(plans.costs, cut_of(scenario))))
    logits = float(plans.prices.logits_bytes[0, 0])
    kinds = [FIRST_KIND + model.layer_kinds.index(kind) for kind in model.kind_of_layer]
    blocks = [("embedding", EMBEDDING)]
    blocks += [(f"layer {number}", kind) for number, kind in enumerate(kinds)]
    blocks += [(f"prediction {number}", len(forward) - 1) for number in range(model.num_mtp_layers)]
    blocks.append(("head", HEAD))
    layers = []
    for name, block in blocks:
        total, trained, moments = of_blocks[block]
        state = float(state_bytes(trained, moments, training, scenario.stack, scenario.plan.optimizer_offload))
        layers.append(
            {
                "name": name,
                "forward_s": float(forward[block]),
                "backward_s": float(backward[block]),
                "output_bytes": output,
                "weights_bytes": total * training.activation_bytes,
                "gradients_bytes": trained * width,
                "state_bytes": state + trained * width,
                "kept_bytes": float(kept[block]) + (logits if block == HEAD else 0.0),
            }
        )
    return LayerProfile.read(
        {
            "name": scenario.name,
            "source": f"priced with profile {scenario.profile.name}",
            "microbatch_size": scenario.plan.microbatch_size,
            "layers": layers,
        },
        "profile",
    )


LETTERS = {"embedding": "E", "layer": "t", "prediction": "m", "head": "L"}


def letters_of(profile: LayerProfile) -> str:
    """The blocks of such a profile as a pipeline layout's letters."""
    return "".join(LETTERS[layer.name.partition(" ")[0]] for layer in profile.layers)


def straight_scenario(
    scenario: Scenario, profile: LayerProfile, ends: Sequence[int], width: int, **plan: Any
) -> Scenario:
    """A scenario with stages of these layers, each on `width` workers, as the house's own estimate prices it.

    Parameters
    ----------
    ends : sequence of int
        Where each stage's blocks end.
    **plan
        Of the plan's fields: schedule, micro-batch, recomputation.
    """
    letters = letters_of(profile)
    stages = [letters[begin:end] for begin, end in zip((0, *ends[:-1]), ends, strict=True)]
    layout = layout_text(stages) if len(stages) > 1 else ""
    changed = {"embedding_as_layer": False, "head_as_layer": False, "pp": len(stages), "dp": width}
    alone = one_worker(scenario)
    return alone.replace(plan=alone.plan.replace(**changed, pipeline_layout=layout, **plan))


def confirm_two_buffered(scenario: Scenario, profile: LayerProfile, plan: TwoBufferedPlan) -> Estimate:
    """What the house's own model says of a plan of 2BW's planner, run on the exact engine."""
    return estimate(
        straight_scenario(
            scenario,
            profile,
            plan.ends,
            plan.width,
            schedule="pipedream_2bw" if plan.depth > 1 else "1f1b",
            microbatch_size=plan.microbatch_size,
            recompute="full" if plan.recompute else "none",
        )
    )
