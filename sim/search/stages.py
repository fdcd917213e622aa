"""Seconds of the stages of many pipelines: blocks priced once a cell, put together row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.costs.block import block_costs, costs_by_recompute, cut_of
from sim.costs.collectives import Fabric
from sim.costs.compute import ComputeModel
from sim.costs.zero import Sharded, zero_traffic
from sim.search.columns import table
from sim.search.facts import Cells, Facts
from sim.search.layouts import dealt_layers
from sim.specs import Scenario, StackSpec
from sim.work.layers import embedding_work, head_work, layer_works

Array = np.ndarray
Passes = tuple[Array, Array]
"""Forward and backward of one micro-batch: arrays over ways to recompute and rows. [s]"""


def cell_scenario(
    scenario: Scenario, stack: StackSpec, cells: Cells, sequence_parallel: bool, recompute: str = "none"
) -> Scenario:
    """All cells as plans of a scenario."""
    return table(
        scenario,
        stack,
        tp=cells.tp,
        cp=cells.cp,
        ep=cells.ep,
        microbatch_size=cells.microbatch_size,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
    )


def block_seconds(
    given: Scenario, cells: Cells, recomputes: Sequence[str], compute: ComputeModel, fabric: Fabric
) -> list[Passes]:
    """Forward and backward of a layer, the embedding and the head of every cell, and of a first layer without experts.

    Embedding and head are never recomputed: of one way stand for all.

    Parameters
    ----------
    given : Scenario
        As `cell_scenario` makes it.
    """
    model, stack, cut = given.model, given.stack, cut_of(given)
    groups = {"tp": cells.tensor, "cp": cells.context, "ep": cells.experts}
    kinds = [False, True] if model.num_dense_layers else [False]
    layers = [
        costs_by_recompute(layer_works(model, stack, cut, recomputes, dense), compute, groups, fabric)
        for dense in kinds
    ]
    ends = [block_costs(work(model, stack, cut), compute, groups, fabric) for work in (embedding_work, head_work)]
    size = len(cells.tp)

    def stacked(seconds: Sequence[Array]) -> Array:
        return np.stack([np.broadcast_to(each, size) for each in seconds])

    layer, *dense = ((stacked([e.forward_s for e in each]), stacked([e.backward_s for e in each])) for each in layers)
    embedding, head = ((stacked([each.forward_s]), stacked([each.backward_s])) for each in ends)
    return [layer, embedding, head, *dense]


def stage_seconds(
    scenario: Scenario, facts: Facts, blocks: Sequence[Passes], sharded: Sequence[Sharded] | None, fabric: Fabric
) -> Passes:
    """Forward and backward of one micro-batch on the first, a middle and the last stage.

    Parameters
    ----------
    scenario : Scenario
        Of one ZeRO stage and set of overlaps.
    blocks : as of `block_seconds`
        Over rows.
    sharded : of the same, or None
        Where ZeRO moves something at every visit.

    Returns
    -------
    forward, backward : arrays over stages, ways to recompute and rows
        [s]
    """
    columns, plan = facts.columns, scenario.plan
    if sharded is not None:
        seconds = []
        for (forward, backward), block in zip(blocks, sharded, strict=True):
            more = zero_traffic(forward, backward, block, scenario, fabric, facts.visits, facts.num_microbatches)
            seconds.append((forward + more[0], backward + more[1]))
        blocks = seconds
    layers = dealt_layers(scenario) / (columns.pp * columns.num_chunks)
    e, h, alone = int(plan.embedding_as_layer), int(plan.head_as_layer), columns.pp == 1

    def stages(layer: Array, embedding: Array, head: Array, *dense: Array, setup: float) -> Array:
        middle = layers * layer
        first, last = middle - e * layer + embedding, middle - h * layer + head
        for each in dense:  # the first stage holds them all: see `sim.search.layouts`
            first = first + scenario.model.num_dense_layers * (each - layer)
        single = first + last - middle
        return np.stack([np.where(alone, single, first), middle, np.where(alone, single, last)]) + setup

    forward = stages(*(each[0] for each in blocks), setup=scenario.stack.forward_setup_s)
    return forward, stages(*(each[1] for each in blocks), setup=0.0)
