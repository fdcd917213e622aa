"""What a search found: the best plans, and everything else it priced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sim.notebook import NotebookDisplay
from sim.search.candidate import Candidate, ScheduleBest, gap_of
from sim.search.left_out import left_out
from sim.search.pareto import pareto_front
from sim.search.plans.columns import OVERLAPS, SCHEDULES, Category
from sim.search.plans.layouts import LAYOUT
from sim.search.plans.space import Space
from sim.search.table.priced import Priced, Prices, join
from sim.specs import Scenario
from sim.units import show_time

Array = np.ndarray


@dataclass(frozen=True, repr=False)
class SearchResult(NotebookDisplay):
    """All plans with their prices, and the best of them.

    prices : of every plan looked at; a *place* counts through them.
    best : by the objective on the exact engine, of the closed form's best.
    plans_priced : plans whose time and memory are known.
    finished : False where it was interrupted; then only `plans_priced` of `space.num_plans` were looked at, or, where
        these are all, only `confirmed` run on the exact engine.
    elapsed_s : of pricing, memory check and saving, without the confirmations. [s]
    plans_restored : of those priced, how many an interrupted search had saved.
    top : how many of the best were asked for.
    confirmed : plans that the exact engine ran.
    bound : what the objective makes smallest, at least, of all plans that the exact engine did not run; None: it ran
        all of them.
    schedules : the best plan of each schedule that was searched beside these, the best schedule first.
    """

    space: Space
    objective: str
    memory_limit_bytes: float
    prices: Prices
    plans_priced: int
    best: tuple[Candidate, ...]
    finished: bool
    elapsed_s: float
    plans_restored: int = 0
    top: int = 10
    confirmed: int = 0
    bound: float | None = None
    schedules: tuple[ScheduleBest, ...] = ()

    def __repr__(self) -> str:
        """One line: the fields hold every plan."""
        best = self.best[0].answer if self.best else None
        found = "no plan fits" if best is None else f"the best takes {show_time(best.step_time_s)} a step"
        return f"<SearchResult {self.space.scenario.name}: {self.plans_priced:,} plans, {found}>"

    @cached_property
    def plans_feasible(self) -> int:
        """Those that fit in memory."""
        return sum(int(np.count_nonzero(block.memory_bytes <= self.memory_limit_bytes)) for block in self.blocks())

    @property
    def plans_per_s(self) -> float:
        """Plans priced and checked a second."""
        return (self.plans_priced - self.plans_restored) / self.elapsed_s

    @property
    def folder(self) -> Path | None:
        """Where the table is saved."""
        return self.prices.folder

    def blocks(self) -> Iterator[Priced]:
        """The prices, some at a time, so that those of a large search need not be in memory together."""
        return self.prices.blocks()

    @cached_property
    def _all(self) -> Priced:
        return join(list(self.blocks()))

    @property
    def category(self) -> Array:
        """Of every place, which of `space.categories`. Holds all places in memory, as the next three do."""
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

    def scenario_at(self, place: int) -> Scenario:
        """The plan at a place."""
        return self.scenarios_at(np.array([place]))[0]

    def scenarios_at(self, places: Array) -> list[Scenario]:
        """The plans at some places."""
        found = self.prices.at(places)
        return [
            self.space.scenario_of(row, self.space.categories[category])
            for row, category in zip(found.row.tolist(), found.category.tolist(), strict=True)
        ]

    @property
    def gap(self) -> float | None:
        """By what share at most a plan that was priced but not run could be better than the best; 0: it is proven.

        None where the search was interrupted: of plans that were not priced nothing is known; or where none fits.
        """
        if self.plans_priced < self.space.num_plans or not self.best:
            return None
        return gap_of(self.best[0].worth(self.objective), self.bound)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the search left out, and how sure its best plan is."""
        return left_out(self)

    def ranking(self, most: int | None = None) -> Array:
        """Places of the plans that fit, best first; of equals the one that needs least memory.

        Parameters
        ----------
        most : int, optional
            Only so many, found without all places in memory.
        """
        parts, begin = [], 0  # score, bytes, place
        for block in self.blocks():
            fits = np.flatnonzero(block.memory_bytes <= self.memory_limit_bytes)
            score = self.score(block)[fits]
            if most is not None and len(fits) > most:
                near = score <= np.partition(score, most - 1)[most - 1]
                fits, score = fits[near], score[near]
            parts.append(np.array([score, block.memory_bytes[fits], begin + fits]))
            if most is not None:
                parts = [_in_order(parts)[:, :most]]
            begin += len(block)
        places: Array = _in_order(parts)[2].astype(np.int64)
        return places

    def score(self, block: Priced | None = None) -> Array:
        """What the objective makes smallest, over a block or all places; step times are equal to the nanosecond."""
        block = self._all if block is None else block
        if self.objective == "memory_headroom":
            return block.memory_bytes
        seconds: Array = np.round(block.step_time_s, 9)
        return seconds * self.space.gpus_of(block.row) if self.objective == "cost" else seconds

    def pareto(self) -> Array:
        """Places of the plans that fit and that no other beats in step time, memory and GPUs."""
        front, begin = np.empty((4, 0)), 0  # seconds, bytes, GPUs, place
        for block in self.blocks():
            fits = np.flatnonzero(block.memory_bytes <= self.memory_limit_bytes)
            some = block.take(fits)
            new = [some.step_time_s, some.memory_bytes, self.space.gpus_of(some.row), begin + fits]
            front = np.concatenate([front, new], axis=1)
            front = front[:, pareto_front(*front[:3])]
            begin += len(block)
        places: Array = front[3].astype(np.int64)
        return places

    def rank_of(self, scenario: Scenario) -> int | None:
        """1 for the best of the plans that fit; None where the plan is not among them."""
        place = self.place_of(scenario)
        return None if place is None else self.rank_at(place)

    def rank_at(self, place: int) -> int | None:
        """The same of the plan at a place."""
        own = self.prices.at(np.array([place]))
        if own.memory_bytes[0] > self.memory_limit_bytes:
            return None
        score, nbytes = self.score(own)[0], own.memory_bytes[0]
        better, begin = 0, 0
        for block in self.blocks():
            scores, needed = self.score(block), block.memory_bytes
            earlier = np.arange(begin, begin + len(block)) < place
            before = (scores < score) | ((scores == score) & ((needed < nbytes) | ((needed == nbytes) & earlier)))
            better += int(np.count_nonzero(before & (needed <= self.memory_limit_bytes)))
            begin += len(block)
        return better + 1

    def place_of(self, scenario: Scenario) -> int | None:
        """At which place a plan is; None where it was not priced."""
        return self.places_of([scenario])[0]

    def places_of(self, scenarios: Sequence[Scenario]) -> list[int | None]:
        """The same of several plans, in one look at all."""
        wanted = [self._row_of(each) for each in scenarios]
        found: list[int | None] = [None] * len(wanted)
        begin = 0
        for block in self.blocks():
            for number, one in enumerate(wanted):
                if one is not None and found[number] is None:
                    here = np.flatnonzero((block.row == one[0]) & (block.category == one[1]))
                    found[number] = begin + int(here[0]) if len(here) else None
            begin += len(block)
        return found

    def _row_of(self, scenario: Scenario) -> tuple[int, int] | None:
        """Row and category of a plan in the space; None where it is not in it."""
        plan = scenario.plan
        overlaps = tuple(getattr(scenario.stack, name) for name in OVERLAPS)
        wanted = Category(plan.recompute, plan.sequence_parallel, plan.zero_stage, overlaps)
        row = self.space.row_of(plan)
        if row is None or wanted not in self.space.categories:
            return None
        return row, self.space.categories.index(wanted)

    def to_frame(self) -> Any:
        """Every plan that was priced as a pandas table, with its price by the closed form: those that fit first, each
        part best first. [s], [bytes]"""
        import pandas as pd

        fits = self.memory_bytes <= self.memory_limit_bytes
        order = np.lexsort((self.memory_bytes, self.score(), ~fits))
        rows, columns = self.row[order], self.space.columns
        numbers = {name: getattr(columns, name)[rows] for name in (*LAYOUT, "num_chunks", "microbatch_size")}
        frame = pd.DataFrame({"num_gpus": self.space.gpus_of(rows), **numbers})
        frame["schedule"] = np.array(SCHEDULES)[columns.schedule[rows]]
        for name in ("recompute", "sequence_parallel", "zero_stage"):
            frame[name] = np.array([getattr(each, name) for each in self.space.categories])[self.category[order]]
        frame["step_time_s"], frame["memory_bytes"] = self.step_time_s[order], self.memory_bytes[order]
        frame["fits"] = fits[order]
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.space.scenario.name,
            "objective": self.objective,
            "plans_priced": self.plans_priced,
            "plans_feasible": self.plans_feasible,
            "plans_in_space": self.space.num_plans,
            "plans_restored": self.plans_restored,
            "finished": self.finished,
            "elapsed_s": self.elapsed_s,
            "plans_per_s": self.plans_per_s,
            "confirmed": self.confirmed,
            "gap": self.gap,
            "memory_limit_bytes": self.memory_limit_bytes,
            "assumptions": list(self.assumptions),
            **({"schedules": [each.to_dict() for each in self.schedules]} if self.schedules else {}),
            "best": [each.to_dict() for each in self.best],
        }


def _in_order(parts: list[Array]) -> Array:
    """Columns of (score, bytes, place), put in order by the first, then the second, then the third."""
    whole = np.concatenate(parts, axis=1)
    ordered: Array = whole[:, np.lexsort(whole[::-1])]
    return ordered
