"""Plans of one schedule with what is known of their score: a bound for any order, then the price in their own order.

Plans with the same pipeline ranks, chunks and micro-batches have the same order. Where an order repeats those with any
number of micro-batches share what is played of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.errors import ScheduleError
from sim.pricing.deal import deal_of
from sim.pricing.layouts import LAYOUT, place_layouts
from sim.schedules import Order, build_order, get_schedule
from sim.schedules.actions import U, W
from sim.schedules.build import STEADY
from sim.schedules.registry import is_file
from sim.search.candidate import ROUNDING
from sim.search.plans.space import Space, columns_of
from sim.search.prices.formula import plan_batch
from sim.search.schedules.lower_bounds import least_memory, least_step_s, splits_backward
from sim.search.schedules.order_times import SharedOrder
from sim.specs import ParallelPlan, Scenario

FIRST_LOOK, LATER_LOOK = 32, 512
"""Plans of an order that are priced at once: few at first, as the best of them rules most others out."""


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
    length, names = space.scenario.training.sequence_length, (chosen.name,)
    slices = [each for each in SLICES if length % each == 0] if "slices" in chosen.options else [1]
    of_slices = [(each, columns_of(space.scenario, space.layouts, names, each)) for each in slices]
    found = [replace(space, columns=columns, schedules=names, slices=each) for each, columns in of_slices]
    return [each for each in found if len(each.plans[0])]


class Refined:
    """All plans of a space under one schedule; what is known of them is refined order by order.

    seconds : that the step cannot go below. [s]
    nbytes : that the fullest GPU cannot do with. [bytes]
    rough : of which plans more must be played to know what the step takes.
    """

    def __init__(self, space: Space, objective: str, limit: float) -> None:
        self.space, self.schedule = space, get_schedule(space.schedules[0])
        self.row, self.category = space.plans
        layouts = place_layouts(space.scenario, space.layouts)
        self.batch = plan_batch(space, layouts, self.row, self.category)
        self.objective, self.limit = objective, limit
        self.seconds = least_step_s(self.batch, space.slices)
        self.nbytes = least_memory(self.batch)
        self._looked_at = np.zeros(len(self.row), dtype=bool)
        self.rough = np.zeros(len(self.row), dtype=bool)
        self._num_gpus = space.gpus_of(self.row)
        _, order_of_row = np.unique(self._order_keys(), axis=1, return_inverse=True)
        self.order_of = order_of_row.ravel()[self.row]
        self._made: dict[int, SharedOrder] = {}
        self._grouped = np.argsort(self.order_of, kind="stable")
        self._begins = np.searchsorted(self.order_of[self._grouped], np.arange(self.order_of.max(initial=-1) + 2))

    @property
    def decided(self) -> bool:
        """Whether a plan's order is one of its candidates, and so its step time one of theirs."""
        chosen = self.schedule
        return not chosen.asynchronous and not (chosen.candidates and splits_backward(chosen.name, self.space.slices))

    @property
    def num_plans(self) -> int:
        """How many plans there are."""
        return len(self.row)

    @property
    def leanest(self) -> float:
        """Memory that no plan of these needs less than. [bytes]"""
        return float(self.nbytes.min(initial=np.inf))

    def scenario_of(self, plan: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        return self.space.scenario_of(int(self.row[plan]), self.space.categories[int(self.category[plan])])

    def orders(self) -> Iterator[tuple[int, float]]:
        """Every order of a plan that fits, as a number, with the lowest score of the plans that have it."""
        least = np.full(len(self._begins) - 1, np.inf)
        np.minimum.at(least, self.order_of, self.score())
        return ((group, float(least[group])) for group in np.flatnonzero(np.isfinite(least)).tolist())

    def score(self, plans: Array | slice = slice(None)) -> Array:
        """What the objective makes smallest, or what it cannot go below; infinite where a plan does not fit."""
        return self._worth(plans, self.seconds[plans], self.nbytes[plans])

    def _worth(self, plans: Array | slice, seconds: Array, nbytes: Array) -> Array:
        """Score of plans that took so long and so much memory; infinite where they do not fit."""
        score = seconds * (self._num_gpus[plans] if self.objective == "cost" else 1)
        score = nbytes if self.objective == "memory_headroom" else score
        return np.asarray(np.where(nbytes <= self.limit, score, np.inf))

    def order_like(self, plan: ParallelPlan) -> int | None:
        """The order of the plan that has this layout and micro-batch in the fewest chunks; of several the best's."""
        rows, _ = self.space.masks({name: getattr(plan, name) for name in (*LAYOUT, "microbatch_size")})
        plans = np.flatnonzero(rows[self.row])
        chunks, score = self.space.columns.num_chunks[self.row[plans]], self.score(plans)
        order = np.lexsort((score, chunks))[: len(plans) * bool(np.isfinite(score).any())]
        return int(self.order_of[plans[order[0]]]) if len(order) else None

    def refine(self, order: int, ceiling: float) -> tuple[Array, float]:
        """Look at an order for all plans that have it and whose score is below the ceiling.

        Returns
        -------
        plans : array
            That were looked at, now or before.
        ceiling : float
            The lower score that one of them is known to reach.
        """
        here = self._grouped[self._begins[order] : self._begins[order + 1]]
        before = here[self._looked_at[here]]
        here = here[~self._looked_at[here]]
        self._made.clear()
        here = here[np.argsort(self.score(here), kind="stable")]
        looked_at, begin, size = [before], 0, FIRST_LOOK
        while begin < len(here):
            some = here[begin : begin + size]
            begin, size = begin + size, LATER_LOOK
            some = some[self.score(some) < ceiling]
            if not len(some):
                break
            ceiling = min(ceiling, self._look_at(some))
            looked_at.append(some)
        return np.concatenate(looked_at), ceiling

    def settle(self, plan: int, ceiling: float) -> Array:
        """Play as much of a plan's order as its estimate does, for all plans that have it; those that were played."""
        same = np.flatnonzero((self.order_of == self.order_of[plan]) & self.rough)
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
        return {"slices": self.space.slices} if "slices" in self.schedule.options else {}

    @property
    def _candidates(self) -> Sequence[int | None]:
        """Orders from which the schedule chooses by what things take; None: it has one."""
        return range(len(self.schedule.candidates)) if self.schedule.candidates else (None,)

    def _order_keys(self) -> Array:
        """What tells the orders of rows apart: ranks, chunks, and the micro-batches that are played."""
        columns, count, chosen = self.space.columns, self.space.num_microbatches, self.schedule
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
        row, columns, options = int(self.row[plan]), self.space.columns, dict(self._options)
        if candidate is not None:
            options["candidate"] = candidate
        size = (int(columns.pp[row]), int(columns.num_chunks[row]), int(self.space.num_microbatches[row]))
        return build_order(self.schedule.name, *size, fold=True, **options)

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
            scenario = self.scenario_of(plan)
            deal = deal_of(scenario.model, scenario.plan, order.rank_of_stage, order.copies)
            floating = bool(self.schedule.candidates) and bool((order.kind == W).any())
            self._made[id(order)] = SharedOrder(order, deal, floating, self.schedule.staggered)
        return self._made[id(order)]

    def _step_times(self, plans: Array, order: Order, times: Array, thorough: bool = False) -> tuple[Array, Array]:
        shared, batch = self._shared(order, int(plans[0])), self.batch.take(plans)
        if self.schedule.asynchronous:
            return shared.period_s(batch), np.ones(len(plans), dtype=bool)
        return shared.step_times(batch, times, thorough)
