"""Forward, backward and its weight-gradient half of the stages of many plans, whatever their categories.

The blocks of a plan are looked up by its cell and category: `sim.search.prices.stages` puts together those of all rows
of one category, this those of any plans of any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.costs.block import cut_of, pricing
from sim.costs.stage import send_seconds
from sim.costs.zero import zero_traffic
from sim.search.plans.columns import RECOMPUTES, Category, stack_of, table
from sim.search.prices.facts import Facts, gather_facts
from sim.search.prices.held import AtSpots
from sim.search.prices.stages import cell_scenario, of_stages, price_blocks, stacked
from sim.search.schedules.variants import Variant

Array = np.ndarray
FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages, on the first axis of what follows; the only stage of all is of the first kind."""


@dataclass(frozen=True, slots=True)
class SplitPasses:
    """Seconds of one micro-batch, over kinds of stages and plans. [s]

    near, far : one send inside an NVLink domain, and to another one; over plans.
    """

    forward: Array
    backward: Array
    weight: Array
    near: Array
    far: Array


class Field:
    """All plans of a variant, with what of their costs the order does not change.

    row, category : of every plan.
    """

    def __init__(self, variant: Variant) -> None:
        self.variant, self.scenario = variant, variant.space.scenario
        self.row, self.category = variant.plans
        _, self.compute, self.fabric = pricing(self.scenario)
        self.facts: Facts = gather_facts(variant.space, variant.columns)
        categories = variant.space.categories
        self.zero_stage = _column(categories, "zero_stage")[self.category]
        self.sequence_parallel = _column(categories, "sequence_parallel")[self.category]
        self.recompute = np.array([RECOMPUTES.index(each.recompute) for each in categories])[self.category]
        overlaps = np.array([each.overlaps for each in categories], dtype=bool)[self.category].T
        self.overlap_p2p, self.overlap_reduce, self.overlap_gather, self.overlap_tp = overlaps
        self.num_microbatches = variant.num_microbatches
        # A head on a rank of several stages has a copy of a tied table of its own, as where there are several ranks.
        spots = self.facts.spots
        if variant.schedule.chunks != "one":
            spots = replace(spots, pp=np.maximum(spots.pp, 2))
        self.at_spots = AtSpots(self.scenario, spots, self.compute, self.fabric)
        self._blocks = self._look_up()

    def __len__(self) -> int:
        return len(self.row)

    def _look_up(self) -> tuple[list[Array], Array]:
        """Of each block forward, backward and weight gradient over (overlap, sequence parallel, recompute, cell)."""
        cells = self.facts.cells
        shape = (3, 2, 2, len(RECOMPUTES), len(cells.tp))
        kinds = 4 if self.scenario.model.num_dense_layers else 3
        blocks = [np.zeros(shape) for _ in range(kinds)]
        sends = np.zeros((2, 2, len(cells.tp)))
        for beside, flag in {*zip(self.overlap_tp.tolist(), self.sequence_parallel.tolist(), strict=True)}:
            stack = stack_of(self.scenario.stack, (self.scenario.stack.overlap_p2p, False, False, beside))
            given = cell_scenario(self.scenario, stack, cells, flag, sequence_slices=self.variant.slices)
            priced = price_blocks(given, cells, RECOMPUTES, self.compute, self.fabric)
            for block, costs in zip(blocks, priced, strict=True):
                for number, name in enumerate(("forward_s", "backward_s", "weight_grad")):
                    block[number, int(beside), int(flag)] = stacked(costs, name, cells)
            for number, seconds in enumerate(send_seconds(given, cut_of(given), cells.tensor, self.fabric)):
                sends[number, int(flag)] = seconds
        return blocks, sends

    def passes(self, plans: Array, visits: Array) -> SplitPasses:
        """What the stages of some plans take where a step turns so many times to each."""
        row = self.row[plans]
        columns = self.variant.columns.take(row)
        cell, flag = self.facts.cell[row], self.sequence_parallel[plans].astype(int)
        looked_up, sends = self._blocks
        place = (slice(None), self.overlap_tp[plans].astype(int), flag, self.recompute[plans], cell)
        blocks = [block[place] for block in looked_up]
        for zero_stage in (2, 3):
            self._add_zero(blocks, plans, zero_stage, visits)
        stages = np.stack(of_stages(self.scenario, columns, *blocks), axis=1)
        stages[0] += self.scenario.stack.forward_setup_s
        near, far = sends[:, flag, cell] * (columns.pp > 1)
        return SplitPasses(stages[0], stages[1], stages[2], near, far)

    def _add_zero(self, blocks: list[Array], plans: Array, zero_stage: int, visits: Array) -> None:
        """What ZeRO moves at every visit, put on forward and backward of the blocks."""
        of_stage = np.flatnonzero(self.zero_stage[plans] == zero_stage)
        if not len(of_stage):
            return
        flags = 2 * self.overlap_reduce[plans] + self.overlap_gather[plans]
        for flag in np.unique(flags[of_stage]).tolist():
            here = of_stage[flags[of_stage] == flag]
            row = self.row[plans[here]]
            stack = stack_of(
                self.scenario.stack,
                (self.scenario.stack.overlap_p2p, flag >= 2, bool(flag % 2), self.scenario.stack.overlap_tp_backward),
            )
            given = table(self.scenario, stack, zero_stage=zero_stage)
            sharded = self.at_spots.sharded(zero_stage, self.variant.columns.layout[row])
            for block, each in zip(blocks, sharded, strict=True):
                forward, backward = block[0, here], block[1, here]
                more = zero_traffic(
                    forward, backward, each, given, self.fabric, visits[here], self.num_microbatches[row]
                )
                block[0, here], block[1, here] = forward + more[0], backward + more[1]


def _column(categories: tuple[Category, ...], name: str) -> Array:
    return np.array([getattr(each, name) for each in categories])
