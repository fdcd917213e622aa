"""Seconds of the stages of many pipelines: blocks priced once a cell, put together row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.costs.block import BlockCosts, block_costs, costs_by_recompute, cut_of
from sim.costs.collectives import Fabric
from sim.costs.compute import ComputeModel
from sim.costs.zero import Sharded, zero_traffic
from sim.search.plans.columns import Columns, table
from sim.search.plans.layouts import dealt_layers
from sim.search.prices.facts import Cells, Facts
from sim.specs import Scenario, StackSpec
from sim.work.layers import embedding_work, head_work, layer_works

Array = np.ndarray
Passes = tuple[Array, Array]
"""Forward and backward of one micro-batch: arrays over ways to recompute and rows. [s]"""


def cell_scenario(
    scenario: Scenario,
    stack: StackSpec,
    cells: Cells,
    sequence_parallel: bool,
    recompute: str = "none",
    sequence_slices: int = 1,
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
        sequence_slices=sequence_slices,
    )


def price_blocks(
    given: Scenario, cells: Cells, recomputes: Sequence[str], compute: ComputeModel, fabric: Fabric
) -> list[list[BlockCosts]]:
    """Costs of a layer, the embedding and the head of every cell, and of a first layer without experts.

    Of each under every way to recompute; embedding and head are never recomputed: one stands for all.

    Parameters
    ----------
    given : Scenario
        As `cell_scenario` makes it.
    """
    model, stack, cut = given.model, given.stack, cut_of(given)
    groups = {"tp": cells.tensor, "cp": cells.context, "ep": cells.experts}
    kinds = [False, True] if model.num_dense_layers else [False]
    layer, *first = (
        list(costs_by_recompute(layer_works(model, stack, cut, recomputes, dense), compute, groups, fabric))
        for dense in kinds
    )
    ends = ([block_costs(work(model, stack, cut), compute, groups, fabric)] for work in (embedding_work, head_work))
    return [layer, *ends, *first]


def stacked(costs: Sequence[BlockCosts], name: str, cells: Cells) -> Array:
    """One of the numbers of some costs, over them and cells."""
    return np.stack([np.broadcast_to(getattr(each, name), len(cells.tp)) for each in costs])


def stage_seconds(
    scenario: Scenario, facts: Facts, blocks: Sequence[Passes], sharded: Sequence[Sharded] | None, fabric: Fabric
) -> Passes:
    """Forward and backward of one micro-batch on the first, a middle and the last stage.

    Parameters
    ----------
    scenario : Scenario
        Of one ZeRO stage and set of overlaps.
    blocks : of layer, embedding, head, and a first layer without experts where there are such
        Forward and backward, over ways to recompute and rows. [s]
    sharded : of the same, or None
        Where ZeRO moves something at every visit.

    Returns
    -------
    forward, backward : arrays over stages, ways to recompute and rows
        [s]
    """
    columns = facts.columns
    if sharded is not None:
        seconds = []
        for (forward, backward), block in zip(blocks, sharded, strict=True):
            more = zero_traffic(forward, backward, block, scenario, fabric, facts.visits, facts.num_microbatches)
            seconds.append((forward + more[0], backward + more[1]))
        blocks = seconds
    forward, backward = (np.stack(of_stages(scenario, columns, *(each[which] for each in blocks))) for which in (0, 1))
    return forward + scenario.stack.forward_setup_s, backward


def of_stages(
    scenario: Scenario, columns: Columns, layer: Array, embedding: Array, head: Array, *dense: Array
) -> tuple[Array, Array, Array]:
    """What the first, a middle and the last stage have, put together from what their blocks have, over rows.

    The only stage of a plan has all, whichever it is taken for.
    """
    plan = scenario.plan
    middle = dealt_layers(scenario) / (columns.pp * columns.num_chunks) * layer
    first, last = middle - plan.embedding_as_layer * layer + embedding, middle - plan.head_as_layer * layer + head
    for each in dense:  # the first stage holds them all: see `sim.search.plans.layouts`
        first = first + scenario.model.num_dense_layers * (each - layer)
    alone, single = columns.pp * columns.num_chunks == 1, first + last - middle
    return np.where(alone, single, first), middle, np.where(alone, single, last)
