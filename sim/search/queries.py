"""What is asked of a table of priced plans: which have given fields, the best few, counts, ranks, the Pareto front.

Every question goes through the table a block at a time, so that a search of millions of plans answers without all of
them in memory. A *place* counts through all plans that were priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.errors import SpecError, nearest
from sim.search.plans.columns import OVERLAPS, SCHEDULES, Category
from sim.search.plans.space import Space, base_plan, sharding_fields
from sim.search.table import CHOICES, FIELDS, NUMBERS, ROOM, Priced, PriceTable, frame_of, join, value_of
from sim.specs import ParallelPlan, Scenario
from sim.specs.modules import as_names
from sim.work.recompute import recompute_word

Fields = Mapping[str, Any]
"""Fields of a plan, each with its value or a tuple of values, such as {"tp": 4, "zero_stage": (0, 1)}; {} is any."""


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
    best: Array
    leanest: int | None


@dataclass(frozen=True, repr=False)
class PricedPlans:
    """Plans with their prices, and what they are compared by.

    objective : of `sim.search.candidate.OBJECTIVES`.
    memory_limit_bytes : that a plan may take of a GPU. [bytes]
    """

    space: Space
    objective: str
    memory_limit_bytes: float
    prices: PriceTable

    @property
    def categories(self) -> tuple[Category, ...]:
        """Of all plans: the space's, and those that only plans have for which room was made."""
        return (*self.space.categories, *self.prices.more_categories)

    def blocks(self) -> Iterator[Priced]:
        """The prices, some at a time."""
        return self.prices.blocks()

    @cached_property
    def _all(self) -> Priced:
        return join(list(self.blocks()))

    @property
    def category(self) -> Array:
        """Of every place, which of `categories`. Holds all places in memory, as the next three do."""
        return self._all.category

    @property
    def row(self) -> Array:
        """Of every place, which row of `space.columns`."""
        return self._all.row

    @property
    def step_time_s(self) -> Array:
        """Of every place, by the closed form. [s]"""
        return self._all.step_time_s

    @property
    def memory_bytes(self) -> Array:
        """Of every place, of the fullest GPU. [bytes]"""
        return self._all.memory_bytes

    def fits(self, block: Priced | None = None) -> Array:
        """Which plans of a block, or of all places, fit in memory."""
        within: Array = (self._all if block is None else block).memory_bytes <= self.memory_limit_bytes
        return within

    def score(self, block: Priced | None = None) -> Array:
        """What the objective makes smallest, over a block or all places; step times are equal to the nanosecond."""
        block = self._all if block is None else block
        if self.objective == "memory_headroom":
            return block.memory_bytes
        seconds: Array = np.round(block.step_time_s, 9)
        return seconds * self.space.gpus_of(block.row) if self.objective == "cost" else seconds

    def score_of(self, scenario: Scenario) -> float | None:
        """Score of one plan; None where it was not priced or does not fit."""
        place = self.place_of(scenario)
        own = None if place is None else self.prices.at(np.array([place]))
        return float(self.score(own)[0]) if own is not None and self.fits(own)[0] else None

    def select(self, several: Sequence[Fields], few: int | None = 40, than: float = -np.inf) -> list[Selection]:
        """The plans with each of several sets of fields, in one walk through the table.

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
        masks = [self.masks(fields) for fields in several]
        counts = np.zeros((len(several), 3), dtype=int)  # priced, fit, better
        best = [[np.empty((3, 0))] for _ in several]  # score, bytes, place
        leanest: list[tuple[float, int | None]] = [(np.inf, None) for _ in several]
        for begin, block in self._placed():
            fits, score = self.fits(block), self.score(block)
            for number, (rows, categories) in enumerate(masks):
                which = np.flatnonzero(rows[block.row] & categories[block.category])
                if not len(which):
                    continue
                lean = int(which[np.argmin(block.memory_bytes[which])])
                least = (float(block.memory_bytes[lean]), begin + lean)
                leanest[number] = min(leanest[number], least, key=lambda found: found[0])
                here = which[fits[which]]
                counts[number] += len(which), len(here), np.count_nonzero(score[here] < than)
                if few is not None and len(here) > few:
                    here = here[score[here] <= np.partition(score[here], few - 1)[few - 1]]
                best[number].append(np.array([score[here], block.memory_bytes[here], begin + here]))
                if few is not None:
                    best[number] = [_in_order(best[number])[:, :few]]
        places = [_in_order(found)[2].astype(np.int64) for found in best]
        return [
            Selection(priced, fit, better, found, lean)
            for (priced, fit, better), found, (_, lean) in zip(counts.tolist(), places, leanest, strict=True)
        ]

    def values(self, names: Sequence[str], fields: Fields | None = None, fitting: bool = False) -> dict[str, list[Any]]:
        """Which values fields of the plans with some fields have, each in order.

        Parameters
        ----------
        names : sequence of str
            Of FIELDS, or num_gpus.
        fitting : bool
            Only of plans that fit in memory.
        """
        rows, categories = self.masks(fields or {})
        seen_rows, seen_categories = np.zeros_like(rows), np.zeros_like(categories)
        for block in self.blocks():
            which = rows[block.row] & categories[block.category]
            if fitting:
                which &= self.fits(block)
            seen_rows[block.row[which]] = seen_categories[block.category[which]] = True
        there = [each for each, seen in zip(self.categories, seen_categories, strict=True) if seen]
        found: dict[str, list[Any]] = {}
        for name in names:
            if name in (*CHOICES, *ROOM):
                found[name] = sorted({self.value_of(each, name) for each in there})
            else:
                numbers = np.unique(getattr(self.space.columns, name)[seen_rows]).tolist()
                found[name] = [SCHEDULES[each] for each in numbers] if name == "schedule" else numbers
        return found

    def ranking(self, most: int | None = None) -> Array:
        """Places of the plans that fit, best first; of equals the one that needs least memory.

        Parameters
        ----------
        most : int, optional
            Only so many, found without all places in memory.
        """
        return self.select([{}], most)[0].best

    def rank_of(self, scenario: Scenario) -> int | None:
        """1 for the best of the plans that fit, equals share a rank; None where the plan is not among them."""
        score = self.score_of(scenario)
        return None if score is None else self.select([{}], 1, score)[0].better + 1

    def pareto(self, fields: Fields | None = None) -> Array:
        """Places of the plans with some fields that fit and that no other beats in step time, memory and GPUs."""
        rows, categories = self.masks(fields or {})
        front = np.empty((4, 0))  # seconds, bytes, GPUs, place
        for begin, block in self._placed():
            here = np.flatnonzero(rows[block.row] & categories[block.category] & self.fits(block))
            some = block.take(here)
            new = [some.step_time_s, some.memory_bytes, self.space.gpus_of(some.row), begin + here]
            front = np.concatenate([front, new], axis=1)
            front = front[:, pareto_front(*front[:3])]
        places: Array = front[3].astype(np.int64)
        return places

    def scenario_at(self, place: int) -> Scenario:
        """The plan at a place."""
        return self.scenarios_at(np.array([place]))[0]

    def scenarios_at(self, places: Array) -> list[Scenario]:
        """The plans at some places."""
        found = self.prices.at(places)
        return [
            self.space.scenario_of(row, self.categories[category])
            for row, category in zip(found.row.tolist(), found.category.tolist(), strict=True)
        ]

    def place_of(self, scenario: Scenario) -> int | None:
        """At which place a plan is; None where it was not priced."""
        return self.places_of([scenario])[0]

    def places_of(self, scenarios: Sequence[Scenario]) -> list[int | None]:
        """At which places several plans are, in one walk through the table."""
        wanted = [self._row_of(each) for each in scenarios]
        found: list[int | None] = [None] * len(wanted)
        for begin, block in self._placed():
            for number, one in enumerate(wanted):
                if one is not None and found[number] is None:
                    here = np.flatnonzero((block.row == one[0]) & (block.category == one[1]))
                    found[number] = begin + int(here[0]) if len(here) else None
        return found

    def to_frame(self) -> Any:
        """Every plan that was priced as a pandas table, with its price by the closed form: those that fit first, each
        part best first. [s], [bytes]"""
        fits = self.fits()
        order = np.lexsort((self.memory_bytes, self.score(), ~fits))
        some = self._all.take(order)
        frame = frame_of(self.space, some, self.prices.more_categories)
        names = ["num_gpus", *NUMBERS, "schedule", *CHOICES]
        frame = frame[[*names, "step_time_s", "memory_bytes"]].astype({"schedule": "str", "recompute": "str"})
        if self.prices.more_categories:
            room = [name for name in ROOM if len({self.value_of(each, name) for each in self.categories}) > 1]
            for place, name in enumerate(room):
                words = [_word(self.value_of(each, name)) for each in self.categories]
                frame.insert(len(names) + place, name, np.array(words)[some.category])
        return frame.assign(fits=fits[order])

    def _placed(self) -> Iterator[tuple[int, Priced]]:
        """Every block with the place at which it begins."""
        begin = 0
        for block in self.blocks():
            yield begin, block
            begin += len(block)

    def masks(self, fields: Fields) -> tuple[Array, Array]:
        """Which rows and which categories of the space have these fields."""
        rows, categories = np.ones(len(self.space.columns), bool), np.ones(len(self.categories), bool)
        for name, value in fields.items():
            if name not in (*FIELDS, "num_gpus"):
                raise SpecError(f"a search does not vary {name!r} of a plan{nearest(name, FIELDS)}")
            if name == "recompute_modules":
                wanted = set(as_names(value))
                categories &= [set(self.value_of(each, name)) == wanted for each in self.categories]
                continue
            values = list(value) if isinstance(value, tuple) else [value]
            if name in (*CHOICES, *ROOM):
                categories &= [self.value_of(each, name) in values for each in self.categories]
                continue
            if name == "schedule":
                values = [SCHEDULES.index(each) for each in values if each in SCHEDULES]
            rows &= np.isin(getattr(self.space.columns, name), values)
        return rows, categories

    def value_of(self, category: Category, name: str) -> Any:
        """A field of the plans of a category."""
        return value_of(category, name, self.space.scenario.plan)

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
            if same and set(self.value_of(each, "recompute_modules")) == set(plan.recompute_modules):
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


def _in_order(parts: list[Array]) -> Array:
    """Columns of (score, bytes, place), sorted by the first, then the second, then the third."""
    whole = np.concatenate(parts, axis=1)
    ordered: Array = whole[:, np.lexsort(whole[::-1])]
    return ordered
