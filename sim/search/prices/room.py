"""Chosen rows of a space, each with its own way to need less memory: modules or layers that run again, host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sim.arrays import Bools, Ints, PlanFloats
from sim.pricing.cells import CellPrices, find_cells, price_cells
from sim.pricing.deal import put_together
from sim.search.plans.columns import Category
from sim.search.plans.space import Space
from sim.search.prices.formula import Rows, layouts_with_links, ways_of
from sim.work.recompute import modules_word, searched_word


class ChosenRows:
    """Rows of a space, with or without sequence parallelism, priced in one of several ways each.

    Parameters
    ----------
    rows, category : arrays
        Of the space.
    ways : sequence of Category
        What of them runs again or is kept in host memory. The first does nothing.
    """

    def __init__(self, space: Space, rows: Ints, category: Ints, ways: Sequence[Category]) -> None:
        self.space, self.rows, self.ways = space, rows, tuple(ways)
        columns = space.columns.take(rows)
        there, layout = np.unique(columns.layout, return_inverse=True)
        self._columns = columns.with_layout(layout.ravel())
        self._flag, self._zero = (
            np.array([int(getattr(each, name)) for each in space.categories])[category]
            for name in ("sequence_parallel", "zero_stage")
        )
        self._layouts, self._links = layouts_with_links(space.scenario, space.layouts[there])
        words = tuple(dict.fromkeys((*map(self._word, self.ways), "full")))
        layers = tuple(dict.fromkeys(way.offloaded_layers for way in self.ways))
        again = [(word, each) for each in layers for word in words]
        of_layers = ways_of(space.categories, again)
        columns = self._columns
        cells, self._cell = find_cells(self._layouts, columns.layout, columns.microbatch_size, of_layers)
        self._prices = price_cells(cells)
        self._shares = np.array(list(dict.fromkeys(way.optimizer_offload for way in self.ways)))
        self._share_of = np.array([self._shares.tolist().index(way.optimizer_offload) for way in self.ways])
        self._again_of = np.array([again.index((self._word(way), way.offloaded_layers)) for way in self.ways])

    def _word(self, way: Category) -> str:
        return modules_word(way.modules) if way.modules else searched_word(way.recompute, self.space.scenario.plan)

    @cached_property
    def dominates(self) -> Bools:
        """(ways, ways): whether the first, where it fits, makes the second pointless."""
        kinds = list(dict.fromkeys(way.runs_again for way in self.ways))
        within = np.array([[one <= other for other in kinds] for one in kinds])
        kind = np.array([kinds.index(way.runs_again) for way in self.ways])
        share, layers = self._shares[self._share_of], np.array([way.offloaded_layers for way in self.ways])
        less = (share[:, np.newaxis] <= share) & (layers[:, np.newaxis] <= layers)
        # What runs again is not copied, and hides copies: that may pay where there are some.
        found = less & (within[np.ix_(kind, kind)] & (layers == 0)[:, np.newaxis] | (kind[:, np.newaxis] == kind))
        np.fill_diagonal(found, False)
        return np.asarray(found)

    def _rows(self, places: Ints, prices: CellPrices, cell: Ints, again: Ints | None = None) -> Rows:
        columns, flag = self._columns.take(places), self._flag[places]
        return Rows(self.space.scenario, self._layouts, self._links, prices, columns, cell, flag, again)

    def memory_bytes(self, places: Ints) -> PlanFloats:
        """Peak memory of some rows in every way to make room; array (ways, rows).  [bytes]"""
        rows = self._rows(places, self._prices, self._cell[places])
        nbytes = rows.memory_bytes(self._zero[places], self._shares[:, np.newaxis, np.newaxis])
        return np.asarray(nbytes[self._share_of, self._again_of])

    def step_times(self, places: Ints, ways: Ints, overlaps: Sequence[Any]) -> PlanFloats:
        """Step times of rows, each with a way of its own to make room.  [s]"""
        found, share = np.empty(len(places)), self._share_of[ways]
        for number in np.unique(share).tolist():
            here = np.flatnonzero(share == number)
            some = places[here]
            rows = self._rows(some, self._prices, self._cell[some], self._again_of[ways[here]][np.newaxis])
            found[here] = rows.step_time(self._zero[some], overlaps, float(self._shares[number]))[0]
        return found

    def rank_work(self, places: Ints) -> tuple[PlanFloats, PlanFloats, PlanFloats]:
        """Forward and backward of one micro-batch, without ZeRO's traffic: on the average rank, and on the busiest; and
        the largest share of a block that is its forward. [s, s, -]"""
        rows = self._rows(places, self._prices, self._cell[places], np.zeros((1, len(places)), dtype=np.int64))
        batch = rows.batch
        forward, backward = (table[:, 0, batch.way, batch.cell] for table in self._prices.total_s[:2])
        both = forward + backward
        first, middle, last, *longer = put_together(rows.deal.stage_kinds, both)[:, 0, 0]
        pp, more = self._columns.pp[places], self._columns.num_chunks[places] - 1
        longest = np.where(rows.longer > 0, longer[0], middle) if longer else middle
        between = np.maximum(pp - 2, 0)
        ranks = first + more * middle, (1 + more) * longest, last + more * middle
        whole = ranks[0] + ranks[2] + between * (1 + more) * middle + rows.longer * (longest - middle)
        busiest = np.maximum(np.maximum(ranks[0], ranks[2]), np.where(between > 0, ranks[1], 0.0))
        share = (forward / np.maximum(both, 1e-30)).max(axis=0)[0, 0]
        return np.asarray(whole / pp), busiest, np.asarray(share)

    def blocks(
        self,
        places: Ints,
        overlaps: Sequence[Any],
        limit_bytes: float,
        allowed: Callable[[Ints, Ints], Bools] = lambda places, layers: np.ones(len(places), dtype=bool),
    ) -> tuple[Ints, Ints, PlanFloats, PlanFloats]:
        """The fewest layers of every virtual stage that make rows fit when they run again, whole, and the others not.

        Parameters
        ----------
        allowed : callable
            Whether rows may do so with some numbers of layers.

        Returns
        -------
        rows, layers : arrays
            Places of those that fit so, and with how many; without those that need none, or all.
        seconds, bytes : arrays
            Of these. [s], [bytes]
        """
        model = self.space.scenario.model
        stages = self._columns.pp * self._columns.num_chunks

        def priced(chosen: Ints, number: Ints) -> Rows:
            prices = self._prices.mixed(self._cell[chosen], number * stages[chosen] / model.num_layers)
            return self._rows(chosen, prices, np.arange(len(chosen)))

        def needed(chosen: Ints, number: Ints) -> PlanFloats:
            return np.asarray(priced(chosen, number).memory_bytes(self._zero[chosen])[0, 0])

        most = -(-model.num_layers // stages) - 1  # one less than all
        able = places[most[places] >= 1]
        if not len(able):
            return able, able, np.empty(0), np.empty(0)
        # Memory is a convex function of the layers, so that a chord lies above it: the layers it gives are enough.
        one, last = needed(able, np.ones_like(able)), needed(able, most[able])
        slope = (one - last) / np.maximum(most[able] - 1, 1)
        more = np.ceil((one - limit_bytes) / np.maximum(slope, 1.0) - 1e-9)
        number = 1 + np.clip(more, 0, most[able] - 1).astype(np.int64)
        able, number = able[last <= limit_bytes], number[last <= limit_bytes]
        fewer = np.flatnonzero(number > 1)
        while len(fewer):
            fewer = fewer[needed(able[fewer], number[fewer] - 1) <= limit_bytes]
            number[fewer] -= 1
            fewer = fewer[number[fewer] > 1]
        refused = np.flatnonzero(~allowed(able, number))
        while len(refused):
            number[refused] += 1
            refused = refused[number[refused] <= most[able[refused]]]
            refused = refused[~allowed(able[refused], number[refused])]
        able, number = able[number <= most[able]], number[number <= most[able]]
        if not len(able):
            return able, able, np.empty(0), np.empty(0)
        rows = priced(able, number)
        return able, number, rows.step_time(self._zero[able], overlaps)[0], rows.memory_bytes(self._zero[able])[0, 0]
