"""Plans of one schedule with what is known of their score: a bound for any order, then the price in their own order.

Plans with the same pipeline ranks, chunks and micro-batches have the same order. Where an order repeats those with any
number of micro-batches share what is played of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.errors import ScheduleError
from sim.schedules import Order, build_order
from sim.schedules.build import STEADY
from sim.search.any_order import bound_s, least_memory
from sim.search.in_order import period_s, step_times
from sim.search.order_facts import OrderFacts
from sim.search.rank_kinds import Ranks
from sim.search.split_passes import Field
from sim.search.variants import Variant

Array = np.ndarray


class Refined:
    """All plans of a variant; what is known of them is refined order by order.

    seconds : that the step cannot go below. [s]
    nbytes : that the fullest GPU cannot do with. [bytes]
    order_of : which of the orders each plan has.
    known : of which plans the order has been looked at.
    rough : of which of them more must be played to know what the step takes.
    """

    def __init__(self, variant: Variant) -> None:
        self.field = Field(variant)
        self.variant = variant
        self.ranks = Ranks(self.field, variant.schedule.copies)
        self.seconds = bound_s(self.field, self.ranks)
        self.nbytes = least_memory(self.field, self.ranks)
        self.known = np.zeros(len(self.field), dtype=bool)
        self.rough = np.zeros(len(self.field), dtype=bool)
        _, order_of_row = np.unique(self._order_keys(), axis=1, return_inverse=True)
        self.order_of = order_of_row.ravel()[self.field.row]
        self._grouped = np.argsort(self.order_of, kind="stable")
        self._begins = np.searchsorted(self.order_of[self._grouped], np.arange(self.order_of.max(initial=-1) + 2))

    @property
    def num_gpus(self) -> Array:
        """Of every plan."""
        return np.asarray(self.variant.columns.num_gpus[self.field.row])

    def _order_keys(self) -> Array:
        """What tells the orders of rows apart: ranks, chunks, and the micro-batches that are played."""
        columns, count = self.variant.columns, self.field.num_microbatches
        played = count.copy()
        chosen = self.variant.schedule
        if chosen.period is not None:
            for row in range(len(columns)):
                period = chosen.period(int(columns.pp[row]), int(columns.num_chunks[row]), **self._options)
                kept = STEADY * max(period, int(columns.pp[row]))
                kept += (int(count[row]) - kept) % period
                played[row] = min(played[row], kept)
        return np.stack([columns.pp, columns.num_chunks, played])

    @property
    def _options(self) -> dict[str, Any]:
        return {"slices": self.variant.slices} if "slices" in self.variant.schedule.options else {}

    def refine(self, plan: int, able: Array, limit: float) -> Array:
        """Look at the order of a plan for all plans that have it; those that were looked at.

        able : which plans may still be the best; no others are looked at.
        limit : of a GPU's memory; what needs more is not timed. [bytes]
        """
        here = self._grouped[self._begins[self.order_of[plan]] : self._begins[self.order_of[plan] + 1]]
        self.known[here] = True
        here = here[able[here] & (self.nbytes[here] <= limit)]
        count = self._count(here)
        groups: dict[int, tuple[Order, list[Array], list[Array]]] = {}
        shared: Order | None = None
        for number in np.unique(count)[::-1].tolist():  # the longest first: shorter ones leave out less of it
            chosen = here[count == number]
            times = -1
            if shared is not None and shared.fold is not None and not shared.fold.endless:
                times = shared.fold.times - (shared.num_microbatches // self.variant.slices - number) // shared.fold.period
            if times < 0:
                order = self._order(int(chosen[0]))
                if order is None:
                    self.seconds[chosen] = self.nbytes[chosen] = np.inf
                    continue
                shared, times = order, 0 if order.fold is None else order.fold.times
            assert shared is not None
            group = groups.setdefault(id(shared), (shared, [], []))
            group[1].append(chosen)
            group[2].append(np.full(len(chosen), times))
        for order, plans, left_out in groups.values():
            self._price(OrderFacts(order), np.concatenate(plans), np.concatenate(left_out), limit)
        return here

    def settle(self, plan: int, able: Array) -> Array:
        """Play as much of a plan's order as its estimate does, for all plans that have it; those that were played."""
        same = np.flatnonzero((self.order_of == self.order_of[plan]) & self.rough & able)
        here = same[self._count(same) == self._count(plan)]
        order = self._order(plan)
        assert order is not None, "it was played before"
        times = np.full(len(here), 0 if order.fold is None else order.fold.times)
        seconds, _ = step_times(self.field, self.ranks, OrderFacts(order), here, times)
        self.seconds[here] = np.maximum(self.seconds[here], seconds)
        self.rough[here] = False
        return here

    def _count(self, plans: Array | int) -> Array:
        return np.asarray(self.field.num_microbatches[self.field.row[plans]])

    def _order(self, plan: int) -> Order | None:
        """A plan's order; None where it has too many actions to be played, for an estimate too."""
        row, columns = int(self.field.row[plan]), self.variant.columns
        size = (int(columns.pp[row]), int(columns.num_chunks[row]), int(self.field.num_microbatches[row]))
        try:
            return build_order(self.variant.schedule.name, *size, fold=True, **self._options)
        except ScheduleError:
            return None

    def _price(self, facts: OrderFacts, plans: Array, times: Array, limit: float) -> None:
        for moments in facts.moments:
            needed = self.ranks.memory(moments.kind, plans, moments.alive, moments.logits, moments.versions)
            self.nbytes[plans] = np.maximum(self.nbytes[plans], needed)
        fits = self.nbytes[plans] <= limit
        plans, times = plans[fits], times[fits]
        if not len(plans):
            return
        if self.variant.schedule.asynchronous:
            seconds = period_s(self.field, self.ranks, facts, plans)
        else:
            seconds, exact = step_times(self.field, self.ranks, facts, plans, times)
            self.rough[plans[~exact]] = True
        self.seconds[plans] = np.maximum(self.seconds[plans], seconds)
