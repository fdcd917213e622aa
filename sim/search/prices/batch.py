"""Plans of a space as columns of what they cost, for bounds and for exact times in their own orders."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Bools, Ints
from sim.pricing.cells import Way, find_cells, price_cells
from sim.pricing.layouts import Layouts
from sim.pricing.plans import Plans
from sim.search.plans.space import Space, base_plan
from sim.specs.stack import sends_overlap
from sim.work.recompute import searched_word


def plan_batch(space: Space, layouts: Layouts, row: Ints, category: Ints) -> Plans:
    """Some plans of a space under one schedule, by row and category, as columns of what they cost.

    layouts : the space's, on its cluster.
    """
    columns, num_chunks = space.columns, space.columns.num_chunks[row]

    def of_category(values: list[Any]) -> Any:
        return np.array(values)[category]

    sends, reduce, gather, tensor = zip(*(each.overlaps for each in space.categories), strict=True)
    beside: Bools = np.zeros(len(row), dtype=bool)
    for stated in dict.fromkeys(sends):
        beside |= of_category([each == stated for each in sends]) & sends_overlap(stated, num_chunks)
    words = [searched_word(each.recompute, space.scenario.plan) for each in space.categories]
    kinds = [
        (overlap, each.sequence_parallel, word, each.offloaded_layers)
        for overlap, each, word in zip(tensor, space.categories, words, strict=True)
    ]
    flags = sorted({kind[:2] for kind in kinds})
    ways = tuple(Way(*flag, *again) for flag, again in product(flags, dict.fromkeys(kind[2:] for kind in kinds)))
    cells, cell = find_cells(layouts, columns.layout[row], columns.microbatch_size[row], ways, space.slices)
    return Plans(
        layouts,
        price_cells(cells),  # cached: plans that differ in their ZeRO stage share cells
        base_plan(space.scenario),
        space.schedules[0],
        layout=columns.layout[row],
        cell=cell,
        way=of_category([ways.index(Way(*kind)) for kind in kinds]),
        zero_stage=of_category([each.zero_stage for each in space.categories]),
        num_chunks=num_chunks,
        num_microbatches=space.num_microbatches[row],
        overlap_p2p=beside,
        overlap_grad_reduce=of_category(list(reduce)),
        overlap_param_gather=of_category(list(gather)),
    )
