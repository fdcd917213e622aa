"""What of each row no category changes: where its groups lie, which sends leave an NVLink domain, what it shares.

Rows that differ only in what a price does not depend on share it: all rows of a *cell* cut a layer the same way and
have the same micro-batch, all rows of a *spot* hold the same parameters and sum them over the same GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sim.costs.zero import zero_visits
from sim.network.placement import (
    Group,
    context_group,
    data_group,
    expert_data_group,
    expert_group,
    tensor_group,
)
from sim.search.plans.columns import Columns, PlanTable
from sim.search.plans.space import Space
from sim.search.prices.links import Links, find_links

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Cells:
    """Every cut and micro-batch there is, and how the groups of its layers lie; arrays over cells."""

    tp: Array
    cp: Array
    ep: Array
    microbatch_size: Array
    tensor: Group
    context: Group
    experts: Group


@dataclass(frozen=True, slots=True)
class Spots:
    """Every layout twice: where ZeRO moves a stage's weights and gradients once a step, and where more often."""

    tp: Array
    pp: Array
    cp: Array
    dp: Array
    ep: Array
    data: Group
    data_of_experts: Group
    visits: Array


@dataclass(frozen=True, slots=True)
class Facts:
    """What rows need beside their own numbers.

    cell, spot : which of `cells` and of `spots` each row has.
    num_microbatches, visits : as in `sim.costs.stage.stage_costs`.
    """

    columns: Columns
    links: Links
    cell: Array
    cells: Cells
    spot: Array
    spots: Spots
    num_microbatches: Array
    visits: Array

    def take(self, rows: Array) -> Facts:
        """Some of the rows."""
        return Facts(
            self.columns.take(rows),
            self.links.take(rows),
            self.cell[rows],
            self.cells,
            self.spot[rows],
            self.spots,
            self.num_microbatches[rows],
            self.visits[rows],
        )


def gather_facts(space: Space, columns: Columns) -> Facts:
    """Look up once a layout what these rows of a space need."""
    cluster = space.scenario.cluster
    plans: list[Any] = [PlanTable(False, False, *numbers) for numbers in space.layouts.tolist()]
    places = (tensor_group, context_group, expert_group, data_group, expert_data_group)
    tensor, context, experts, data, data_of_experts = (
        _stack([place(plan, cluster) for plan in plans]) for place in places
    )
    widths = [(plan.tp * plan.num_replicas, plan.pp) for plan in plans]
    layout = columns.layout
    cell, cells = _cells(space, columns, tensor, context, experts)
    num_microbatches = space.scenario.training.global_batch_size // (columns.dp * columns.microbatch_size)
    # Interleaved, a rank turns to a chunk once a round of pp micro-batches.
    visits = zero_visits(columns.num_chunks, num_microbatches, num_microbatches // columns.pp)
    twice = np.tile(np.arange(len(plans)), 2)
    tp, cp, pp, dp, ep = space.layouts[twice].T
    spots = Spots(
        tp, pp, cp, dp, ep, take_group(data, twice), take_group(data_of_experts, twice), np.repeat([1, 2], len(plans))
    )
    return Facts(
        columns,
        find_links(widths, cluster).take(layout),
        cell,
        cells,
        layout + len(plans) * (visits > 1),
        spots,
        num_microbatches,
        visits,
    )


def take_group(group: Group, rows: Array) -> Group:
    """The groups of some of the rows."""
    return Group(*(np.asarray(getattr(group, field.name))[rows] for field in fields(Group)))


def _stack(groups: list[Group]) -> Group:
    """Groups as one whose numbers are arrays."""
    return Group(*(np.array([getattr(group, field.name) for group in groups]) for field in fields(Group)))


def _cells(space: Space, columns: Columns, *groups: Group) -> tuple[Array, Cells]:
    """The cell of every row, and all cells, by how their tensor-, context- and expert-parallel groups lie."""
    lies = [getattr(group, name) for group in groups for name in ("per_domain", "spans", "shares_network")]
    tp, cp, _, _, ep = space.layouts.T
    cuts = np.stack([tp, cp, ep, *lies], axis=1)
    _, first, cut = np.unique(cuts, axis=0, return_index=True, return_inverse=True)
    sizes, size = np.unique(columns.microbatch_size, return_inverse=True)
    codes, cell = np.unique(cut.ravel()[columns.layout] * len(sizes) + size, return_inverse=True)
    layout = first[codes // len(sizes)]
    placed = (take_group(group, layout) for group in groups)
    return cell, Cells(tp[layout], cp[layout], ep[layout], sizes[codes % len(sizes)].astype(float), *placed)
