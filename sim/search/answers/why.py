"""Why not another plan: what rules it out, or what it loses where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.schedules import get_schedule
from sim.search.answers.among import FIELDS, best_of, causes_apart, confirmed_already, none_fits, with_fields
from sim.search.answers.chosen import choose
from sim.search.answers.steps import Step, steps_between
from sim.search.answers.unpriced import try_unpriced
from sim.search.candidate import ScheduleBest
from sim.search.plans.columns import SCHEDULES
from sim.search.result import SearchResult
from sim.search.schedules.by_schedule import WithFields
from sim.specs import ParallelPlan


@dataclass(frozen=True, slots=True)
class Why:
    """Why a plan is not the best.

    ruled_out : the rule it breaks; None where it is feasible.
    answer : of the best plan with the named fields; None where there is none that can be run.
    rank : of that plan among those that fit; None where it does not fit or is not priced.
    losses : seconds by cause that it takes more than the best plan, largest first. [s]
    steps : from that plan to the best, a technique at a time; none where it is faster than the best or
        has another number of GPUs.
    tried : of how many plans it is the best, where the search does not price such plans.
    searched : the best of all plans of its schedule with these fields, where the search does not price that schedule.
    """

    ruled_out: str | None
    answer: Estimate | None
    rank: int | None
    losses: dict[str, float]
    steps: tuple[Step, ...] = ()
    tried: int = 0
    searched: ScheduleBest | None = None


def why_not(result: SearchResult, named: Mapping[str, Any]) -> Why:
    """Hold the best plan with these fields against the best of all.

    Parameters
    ----------
    result : SearchResult
    named : mapping
        Fields of the plan, such as {"tp": 4, "pp": 8}; the others are free.

    Raises
    ------
    SpecError, ScheduleError
        A field that a search does not vary, or a value that it cannot have.
    """
    check_fields(named)
    (there,) = choose(result, [named])
    if not there.priced:
        return _unpriced(result, named)
    if not there.fit:
        return Why(none_fits(result, with_fields(result, named)), None, None, {})
    found = best_of(result, there.best, confirmed_already(result))
    assert found is not None, "some such plan fits"
    place = result.place_of(found.scenario)
    assert place is not None, "it was priced"
    score = float(result.score(result.prices.at(np.array([place])))[0])
    (everything,) = choose(result, [{}], than=score)
    return _lost(result, found.answer, everything.better + 1)


def check_fields(named: Mapping[str, Any]) -> None:
    """Raise where a field is not one that a search varies, or cannot have its value whatever the others are."""
    for name, value in named.items():
        if name not in FIELDS:
            raise SpecError(f"--why takes fields of the plan, not {name!r}{nearest(name, FIELDS)}")
        replicas = value if name == "ep" and isinstance(value, int) and value > 0 else 1
        ParallelPlan.read({"tp": 2, "pp": 2, "dp": replicas, name: value}, "plan")
        if name == "schedule":
            get_schedule(value)


def _lost(result: SearchResult, answer: Estimate, rank: int | None) -> Why:
    best = result.best[0].answer
    slower = answer.step_time_s > best.step_time_s and answer.num_gpus == best.num_gpus
    steps = steps_between(answer, best, result.memory_limit_bytes) if slower else ()
    return Why(None, answer, rank, causes_apart(result, answer), steps)


def _unpriced(result: SearchResult, named: Mapping[str, Any]) -> Why:
    """Fields that no priced plan has: the rule they break, or the best of all or a few plans that have them."""
    if named.get("schedule", SCHEDULES[0]) not in SCHEDULES:
        rest = {name: value for name, value in named.items() if name != "schedule"}
        searched = WithFields(result, named["schedule"]).best(rest)
        if searched.best is not None:
            return replace(_lost(result, searched.best.answer, None), searched=searched)
        if searched.plans:
            return Why(searched.reason, None, None, {}, searched=searched)
    answer, reason, tried = try_unpriced(result, named)
    return Why(reason, None, None, {}) if answer is None else replace(_lost(result, answer, None), tried=tried)
