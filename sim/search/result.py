"""What a search found: all plans with their prices, what is asked of them, and the best on the exact engine.

The table has four columns (`sim.search.formula.Priced`): category, row, step time and memory. A *place* is a
row of it. Fields of plans are looked up in the space, as whole columns where a question needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.arrays import Array, Bools, Ints
from sim.notebook import NotebookDisplay
from sim.search.assumed import assumptions_of
from sim.search.best_first import Found, gap_of
from sim.search.candidate import Candidate, ScheduleBest, StagesSearched, worth_of
from sim.search.fields import CHOICES, FIELDS, NUMBERS, ROOM, Fields, base_plan, has_fields, sharding_fields
from sim.search.formula import Priced
from sim.search.space import OF_CATEGORIES, Category, Space
from sim.specs import ParallelPlan, Scenario
from sim.units import show_time
from sim.work.recompute import WHOLE, recompute_of

if TYPE_CHECKING:
    from sim.search.risk import Risk


@dataclass(frozen=True, repr=False)
class SearchResult(NotebookDisplay):
    """All plans with their prices, and the best of them.

    objective : what plans are compared by, of `sim.search.candidate.OBJECTIVES`.
    memory_limit_bytes : that a plan may take of a GPU. [bytes]
    categories : the space's, and those that only plans have for which room was made.
    prices : the table.
    plans_priced : plans whose time and memory are known.
    elapsed_s : of pricing and memory check, without the confirmations. [s]
    best : by the objective on the exact engine, of the closed form's best.
    top : how many of the best were asked for.
    found : what the exact engine ran of the priced plans, and what none of the others goes below.
    schedules : the best plan of each schedule that was searched besides the priced ones, the best schedule first.
    stages : what was found of other layouts and groups of micro-batches; None where they were not looked for.
    risk : the ranking by a quantile that `best` has the order of; None: it has that of the expected step.
    room : ways to make room for plans that do not fit else, of `sim.search.room.WAYS`.
    plans_given_room : how many plans were checked that make room so.
    known : plans that the exact engine has run: the best, and those that questions add.
    """

    space: Space
    objective: str
    memory_limit_bytes: float
    categories: tuple[Category, ...]
    prices: Priced
    plans_priced: int
    elapsed_s: float
    best: tuple[Candidate, ...] = ()
    top: int = 10
    found: Found[Candidate] = field(default_factory=Found)
    schedules: tuple[ScheduleBest, ...] = ()
    stages: StagesSearched | None = None
    risk: Risk | None = None
    room: tuple[str, ...] = ()
    plans_given_room: int = 0
    known: dict[ParallelPlan, Candidate] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: the fields hold every plan."""
        best = self.best[0].answer if self.best else None
        found = "no plan fits" if best is None else f"the best takes {show_time(best.step_time_s)} a step"
        return f"<SearchResult {self.space.scenario.name}: {self.plans_priced:,} plans, {found}>"

    @cached_property
    def plans_feasible(self) -> int:
        """How many plans fit in memory."""
        return len(self.having(fitting=True))

    @cached_property
    def plans_made_to_fit(self) -> int:
        """How many of these fit only since room was made for them, as far as that was looked for."""
        made = self.prices.category >= len(self.space.categories)
        return int(np.count_nonzero(made[self.having(fitting=True)]))

    @property
    def plans_per_s(self) -> float:
        """Plans priced and checked a second."""
        return (self.plans_priced + self.plans_given_room) / self.elapsed_s

    @property
    def gap(self) -> float | None:
        """Largest share by which a plan that was priced but not run could beat the best; 0 if the best is proven.

        None if no plan fits.
        """
        if not self.best:
            return None
        fastest = self.best[0] if self.risk is None else self.risk.fastest
        return gap_of(fastest.worth(self.objective), self.found.bound)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the search left out, and how sure its best plan is."""
        return assumptions_of(self)

    @cached_property
    def fits(self) -> Bools:
        """Which plans fit in memory."""
        return np.asarray(self.prices.memory_bytes <= self.memory_limit_bytes)

    def score(self, places: Any = slice(None)) -> Array:
        """What the objective makes smallest, of some plans or all; step times are equal to the nanosecond."""
        some = self.prices.take(places)
        return np.asarray(worth_of(self.objective, np.round(some.step_time_s, 9), self.column("num_gpus", places)))

    def having(self, fields: Fields | None = None, fitting: bool = False) -> Ints:
        """Places of the plans that have some fields, and fit in memory if only those are asked for."""
        rows, categories = self.masks(fields or {})
        found = rows[self.prices.row] & categories[self.prices.category]
        return np.flatnonzero(found & self.fits if fitting else found)

    def best_places(self, fields: Fields | None = None, few: int | None = None) -> Ints:
        """Places of the best few plans with some fields that fit, or of all; of equals, what needs least memory first.

        Raises SpecError: a field that a search does not vary.
        """
        some = self.having(fields, fitting=True)
        score = self.score(some)
        if few is not None and len(some) > few:
            near = score <= np.partition(score, few - 1)[few - 1]
            some, score = some[near], score[near]
        return np.asarray(some[np.lexsort((some, self.prices.memory_bytes[some], score))][:few])

    def num_better(self, than: float, fields: Fields | None = None) -> int:
        """How many plans with some fields fit and have a score below another."""
        return int(np.count_nonzero(self.score(self.having(fields, fitting=True)) < than))

    def leanest(self, fields: Fields | None = None) -> int | None:
        """Place of the plan with some fields that needs least memory, whether it fits or not; None if there is none."""
        which = self.having(fields)
        return int(which[self.prices.memory_bytes[which].argmin()]) if len(which) else None

    def column(self, name: str, places: Any = slice(None)) -> Array:
        """A field of plans, or their `num_gpus`, of some plans or all; of several names one text."""
        some = self.prices.take(places)
        if name in OF_CATEGORIES:
            values = [getattr(each, name) for each in self.categories]
            words = np.array(["+".join(each) if isinstance(each, tuple) else each for each in values])
            return np.asarray(words[some.category])
        found = np.asarray(getattr(self.space.columns, name)[some.row])
        return np.asarray(np.array(self.space.schedules)[found] if name == "schedule" else found)

    def values(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Which values fields of the plans have, each in order.

        names : of FIELDS, or num_gpus.
        """
        places = self.having()
        return {name: np.unique(self.column(name, places)).tolist() for name in names}

    def worth_of(self, scenario: Scenario) -> float | None:
        """Score of one plan; None where it was not priced or does not fit."""
        place = self.place_of(scenario)
        return None if place is None or not self.fits[place] else float(self.score(np.array([place]))[0])

    def pareto(self) -> Ints:
        """Places of the plans that fit and that no other beats in step time, memory and GPUs."""
        which = self.having(fitting=True)
        some = self.prices.take(which)
        return np.asarray(which[pareto_front(some.step_time_s, some.memory_bytes, self.column("num_gpus", which))])

    def scenario_at(self, place: int) -> Scenario:
        """The plan at a place."""
        row, category = int(self.prices.row[place]), int(self.prices.category[place])
        return self.space.scenario_of(row, self.categories[category])

    def kept_beside(self, plan: ParallelPlan) -> dict[str, Any]:
        """Fields that a search does not vary, as it keeps them of the scenario's plan where ZeRO shards so."""
        own = self.space.scenario
        kept = {**dict(base_plan(own)), **sharding_fields(plan.zero_stage, own.plan)}
        return {name: kept[name] for name in ParallelPlan.model_fields if name not in (*FIELDS, "uneven_layers")}

    def place_of(self, scenario: Scenario) -> int | None:
        """The place of a plan; None if it was not priced."""
        plan = scenario.plan
        if not has_fields(plan, self.kept_beside(plan)) or not self.space.cuts_experts_as(plan):
            return None
        if recompute_of(plan, scenario.model) == WHOLE:  # so many layers of a stage that these are all
            plan = plan.replace(recompute_method="uniform", recompute_num_layers=1)
        wanted = {name: getattr(plan, name) for name in FIELDS}
        rows, categories = self.space.masks(wanted, self.categories)
        here = np.flatnonzero(rows[self.prices.row] & categories[self.prices.category])
        return int(here[0]) if len(here) else None

    def to_frame(self) -> Any:
        """Every plan that was priced as a pandas table, with its price by the closed form: those that fit first, each
        part best first. [s], [bytes]"""
        import pandas as pd

        fits = self.fits
        order = np.lexsort((self.prices.memory_bytes, self.score(), ~fits))
        some = self.prices.take(order)
        varied = [name for name in ROOM if len({getattr(each, name) for each in self.categories}) > 1]
        names = ("num_gpus", *NUMBERS, "schedule", *CHOICES, *varied)
        prices = {"step_time_s": some.step_time_s, "memory_bytes": some.memory_bytes, "fits": fits[order]}
        return pd.DataFrame({**{name: self.column(name, order) for name in names}, **prices})

    def masks(self, fields: Fields) -> tuple[Bools, Bools]:
        """Which rows and which categories have these fields, and those that are set."""
        kept = self.space.fixed_saving
        (rows, here), (more, there) = (self.space.masks(each, self.categories) for each in (kept, fields))
        return rows & more, here & there

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.space.scenario.name,
            "objective": self.objective,
            "plans_priced": self.plans_priced,
            "plans_feasible": self.plans_feasible,
            "plans_in_space": self.space.num_plans,
            "plans_given_room": self.plans_given_room,
            "room": list(self.room),
            "elapsed_s": self.elapsed_s,
            "plans_per_s": self.plans_per_s,
            "confirmed": self.found.runs,
            "gap": self.gap,
            "memory_limit_bytes": self.memory_limit_bytes,
            "assumptions": list(self.assumptions),
            **({} if self.stages is None else {"stages": self.stages.to_dict(self.best[0].worth(self.objective))}),
            **({"schedules": [each.to_dict() for each in self.schedules]} if self.schedules else {}),
            "best": [each.to_dict() for each in self.best],
            **({} if self.risk is None else {"risk": self.risk.to_dict()}),
        }


def pareto_front(seconds: Array, nbytes: Array, gpus: Array) -> Array:
    """Indices of the plans for which no other is as good in all three and better in one, by GPUs, then step time.

    Of plans that are equal in all three the first is kept.

    seconds, nbytes, gpus : [s], [bytes], [-]
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
