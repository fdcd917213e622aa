"""What is asked of the table of priced plans: which have given fields, the best few, counts, ranks, the Pareto front.

The table has four columns (`sim.search.prices.formula.Priced`): category, row, step time and memory. A *place* is a
row of it. Fields of plans are looked up in the space, as whole columns where a question needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sim.arrays import Array, Bools, Floats, Ints
from sim.search.plans.columns import OVERLAPS, SCHEDULES, Category
from sim.search.plans.space import Fields, Space, base_plan, sharding_fields
from sim.search.prices.formula import Priced
from sim.search.table import CHOICES, FIELDS, NUMBERS, ROOM
from sim.specs import ParallelPlan, Scenario
from sim.work.recompute import recompute_word

PLANS_AT_ONCE = 1_000_000
"""Plans of the table that a question looks at together."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The plans with given fields.

    priced, fit : how many there are, and fit in memory.
    better : of those that fit, how many have a lower score than asked about.
    best : places of the best few that fit, best first; of equals the one that needs least memory.
    leanest : place of the plan that needs least memory, whether it fits or not; None where there is no plan.
    """

    priced: int
    fit: int
    better: int
    best: Ints
    leanest: int | None


@dataclass(frozen=True, repr=False)
class PricedPlans:
    """Plans with their prices, and what they are compared by.

    objective : of `sim.search.candidate.OBJECTIVES`.
    memory_limit_bytes : that a plan may take of a GPU. [bytes]
    categories : the space's, and those that only plans have for which room was made.
    prices : the table.
    ways_fixed : fields of plans that say what runs again or lies on the host and are set, and not searched. The table
        has plans of other ways too, for which room may be made in these.
    """

    space: Space
    objective: str
    memory_limit_bytes: float
    categories: tuple[Category, ...]
    prices: Priced
    ways_fixed: Fields = field(default_factory=dict, kw_only=True)

    @property
    def category(self) -> Ints:
        """Number of each place's category in `categories`."""
        return self.prices.category

    @property
    def row(self) -> Ints:
        """Number of each place's row in `space.columns`."""
        return self.prices.row

    @property
    def step_time_s(self) -> Floats:
        """Step time of each place by the closed form. [s]"""
        return self.prices.step_time_s

    @property
    def memory_bytes(self) -> Floats:
        """Memory of the fullest GPU at each place. [bytes]"""
        return self.prices.memory_bytes

    @cached_property
    def fits(self) -> Bools:
        """Which plans fit in memory."""
        return np.asarray(self.prices.memory_bytes <= self.memory_limit_bytes)

    def score(self, places: Any = slice(None)) -> Array:
        """What the objective makes smallest, of some plans or all; step times are equal to the nanosecond."""
        return self.score_of(self.prices.take(places))

    def score_of(self, priced: Priced) -> Array:
        """What the objective makes smallest, of plans that need not be in the table."""
        if self.objective == "memory_headroom":
            return priced.memory_bytes
        seconds: Array = np.round(priced.step_time_s, 9)
        return seconds * self.space.gpus_of(priced.row) if self.objective == "cost" else seconds

    def having(self, fields: Fields, here: slice = slice(None)) -> Ints:
        """Places of the plans that have some fields, of all or of a slice of the table."""
        rows, categories = self.masks(fields)
        found = np.flatnonzero(rows[self.row[here]] & categories[self.category[here]])
        return np.asarray(found + (here.start or 0))

    def _slices(self) -> Iterator[slice]:
        """The table in pieces, so that what a question computes of plans takes tens of megabytes."""
        return (slice(begin, begin + PLANS_AT_ONCE) for begin in range(0, len(self.prices), PLANS_AT_ONCE))

    def select(self, fields: Fields | None = None, few: int | None = 40, than: float = -np.inf) -> Selection:
        """The plans with some fields.

        Parameters
        ----------
        few : int, optional
            How many of the best to name; None names all that fit.
        than : float
            Score that others are compared with.

        Raises
        ------
        SpecError
            A field that a search does not vary.
        """
        counts, leanest, best = np.zeros(3, dtype=int), None, np.empty((3, 0))
        for here in self._slices():
            which = self.having(fields or {}, here)
            if not len(which):
                continue
            lean = int(which[self.memory_bytes[which].argmin()])
            if leanest is None or self.memory_bytes[lean] < self.memory_bytes[leanest]:
                leanest = lean
            some = which[self.fits[which]]
            score = self.score(some)
            counts += len(which), len(some), np.count_nonzero(score < than)
            if few is not None and len(some) > few:
                near = score <= np.partition(score, few - 1)[few - 1]
                some, score = some[near], score[near]
            best = np.concatenate([best, [score, self.memory_bytes[some], some]], axis=1)
            best = best[:, np.lexsort(best[::-1])][:, :few]
        priced, fit, better = counts.tolist()
        return Selection(priced, fit, better, best[2].astype(np.int64), leanest)

    def values(self, names: Sequence[str], fields: Fields | None = None, fitting: bool = False) -> dict[str, list[Any]]:
        """Which values fields of the plans with some fields have, each in order.

        Parameters
        ----------
        names : sequence of str
            Of FIELDS, or num_gpus.
        fitting : bool
            Only of plans that fit in memory.
        """
        rows, categories = (np.zeros(len(each), dtype=bool) for each in (self.space.columns, self.categories))
        for here in self._slices():
            which = self.having(fields or {}, here)
            which = which[self.fits[which]] if fitting else which
            rows[self.row[which]] = categories[self.category[which]] = True
        there = [self.categories[number] for number in np.flatnonzero(categories).tolist()]
        found: dict[str, list[Any]] = {}
        for name in names:
            if name in (*CHOICES, *ROOM):
                found[name] = sorted({self.space.value_of(each, name) for each in there})
            else:
                numbers = np.unique(getattr(self.space.columns, name)[rows]).tolist()
                found[name] = [SCHEDULES[each] for each in numbers] if name == "schedule" else numbers
        return found

    def ranking(self, most: int | None = None) -> Ints:
        """Places of the plans that fit, best first, at most so many; of equals the one that needs least memory."""
        return self.select({}, most).best

    def worth_of(self, scenario: Scenario) -> float | None:
        """Score of one plan; None where it was not priced or does not fit."""
        place = self.place_of(scenario)
        return None if place is None or not self.fits[place] else float(self.score(np.array([place]))[0])

    def rank_of(self, scenario: Scenario) -> int | None:
        """1 for the best of the plans that fit, equals share a rank; None where the plan is not among them."""
        score = self.worth_of(scenario)
        return None if score is None else self.select({}, 1, score).better + 1

    def pareto(self, fields: Fields | None = None) -> Ints:
        """Places of the plans with some fields that fit and that no other beats in step time, memory and GPUs."""
        front = np.empty(0, dtype=np.int64)
        for here in self._slices():
            which = self.having(fields or {}, here)
            front = np.concatenate([front, which[self.fits[which]]])
            some = self.prices.take(front)
            front = front[pareto_front(some.step_time_s, some.memory_bytes, self.space.gpus_of(some.row))]
        return front

    def scenario_at(self, place: int) -> Scenario:
        """The plan at a place."""
        row, category = int(self.prices.row[place]), int(self.prices.category[place])
        return self.space.scenario_of(row, self.categories[category])

    def scenarios_at(self, places: Array) -> list[Scenario]:
        """The plans at some places."""
        return [self.scenario_at(place) for place in places.tolist()]

    def place_of(self, scenario: Scenario) -> int | None:
        """The place of a plan; None if it was not priced."""
        wanted = self._row_of(scenario)
        if wanted is None:
            return None
        here = np.flatnonzero((self.prices.row == wanted[0]) & (self.prices.category == wanted[1]))
        return int(here[0]) if len(here) else None

    def to_frame(self) -> Any:
        """Every plan that was priced as a pandas table, with its price by the closed form: those that fit first, each
        part best first. [s], [bytes]"""
        import pandas as pd

        fits = self.fits
        order = np.lexsort((self.prices.memory_bytes, self.score(), ~fits))
        some, columns = self.prices.take(order), self.space.columns
        varied = [name for name in ROOM if len({self.space.value_of(each, name) for each in self.categories}) > 1]
        words = {
            name: np.array([_word(self.space.value_of(each, name)) for each in self.categories])
            for name in (*CHOICES, *varied)
        }
        return pd.DataFrame(
            {
                **{name: getattr(columns, name)[some.row] for name in ("num_gpus", *NUMBERS)},
                "schedule": np.array(SCHEDULES)[columns.schedule[some.row]],
                **{name: of_categories[some.category] for name, of_categories in words.items()},
                "step_time_s": some.step_time_s,
                "memory_bytes": some.memory_bytes,
                "fits": fits[order],
            }
        )

    def masks(self, fields: Fields) -> tuple[Bools, Bools]:
        """Which rows and which categories have these fields, and those that are set."""
        (rows, here), (more, there) = (self.space.masks(each, self.categories) for each in (self.ways_fixed, fields))
        return rows & more, here & there

    def _row_of(self, scenario: Scenario) -> tuple[int, int] | None:
        """Row and category of a plan in the space; None where it is not in it."""
        plan = scenario.plan
        overlaps = tuple(getattr(scenario.stack, name) for name in OVERLAPS)
        others = [name for name in ParallelPlan.model_fields if name not in (*FIELDS, "uneven_layers")]
        base = base_plan(self.space.scenario)
        row = self.space.row_of(plan)
        ours = sharding_fields(plan.zero_stage, self.space.scenario.plan)
        kept = {name: ours.get(name, getattr(base, name)) for name in others}
        if row is None or any(getattr(plan, name) != value for name, value in kept.items()):
            return None
        if recompute_word(plan, scenario.model) == "full":  # so many layers of a stage that these are all
            plan = plan.replace(recompute_method="uniform", recompute_num_layers=1)
        named = (*CHOICES, "recompute_method", "recompute_num_layers", "optimizer_offload", "offloaded_layers")
        for number, each in enumerate(self.categories):
            same = each.overlaps == overlaps and all(getattr(each, name) == getattr(plan, name) for name in named)
            if same and set(self.space.value_of(each, "recompute_modules")) == set(plan.recompute_modules):
                return row, number
        return None


def _word(value: Any) -> Any:
    """A value as a table has it: several names are one text."""
    return "+".join(value) if isinstance(value, tuple) else value


def pareto_front(seconds: Array, nbytes: Array, gpus: Array) -> Array:
    """Indices of the plans for which no other is as good in all three and better in one, by GPUs, then step time.

    Of plans that are equal in all three the first is kept.

    Parameters
    ----------
    seconds, nbytes, gpus : arrays over plans
        [s], [bytes], [-]
    """
    front: list[int] = []
    kept = np.empty((0, 2))  # (seconds, bytes) of the front so far, all of fewer GPUs or as many
    for size in np.unique(gpus):
        here = np.flatnonzero(gpus == size)
        here = here[np.lexsort((nbytes[here], seconds[here]))]
        # In order of time, only what needs less than everything faster is left.
        least = np.minimum.accumulate(np.concatenate([[np.inf], nbytes[here][:-1]]))
        here = here[nbytes[here] < least]
        beaten = [bool(((kept[:, 0] <= seconds[place]) & (kept[:, 1] <= nbytes[place])).any()) for place in here]
        here = here[~np.array(beaten, dtype=bool)]
        front += here.tolist()
        kept = np.concatenate([kept, np.stack([seconds[here], nbytes[here]], axis=1)])
    return np.array(front, dtype=np.int64)
