"""Plans of one schedule with what is known of their score: a bound for any order, then the price in their own order.

Plans with the same pipeline ranks, chunks and micro-batches have the same order. Where an order repeats those with any
number of micro-batches share what is played of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.errors import ScheduleError
from sim.pricing.deal import deal_of
from sim.schedules import Order, build_order
from sim.schedules.actions import W
from sim.schedules.build import STEADY
from sim.search.candidate import ROUNDING
from sim.search.plans.layouts import LAYOUT
from sim.search.schedules.lower_bounds import least_memory, least_step_s
from sim.search.schedules.order_times import SharedOrder
from sim.search.schedules.variants import Variant
from sim.search.table import CHOICES, ROOM, value_of
from sim.specs import ParallelPlan
from sim.specs.modules import as_names

FIRST_LOOK, LATER_LOOK = 32, 512
"""Plans of an order that are priced at once: few at first, as the best of them rules most others out."""


class Refined:
    """All plans of a variant; what is known of them is refined order by order.

    seconds : that the step cannot go below. [s]
    nbytes : that the fullest GPU cannot do with. [bytes]
    known : of which plans the order has been looked at.
    rough : of which of them more must be played to know what the step takes.
    """

    def __init__(self, variant: Variant, objective: str, limit: float) -> None:
        self.variant, self.batch = variant, variant.batch
        self.row, self.category = variant.plans
        self.objective, self.limit = objective, limit
        self.seconds = least_step_s(variant)
        self.nbytes = least_memory(variant)
        self._named = np.ones(len(self.row), dtype=bool)
        self._looked_at = np.zeros(len(self.row), dtype=bool)
        self.known = np.zeros(len(self.row), dtype=bool)
        self.rough = np.zeros(len(self.row), dtype=bool)
        self._num_gpus = variant.columns.num_gpus[self.row]
        _, order_of_row = np.unique(self._order_keys(), axis=1, return_inverse=True)
        self._order_of = order_of_row.ravel()[self.row]
        self._made: dict[int, SharedOrder] = {}
        self._grouped = np.argsort(self._order_of, kind="stable")
        self._begins = np.searchsorted(self._order_of[self._grouped], np.arange(self._order_of.max(initial=-1) + 2))

    @property
    def decided(self) -> bool:
        """Whether a plan's order is one of its candidates, and so its step time one of theirs."""
        chosen = self.variant.schedule
        return not chosen.asynchronous and not (chosen.candidates and self.variant.splits)

    @property
    def num_plans(self) -> int:
        """With the fields that are named."""
        return int(self._named.sum())

    @property
    def leanest(self) -> float:
        """Of them, fewest bytes that any plan cannot do with. [bytes]"""
        return float(self.nbytes[self._named].min(initial=np.inf))

    def restrict(self, named: Mapping[str, Any]) -> None:
        """Leave out all plans but those with these fields; what is known of them stays known."""
        self._named, self.known = self._with(named), self._looked_at.copy()

    def _with(self, named: Mapping[str, Any]) -> Array:
        """Which plans have these fields."""
        match = np.ones(len(self.row), dtype=bool)
        for name, value in named.items():
            if name in (*CHOICES, *ROOM):
                space = self.variant.space
                wanted = as_names(value) if name == "recompute_modules" else value
                able = np.array([value_of(each, name, space.scenario.plan) == wanted for each in space.categories])
                match &= able[self.category]
            else:
                match &= getattr(self.variant.columns, name)[self.row] == value
        return match

    def score(self, plans: Array | slice = slice(None)) -> Array:
        """What the objective makes smallest, or what it cannot go below; infinite where a plan does not fit."""
        return self._worth(plans, self.seconds[plans], self.nbytes[plans])

    def _worth(self, plans: Array | slice, seconds: Array, nbytes: Array) -> Array:
        """Score of plans that took so long and so much memory; infinite where they do not fit."""
        score = seconds * (self._num_gpus[plans] if self.objective == "cost" else 1)
        score = nbytes if self.objective == "memory_headroom" else score
        return np.asarray(np.where((nbytes <= self.limit) & self._named[plans], score, np.inf))

    def like(self, plan: ParallelPlan) -> int | None:
        """Of the plans with this layout and micro-batch, in the fewest chunks, that with the lowest score; or None."""
        columns = self.variant.columns
        rows = np.ones(len(columns), dtype=bool)
        for name in (*LAYOUT, "microbatch_size"):
            rows &= getattr(columns, name) == getattr(plan, name)
        plans = np.flatnonzero(rows[self.row])
        chunks, score = columns.num_chunks[self.row[plans]], self.score(plans)
        order = np.lexsort((score, chunks))[: len(plans) * bool(np.isfinite(score).any())]
        return int(plans[order[0]]) if len(order) else None

    def refine(self, plan: int, ceiling: float) -> tuple[Array, float]:
        """Look at the order of a plan for all plans that have it and whose score is below the ceiling.

        Returns
        -------
        plans : array
            That were looked at.
        ceiling : float
            The lower score that one of them is known to reach.
        """
        group = self._order_of[plan]
        here = self._grouped[self._begins[group] : self._begins[group + 1]]
        self.known[here] = True
        self._made.clear()
        here = here[np.argsort(self.score(here), kind="stable")]
        looked_at, begin, size = [], 0, FIRST_LOOK
        while begin < len(here):
            some = here[begin : begin + size]
            begin, size = begin + size, LATER_LOOK
            some = some[self.score(some) < ceiling]
            if not len(some):
                break
            ceiling = min(ceiling, self._look_at(some))
            looked_at.append(some)
        return np.concatenate([*looked_at, here[:0]]), ceiling

    def settle(self, plan: int, ceiling: float) -> Array:
        """Play as much of a plan's order as its estimate does, for all plans that have it; those that were played."""
        same = np.flatnonzero((self._order_of == self._order_of[plan]) & self.rough)
        here = same[(self._count(same) == self._count(plan)) & (self.score(same) < ceiling)]
        orders = [self._order(plan, which) for which in self._candidates]
        left_out = (np.full(len(here), 0 if each.fold is None else each.fold.times) for each in orders)
        seconds = [
            self._step_times(here, each, times, thorough=True)[0] for each, times in zip(orders, left_out, strict=True)
        ]
        self.seconds[here] = np.maximum(self.seconds[here], np.min(seconds, axis=0))
        self.rough[here] = False
        return np.asarray(here)

    @property
    def _options(self) -> dict[str, Any]:
        return {"slices": self.variant.slices} if "slices" in self.variant.schedule.options else {}

    @property
    def _candidates(self) -> Sequence[int | None]:
        """Orders from which the schedule chooses by what things take; None: it has one."""
        return range(len(self.variant.schedule.candidates)) if self.variant.schedule.candidates else (None,)

    def _order_keys(self) -> Array:
        """What tells the orders of rows apart: ranks, chunks, and the micro-batches that are played."""
        columns, count, chosen = self.variant.columns, self.variant.num_microbatches, self.variant.schedule
        played = count.copy()
        for row in range(len(columns)):
            if chosen.period is None:
                break
            pp = int(columns.pp[row])
            period = chosen.period(pp, int(columns.num_chunks[row]), **self._options)
            kept = STEADY * max(period, pp)
            played[row] = min(count[row], kept + (int(count[row]) - kept) % period)
        return np.stack([columns.pp, columns.num_chunks, played])

    def _count(self, plans: Array | int) -> Array:
        return np.asarray(self.batch.num_microbatches[plans])

    def _order(self, plan: int, candidate: int | None) -> Order:
        row, columns, options = int(self.row[plan]), self.variant.columns, dict(self._options)
        if candidate is not None:
            options["candidate"] = candidate
        size = (int(columns.pp[row]), int(columns.num_chunks[row]), int(self.variant.num_microbatches[row]))
        return build_order(self.variant.schedule.name, *size, fold=True, **options)

    def _look_at(self, plans: Array) -> float:
        """Refine what is known of some plans; a score that one of them reaches."""
        try:
            found = [self._priced(plans, which) for which in self._candidates]
        except ScheduleError:  # too many actions to be played, for an estimate too
            self.nbytes[plans] = np.inf
            return np.inf
        seconds, nbytes, exact = (np.stack(each) for each in zip(*found, strict=True))
        self._looked_at[plans] = True
        self.seconds[plans] = np.maximum(self.seconds[plans], seconds.min(axis=0))
        self.nbytes[plans] = np.maximum(self.nbytes[plans], nbytes.min(axis=0))
        self.rough[plans] = ~exact.all(axis=0)
        # Weight gradients stand elsewhere in every plan, and an order without a flush is steady at some time only.
        if not self.decided:
            return np.inf
        # Of several orders it is one or the other.
        reached = self._worth(plans, seconds.max(axis=0), nbytes.max(axis=0))[~self.rough[plans]]
        return float(reached.min(initial=np.inf)) * (1 + ROUNDING)

    def _priced(self, plans: Array, candidate: int | None) -> tuple[Array, Array, Array]:
        """(step times, bytes, whether the time is exact) in one order. [s], [bytes]"""
        seconds, nbytes = np.full(len(plans), np.inf), np.zeros(len(plans))
        exact = np.ones(len(plans), dtype=bool)
        for places, order, times in self._sharing(plans, candidate):
            some = plans[places]
            nbytes[places] = self._shared(order, int(some[0])).nbytes(self.batch.take(some))
            fits = np.flatnonzero(nbytes[places] <= self.limit)
            if len(fits):
                seconds[places[fits]], exact[places[fits]] = self._step_times(some[fits], order, times[fits])
        return seconds, nbytes, exact

    def _sharing(self, plans: Array, candidate: int | None) -> Iterator[tuple[Array, Order, Array]]:
        """(places, order, repetitions left out of it) of plans that share what is played of an order."""
        count = self._count(plans)
        left = np.arange(len(plans))
        while len(left):
            most = int(count[left].max())  # shorter ones leave out less of it
            order = self._order(int(plans[left[count[left] == most][0]]), candidate)
            if order.fold is None or order.fold.endless:
                times = np.where(count[left] == most, 0, -1)
            else:
                times = order.fold.times - (most - count[left]) // order.fold.period
            yield left[times >= 0], order, times[times >= 0]
            left = left[times < 0]

    def _shared(self, order: Order, plan: int) -> SharedOrder:
        """An order with what it says of its plans, of which this is one, kept while these are looked at."""
        if id(order) not in self._made:
            scenario = self.variant.scenario_of(int(self.row[plan]), int(self.category[plan]))
            deal = deal_of(scenario.model, scenario.plan, order.rank_of_stage, order.copies)
            floating = bool(self.variant.schedule.candidates) and bool((order.kind == W).any())
            self._made[id(order)] = SharedOrder(self.variant, order, deal, floating)
        return self._made[id(order)]

    def _step_times(self, plans: Array, order: Order, times: Array, thorough: bool = False) -> tuple[Array, Array]:
        shared, batch = self._shared(order, int(plans[0])), self.batch.take(plans)
        if self.variant.schedule.asynchronous:
            return shared.period_s(batch), np.ones(len(plans), dtype=bool)
        return shared.step_times(batch, times, thorough)
