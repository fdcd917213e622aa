"""Plans run on the exact engine, best price first, until no other can be better.

A price is a lower bound of what the exact engine finds (`sim.engines.closed_form`), so once a plan's exact time is
below the price of the next, no plan that was not run can be faster: the best is proven.

Plans that differ in the ZeRO stage only and come out the same (one replica has nothing to shard) are one: the first is
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Array
from sim.estimate import estimate
from sim.search.candidate import ROUNDING, Candidate, gap_of
from sim.search.queries import Fields, Selection
from sim.search.result import SearchResult

MOST_RUNS = 200
"""Plans that a search runs at most unless told otherwise: a second or two, and ten times what a proof has taken."""
COPIES = 4
"""Plans that are run once, as they differ in a ZeRO stage without effect only, at most."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Plans that the exact engine has run.

    best : of them, in order.
    runs : how many.
    bound : what the objective makes smallest, a bound for plans that were not run; None: all were.
    """

    best: tuple[Candidate, ...]
    runs: int
    bound: float | None

    def gap(self, result: SearchResult) -> float:
        """By what share at most a plan that was not run could be better than the best; 0: it is proven."""
        return gap_of(self.best[0].worth(result.objective), self.bound)


def run_best(
    result: SearchResult,
    places: Array,
    top: int,
    most: int,
    known: dict[int, Candidate] | None = None,
    ran: Callable[[Candidate], None] = lambda _: None,
) -> Confirmed:
    """Run plans until the best few are proven.

    Parameters
    ----------
    places : array
        Of plans that fit, in the order of their price; where there are more than `most`, at least one more than that.
    top : int
        How many are to be proven.
    most : int
        Plans to run, those of `known` counted too.
    known : dict, optional
        Plans run before, by place; those that are run here are added.
    ran : callable
        Told of every plan.
    """
    known = {} if known is None else known
    found: list[Candidate] = []
    score = -np.inf
    for number, (place, priced) in enumerate(_priced(result, places)):
        worths = sorted(each.worth(result.objective) for each in found)
        enough = len(found) >= top and worths[top - 1] <= priced.score * (1 + ROUNDING)
        if enough or number >= most:
            return Confirmed(_in_order(result, found), number, priced.score)
        if place not in known:
            known[place] = priced.run()
        found.append(known[place])
        ran(known[place])
        score = priced.score
    # More places than may be run end in some that were left out: what lies beyond them is not better than the last.
    return Confirmed(_in_order(result, found), len(found), score if len(places) > most else None)


def run_named(
    result: SearchResult, named: Fields, most: int, known: dict[int, Candidate] | None = None
) -> tuple[Selection, Confirmed]:
    """The plans with some fields, and the best of them, for those that need it with room made for them.

    Parameters
    ----------
    most : int
        Plans to run.
    known : dict, optional
        Plans run before, by place; of those that are run here the ones that are in the search's space are added.
    """
    known = {} if known is None else known
    own = {place: each for place, each in known.items() if place < result.plans_priced}
    here, ceiling = result, None
    while True:
        here = here.with_room(1, named, ceiling)
        chosen = here.select(named, few_for(most))
        found = run_best(here, chosen.best, 1, most, own)
        known |= {place: each for place, each in own.items() if place < result.plans_priced}
        worth = found.best[0].worth(result.objective) if found.best else 0.0
        if worth <= here.room_floor or found.runs >= most:
            return chosen, found
        ceiling = worth * (1 + ROUNDING)


def few_for(runs: int) -> int:
    """How many of the best plans to look up, so that so many runs, and a bound for the others, lie among them."""
    return COPIES * runs + 1


def so_far(result: SearchResult, places: Array, ran: list[Candidate]) -> Confirmed:
    """What is known when `run_best` was interrupted after these."""
    bound = float(result.score(places[len(ran) : len(ran) + 1])[0]) if len(places) > len(ran) else None
    return Confirmed(_in_order(result, ran), len(ran), bound)


@dataclass(frozen=True, slots=True)
class _Priced:
    """A plan before it is run."""

    result: SearchResult
    place: int
    step_time_s: float
    memory_bytes: float
    score: float

    def run(self) -> Candidate:
        scenario = self.result.scenario_at(self.place)
        return Candidate(scenario, self.step_time_s, self.memory_bytes, estimate(scenario))


def _priced(result: SearchResult, places: Array) -> Iterator[tuple[int, _Priced]]:
    seen, some = set(), result.prices.take(places)
    columns = (some.row, some.category, some.step_time_s, some.memory_bytes, result.score_of(some))
    for place, row, category, *numbers in zip(places.tolist(), *(each.tolist() for each in columns), strict=True):
        unsharded = replace(result.categories[category], zero_stage=0)
        same = (row, unsharded, *(float(f"{number:.12g}") for number in numbers))
        if same not in seen:
            seen.add(same)
            yield place, _Priced(result, place, *numbers)


def _in_order(result: SearchResult, found: list[Candidate]) -> tuple[Candidate, ...]:
    """By the objective; of equals the one that was priced better."""
    return tuple(sorted(found, key=lambda each: each.worth(result.objective)))
