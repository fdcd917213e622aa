"""Plans of a schedule in the order of what they cannot go below, which is looked at more closely as they come up."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from sim.arrays import Array
from sim.errors import ScheduleError
from sim.estimate import estimate
from sim.search.best_first import Found, Run
from sim.search.candidate import ROUNDING, Candidate
from sim.search.schedules.refined import Refined
from sim.specs import ParallelPlan

MUCH = 0.95
"""Share of the lowest score that a plan is known to reach, below which another is much better."""


def by_bound(
    parts: Sequence[Refined], likely: Sequence[ParallelPlan], found: Found[Candidate]
) -> Iterator[tuple[float, Run[Candidate] | None]]:
    """Plans that may be better than the best found, each with a bound of all that were not run, for `best_first`.

    Parameters
    ----------
    parts : sequence of Refined
        All plans of a schedule.
    likely : sequence of ParallelPlan
        Layouts to look at first: a good plan rules out the most others early.
    found : Found
        What `best_first` fills.
    """
    orders = [(score, number, group) for number, part in enumerate(parts) for group, score in part.orders()]
    heapq.heapify(orders)
    known: list[tuple[float, float, int, int]] = []  # score, bytes, part, plan
    come_up: set[tuple[int, int]] = set()
    looked_at: set[tuple[int, int]] = set()
    ceiling = np.inf

    def add(number: int, plans: Array) -> None:
        score = parts[number].score(plans)
        for place in np.flatnonzero(score < found.worst * (1 - ROUNDING)).tolist():
            plan = int(plans[place])
            heapq.heappush(known, (float(score[place]), float(parts[number].nbytes[plan]), number, plan))

    def look_at(number: int, group: int) -> None:
        nonlocal ceiling
        if (number, group) not in looked_at:
            looked_at.add((number, group))
            plans, ceiling = parts[number].refine(group, ceiling)
            add(number, plans)

    for number, part in enumerate(parts):
        for group in (part.order_like(each) for each in likely):
            if group is not None:
                look_at(number, group)
    while True:
        ceiling = min(ceiling, found.worst)
        while orders and orders[0][1:] in looked_at:
            heapq.heappop(orders)
        unknown, nearest = (each[0][0] if each else np.inf for each in (orders, known))
        bound = min(unknown, nearest)
        if found.reaches(bound):
            yield bound, None
            return
        # A plan that will be much better than all that is reached is run at once, as the first is: it rules others out.
        much = ceiling == np.inf
        if known and parts[known[0][2]].decided:
            much |= nearest < MUCH * ceiling
        if not known or (unknown <= nearest and not much):
            look_at(*orders[0][1:])
            continue
        score, _, number, plan = heapq.heappop(known)
        part = parts[number]
        # Settled meanwhile, it stands there twice.
        if (number, plan) in come_up or part.score(np.array([plan]))[0] > score:
            continue
        if part.rough[plan]:
            add(number, part.settle(plan, found.worst))
            continue
        come_up.add((number, plan))
        yield bound, partial(_run, part, plan)


def _run(part: Refined, plan: int) -> tuple[float, Candidate] | None:
    scenario = part.scenario_of(plan)
    try:
        answer = estimate(scenario)
    except ScheduleError:  # too many actions to be played
        return None
    if answer.largest.total > part.limit:
        return None
    candidate = Candidate(scenario, float(part.seconds[plan]), float(part.nbytes[plan]), answer)
    return candidate.worth(part.objective), candidate
