"""Why not another plan: what rules it out, or what it loses where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.errors import FlopcastError, SpecError, nearest
from sim.estimate import Estimate, estimate
from sim.schedules import get_schedule
from sim.schedules.registry import schedules
from sim.search.priced import Priced
from sim.search.result import SearchResult
from sim.search.space import SCHEDULES
from sim.units import show

NUMBERS = ("tp", "cp", "pp", "dp", "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")


@dataclass(frozen=True, slots=True)
class Why:
    """Why a plan is not the best.

    ruled_out : the rule it breaks; None where it is feasible.
    answer : of the best plan with the named fields; None where there is none that can be run.
    rank : of that plan among those that fit; None where it does not fit or is not priced.
    losses : seconds by cause that it takes more than the best plan, largest first. [s]
    """

    ruled_out: str | None
    answer: Estimate | None
    rank: int | None
    losses: dict[str, float]


def why_not(result: SearchResult, named: Mapping[str, Any]) -> Why:
    """Hold the best plan with these fields against the best of all.

    Parameters
    ----------
    result : SearchResult
    named : mapping
        Fields of the plan, such as {"tp": 4, "pp": 8}; the others are free.

    Raises
    ------
    SpecError
        A field that a search does not vary.
    """
    known = (*NUMBERS, "schedule", *CHOICES)
    for name in named:
        if name not in known:
            raise SpecError(f"--why takes fields of the plan, not {name!r}{nearest(name, known)}")
    count, best, leanest = _matching(result, named)
    if not count:
        return _unpriced(result, named)
    if best is None:
        plan, needed = result.scenario_at(leanest).plan, float(result.prices.at(np.array([leanest])).memory_bytes[0])
        return Why(
            f"none of the {count:,} such plans fits in {show(result.memory_limit_bytes, 'B')}: the leanest needs "
            f"{show(needed, 'B')} (recompute {plan.recompute}, ZeRO {plan.zero_stage}, dp {plan.dp}, micro-batch "
            f"{plan.microbatch_size})",
            None,
            None,
            {},
        )
    answer = estimate(result.scenario_at(best))
    return Why(None, answer, result.rank_at(best), losses(result.best[0].answer, answer))


def losses(best: Estimate, other: Estimate) -> dict[str, float]:
    """Seconds by cause that the other takes more than the best, largest first. [s]"""
    there, here = other.breakdown.seconds, best.breakdown.seconds
    apart = {cause: there[cause] - here[cause] for cause in there}
    return dict(sorted(apart.items(), key=lambda item: -item[1]))


def _matching(result: SearchResult, named: Mapping[str, Any]) -> tuple[int, int | None, int]:
    """How many plans have these fields; the places of the best of them that fits, and of the leanest."""
    columns = result.space.columns
    rows = np.ones(len(columns), bool)
    for name in NUMBERS:
        if name in named:
            rows &= getattr(columns, name) == named[name]
    if "schedule" in named:
        which = named["schedule"]
        rows &= columns.schedule == (SCHEDULES.index(which) if which in SCHEDULES else -1)
    chosen = np.array(
        [all(getattr(each, name) == named.get(name, getattr(each, name)) for name in CHOICES)
         for each in result.space.categories]
    )  # fmt: skip
    count, best, leanest, begin = 0, None, 0, 0
    least, lowest = (np.inf, np.inf), np.inf
    for block in result.blocks():
        match = np.flatnonzero(rows[block.row] & chosen[block.category])
        count += len(match)
        if len(match):
            some: Priced = block.take(match)
            place = int(np.argmin(some.memory_bytes))
            if some.memory_bytes[place] < lowest:
                lowest, leanest = float(some.memory_bytes[place]), begin + int(match[place])
            score = np.where(some.memory_bytes <= result.memory_limit_bytes, result.score(some), np.inf)
            place = int(np.lexsort((some.memory_bytes, score))[0])
            if (score[place], some.memory_bytes[place]) < least and score[place] < np.inf:
                least, best = (float(score[place]), float(some.memory_bytes[place])), begin + int(match[place])
        begin += len(block)
    return count, best, leanest


def _unpriced(result: SearchResult, named: Mapping[str, Any]) -> Why:
    """A plan that was not priced: the rule it breaks, or what it does if it is only of another schedule."""
    best = result.best[0]
    plan = best.scenario.plan
    wanted: dict[str, Any] = {**{name: getattr(plan, name) for name in (*NUMBERS, "sequence_parallel")}, **named}
    if wanted["tp"] == 1 and "sequence_parallel" not in named:
        wanted["sequence_parallel"] = False
    if "num_chunks" not in named and "schedule" in named:
        try:
            wanted["num_chunks"] = _chunks(get_schedule(named["schedule"]).chunks, plan.num_chunks)
        except FlopcastError as error:
            return Why(str(error), None, None, {})
    if "dp" not in named:
        degree, size = wanted["tp"] * wanted["cp"] * wanted["pp"], plan.num_gpus
        if size % degree:
            return Why(f"tp · cp · pp = {degree} does not divide {size:,} GPUs", None, None, {})
        wanted["dp"] = size // degree
    try:
        answer = estimate(best.scenario.replace(plan=plan.replace(**wanted))).require_fit()
    except FlopcastError as error:
        return Why(str(error), None, None, {})
    return Why(None, answer, None, losses(best.answer, answer))


def _chunks(taken: str | int, given: int) -> int:
    """Chunks a rank for a schedule that takes so many."""
    return taken if isinstance(taken, int) else 1 if taken == "one" else max(2, given)


def other_schedules(result: SearchResult, few: int = 2) -> list[Estimate]:
    """The best few plans under every schedule that the closed form does not know, by the exact engine, fastest first.

    Only those that keep the rules and fit; asynchronous schedules train another way and are left out.
    """
    answers = []
    for candidate in result.best[:few]:
        plan = candidate.scenario.plan
        for chosen in schedules():
            if chosen.name in SCHEDULES or chosen.asynchronous or plan.pp == 1:
                continue
            changes = {"schedule": chosen.name, "num_chunks": _chunks(chosen.chunks, plan.num_chunks)}
            try:
                answer = estimate(candidate.scenario.replace(plan=plan.replace(**changes)))
            except FlopcastError:
                continue
            if answer.largest.total <= result.memory_limit_bytes:
                answers.append(answer)
    return sorted(answers, key=lambda answer: answer.step_time_s)
