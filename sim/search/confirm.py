"""Priced plans run on the exact engine, best price first, until no other can be better.

Whatever bounds a plan (the closed form, a bound of any order, the price in its own order), the loop is the same: once
the last of the best few is no worse than the bound of the next plan, none that was not run can be among them.

A price is a lower bound of what the exact engine finds (`sim.engines.even_pipelines`), so once a plan's exact time is
below the price of the next, no plan that was not run can be faster: the best is proven (`sim.search.confirm`).

Plans that differ in the ZeRO stage only and come out the same (one replica has nothing to shard) are one: the first is
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from sim.arrays import Array
from sim.search.candidate import ROUNDING, Candidate
from sim.search.plans.space import Fields, Progress
from sim.search.result import SearchResult, Selection
from sim.search.room import make_room

Answer = TypeVar("Answer")

Run = Callable[[], tuple[float, Answer] | None]
"""Runs a plan: its score and answer; None where it does not fit or cannot be run."""


@dataclass
class Found(Generic[Answer]):
    """What is known of plans, at every moment of their search.

    top : how many of the best are to be proven. most : plans that are run at most.
    ran : score and answer of those that fit.
    runs : plans that were run.
    bound : score that no plan which was not run goes below; infinite where there is none.
    """

    top: int = 1
    most: float = np.inf
    ran: list[tuple[float, Answer]] = field(default_factory=list)
    runs: int = 0
    bound: float = 0.0

    @property
    def best(self) -> tuple[Answer, ...]:
        """The answers in order; of equals those that ran first."""
        return tuple(answer for _, answer in sorted(self.ran, key=lambda each: each[0]))

    @property
    def worst(self) -> float:
        """Score of the last of the best few; infinite where there are fewer."""
        scores = sorted(score for score, _ in self.ran)
        return scores[self.top - 1] if len(scores) >= self.top else np.inf

    @property
    def last(self) -> float:
        """Score of the last of the best few, as many as there are; infinite where there is none."""
        return max(sorted(score for score, _ in self.ran)[: self.top], default=np.inf)

    @property
    def proven(self) -> bool:
        """Whether no plan that was not run can be among the best few."""
        return self.bound == np.inf or self.bound >= self.worst * (1 - ROUNDING)

    def reaches(self, bound: float) -> bool:
        """Whether the search ends at a plan with this bound, as it proves the best or enough plans were run."""
        self.bound = bound
        return self.proven or self.runs >= self.most


def best_first(
    plans: Iterable[tuple[float, Run[Answer] | None]],
    found: Found[Answer],
) -> Found[Answer]:
    """Run plans until the best few are proven or as many as wanted were run.

    plans : no bound is above that of a later plan, but for plans that were run before; without a run it is that of
        plans that are not listed.
    found : filled as plans are run.
    """
    for bound, run in plans:
        if found.reaches(bound) or run is None:
            return found
        ran = run()
        found.runs += 1
        found.ran += [] if ran is None else [ran]
    found.bound = np.inf
    return found


MOST_RUNS = 200
"""Plans that a search runs at most unless told otherwise: a second or two, and ten times what a proof has taken."""
COPIES = 4
"""Plans that are run once, as they differ in a ZeRO stage without effect only, at most."""


def by_price(
    result: SearchResult, places: Array, most: int, known: dict[int, Candidate]
) -> Iterator[tuple[float, Run[Candidate] | None]]:
    """Plans in the order of their price, each with its score, for `best_first`.

    places : of plans that fit, in that order; where there are more than `most`, at least one more than that.
    known : plans run before, by place; those that are run here are added.
    """
    seen, some = set(), result.prices.take(places)
    score = result.score_of(some)

    def run(place: int, seconds: float, nbytes: float) -> tuple[float, Candidate]:
        if place not in known:
            known[place] = Candidate.run(result.scenario_at(place), seconds, nbytes)
        return known[place].worth(result.objective), known[place]

    columns = (some.row, some.category, some.step_time_s, some.memory_bytes, score)
    for place, row, category, *numbers in zip(places.tolist(), *(each.tolist() for each in columns), strict=True):
        unsharded = replace(result.categories[category], zero_stage=0)
        same = (row, unsharded, *(float(f"{number:.12g}") for number in numbers))
        if same not in seen:
            seen.add(same)
            yield numbers[2], partial(run, place, *numbers[:2])
    if len(places) > most:  # what lies beyond them is not better than the last
        yield float(score[-1]), None


def run_best(
    result: SearchResult, named: Fields, top: int, most: int, progress: Progress | None = None
) -> tuple[SearchResult, Selection, Found[Candidate]]:
    """Run the best plans with some fields, and make room for those that need it.

    Room is made for plans up to the price of the last of the best few. As that may take longer than its price, more is
    made where a plan might lie between.

    Parameters
    ----------
    top : int
        How many of the best are to be proven.
    most : int
        Plans to run at most.

    Returns
    -------
    result, selection, found
        The table with plans for which room was made, the plans with the fields, and what is known of the best.
    """
    known, here, ceiling = dict(result.known), result, None
    while True:
        here = make_room(here, top, named, ceiling, progress)
        chosen = here.select(named, COPIES * most + 1)  # so many runs, and a bound for the others, lie among them
        found = best_first(by_price(here, chosen.best, most, known), Found[Candidate](top, most))
        if not found.ran or found.last <= here.room_floor:
            break
        ceiling = found.last * (1 + ROUNDING)
    result.known.update((place, each) for place, each in known.items() if place < len(result.prices))
    return here, chosen, found
