"""The plans of one schedule: every layout, micro-batch and number of chunks that it takes, in every category."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from sim.errors import ScheduleError
from sim.pricing.cells import Way, find_cells, price_cells
from sim.pricing.cost_model import cost_model
from sim.pricing.layouts import place_layouts
from sim.pricing.plans import Plans
from sim.schedules import get_schedule
from sim.schedules.actions import U, W
from sim.schedules.registry import is_file
from sim.search.plans.columns import OVERLAPS, RECOMPUTES
from sim.search.plans.space import Space, base_plan
from sim.specs.stack import sends_overlap
from sim.work.recompute import searched_word

SLICES = (2, 4, 8)
"""Parts of a sequence that are tried under a schedule that cuts sequences."""


def spaces_under(space: Space, name: str) -> list[Space]:
    """The space under a schedule, once for each number of sequence slices; those that have plans.

    Raises
    ------
    ScheduleError
        There is no such schedule, or it is a grid with updates in it, whose steps have no end.
    """
    chosen = get_schedule(name)
    if is_file(name) and any((row[:, 1] == U).any() for row in chosen.rows(1, 1, 1)):
        raise ScheduleError(
            f"schedule {name!r} has weight updates in its grid; a search takes grids of one step: leave them out, or "
            "estimate plans of it one by one"
        )
    length = space.scenario.training.sequence_length
    slices = [each for each in SLICES if length % each == 0] if "slices" in chosen.options else [1]
    found = [replace(space, schedule=chosen.name, slices=each) for each in slices]
    return [each for each in found if len(each.plans[0])]


def plan_batch(space: Space) -> Plans:
    """All plans of a space under one schedule as columns of what they cost."""
    columns, (row, category), categories = space.columns, space.plans, space.categories

    def of_category(values: list[Any]) -> Any:
        return np.array(values)[category]

    overlaps = [[each.overlaps[place] for each in categories] for place in range(len(OVERLAPS))]
    sends = [sends_overlap(each, columns.num_chunks) & np.ones(len(columns), dtype=bool) for each in overlaps[0]]
    kinds = list(
        zip(overlaps[OVERLAPS.index("overlap_tp_backward")], (e.sequence_parallel for e in categories), strict=True)
    )
    ways = tuple(product(sorted(set(kinds)), RECOMPUTES))
    layouts = place_layouts(cost_model(space.scenario), space.layouts, space.scenario.plan)
    of_layers = tuple(Way(overlap, flag, searched_word(mode, space.scenario.plan)) for (overlap, flag), mode in ways)
    cells, cell = find_cells(layouts, columns.layout, columns.microbatch_size, of_layers, space.slices)
    return Plans(
        layouts,
        price_cells(cells),
        base_plan(space.scenario),
        space.schedule,
        layout=columns.layout[row],
        cell=cell[row],
        way=of_category([ways.index((kind, each.recompute)) for kind, each in zip(kinds, categories, strict=True)]),
        zero_stage=of_category([each.zero_stage for each in categories]),
        num_chunks=columns.num_chunks[row],
        num_microbatches=space.num_microbatches[row],
        overlap_p2p=np.array(sends)[category, row],
        overlap_grad_reduce=of_category(overlaps[1]),
        overlap_param_gather=of_category(overlaps[2]),
    )


def splits_backward(name: str, slices: int = 1) -> bool:
    """Whether weight gradients are actions of their own under a schedule."""
    chosen = get_schedule(name)
    chunks = chosen.chunks if isinstance(chosen.chunks, int) else 1 if chosen.chunks == "one" else 2
    options = {"slices": slices} if "slices" in chosen.options else {}
    rows = [*chosen.rows(4, chunks, 8, **options), *(row for each in chosen.candidates for row in each(4, chunks, 8))]
    return any(bool((row[:, 1] == W).any()) for row in rows)
