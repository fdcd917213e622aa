"""Plans of one schedule with what their step and their memory cannot go below: for any order, then memory in theirs.

Plans with the same pipeline ranks, chunks and micro-batches have the same order. Where an order repeats, those with any
number of micro-batches keep as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sim.arrays import Array, Ints, PlanFloats
from sim.engines.order_facts import OrderFacts
from sim.errors import ScheduleError
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, deal_of, params_of
from sim.pricing.layouts import place_layouts
from sim.pricing.memory import peak_memory, stage_bytes
from sim.schedules import Order, build_order, get_schedule
from sim.schedules.actions import U, W
from sim.schedules.build import STEADY
from sim.schedules.registry import is_file
from sim.search.plans.space import Space, columns_of
from sim.search.prices.formula import plan_batch
from sim.search.schedules.lower_bounds import LeastSteps, least_memory
from sim.specs import Scenario

SLICES = (2, 4, 8)
"""Parts of a sequence that are tried under a schedule that cuts sequences."""


def spaces_under(space: Space, name: str) -> list[Space]:
    """The space under a schedule, once for each number of sequence slices; those that have plans.

    Raises ScheduleError: there is no such schedule, or it is a grid with updates in it, whose steps have no end.
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


class BoundedPlans:
    """All plans of a space under one schedule.

    seconds : that the step cannot go below. [s]
    nbytes : that the fullest GPU cannot do with. [bytes]
    """

    def __init__(self, space: Space, objective: str, limit: float) -> None:
        self.space, self.schedule = space, get_schedule(space.schedules[0])
        self.row, self.category = space.plans
        self.batch = plan_batch(space, place_layouts(space.scenario, space.layouts), self.row, self.category)
        self.objective, self.limit = objective, limit
        self.least = LeastSteps(self.batch, space.slices)
        self.seconds, self.nbytes = self.least.step_s.copy(), least_memory(self.batch)
        self._num_gpus = space.gpus_of(self.row)
        _, order_of_row = np.unique(self._order_keys(), axis=1, return_inverse=True)
        self.order_of = order_of_row.ravel()[self.row]
        self._grouped = np.argsort(self.order_of, kind="stable")
        self._begins = np.searchsorted(self.order_of[self._grouped], np.arange(self.order_of.max(initial=-1) + 2))

    def scenario_of(self, plan: int) -> Scenario:
        """One plan as a scenario that can be estimated."""
        return self.space.scenario_of(int(self.row[plan]), self.space.categories[int(self.category[plan])])

    def orders(self) -> Iterator[tuple[float, int]]:
        """The lowest score of the plans that have an order, and the order's number; of all orders of plans that fit."""
        least = np.full(len(self._begins) - 1, np.inf)
        np.minimum.at(least, self.order_of, self.score())
        return ((float(least[order]), order) for order in np.flatnonzero(np.isfinite(least)).tolist())

    def score(self, plans: Array | slice = slice(None)) -> Array:
        """What the objective makes smallest, or what it cannot go below; infinite where a plan does not fit."""
        seconds, nbytes = self.seconds[plans], self.nbytes[plans]
        score = seconds * (self._num_gpus[plans] if self.objective == "cost" else 1)
        score = nbytes if self.objective == "memory_headroom" else score
        return np.asarray(np.where(nbytes <= self.limit, score, np.inf))

    def weigh(self, order: int) -> Ints:
        """Look at the memory that plans need in their order, or in the leanest that the schedule may choose for them;
        those that fit."""
        here = self._grouped[self._begins[order] : self._begins[order + 1]]
        here = here[np.isfinite(self.score(here))]
        candidates = range(len(self.schedule.candidates)) or (None,)
        try:
            seconds, nbytes = zip(*(self._in_order(here, candidate) for candidate in candidates), strict=True)
        except ScheduleError:  # too many actions to be played, for an estimate too
            seconds, nbytes = ([0.0],), ([np.inf],)
        self.nbytes[here] = np.maximum(self.nbytes[here], np.min(nbytes, axis=0))
        self.seconds[here] = np.maximum(self.seconds[here], np.min(seconds, axis=0))
        return np.asarray(here[np.isfinite(self.score(here))])

    @property
    def _options(self) -> dict[str, Any]:
        return {"slices": self.space.slices} if "slices" in self.schedule.options else {}

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

    def _in_order(self, plans: Ints, candidate: int | None) -> tuple[PlanFloats, PlanFloats]:
        """Least step and memory of plans in the order that all of them have, or in a candidate for it.  [s], [bytes]"""
        row, columns, options = int(self.row[plans[0]]), self.space.columns, dict(self._options)
        if candidate is not None:
            options["candidate"] = candidate
        size = (int(columns.pp[row]), int(columns.num_chunks[row]), int(self.space.num_microbatches[row]))
        order, scenario = build_order(self.schedule.name, *size, fold=True, **options), self.scenario_of(int(plans[0]))
        deal = deal_of(scenario.model, scenario.plan, order.rank_of_stage, order.copies)
        floating = candidate is not None and bool((order.kind == W).any())
        return self.least.keeping(plans, order), memory_in_order(self.batch.take(plans), order, deal, floating)


def memory_in_order(batch: Plans, order: Order, deal: Deal, floating: bool) -> PlanFloats:
    """Peak memory of the fullest rank of plans that have an order.  [bytes]

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    """
    of_stages, held = stage_bytes(batch, deal.stage_kinds), params_of(deal.rank_kinds.counts, batch.layouts)
    fullest = np.zeros(batch.shape)
    for ranks in OrderFacts(order, deal.kind_of_stage, len(deal.stage_kinds), floating).fullest(deal.kind_of_rank):
        peak = (ranks.counts.astype(float) @ of_stages).max(axis=0)
        own = held[:, ranks.kind][..., batch.layout]
        fullest = np.maximum(fullest, peak_memory(batch, own, peak, ranks.logits, ranks.versions).total)
    return fullest
