"""The best plan of a schedule, proven: plans run in the order of what they cannot go below, until no other can win."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.arrays import Array
from sim.errors import ScheduleError
from sim.estimate import estimate
from sim.search.candidate import ROUNDING, Candidate
from sim.search.schedules.refined import Refined
from sim.specs import ParallelPlan


@dataclass
class Found:
    """What is known of the plans of a schedule.

    runs : plans that the exact engine ran.
    bound : score that no plan which was not run can go below; infinite where every such plan is ruled out.
    """

    candidates: list[Candidate] = field(default_factory=list)
    runs: int = 0
    bound: float = 0.0

    def best(self, objective: str) -> Candidate | None:
        """Of those that fit."""
        return min(self.candidates, key=lambda each: each.worth(objective), default=None)

    def proven(self, objective: str) -> bool:
        """Whether no plan that was not run can be better."""
        best = self.best(objective)
        return self.bound == np.inf or (best is not None and self.bound >= best.worth(objective) * (1 - ROUNDING))


def run_best_first(
    parts: Sequence[Refined],
    objective: str,
    most_runs: int,
    likely: Sequence[ParallelPlan],
    progress: Callable[[int], None],
    found: Found,
) -> None:
    """Fill `found`, which holds what is known at every moment.

    Parameters
    ----------
    parts : sequence of Refined
        All plans of a schedule.
    likely : sequence of ParallelPlan
        Layouts to look at first: a good plan rules out the most others early.
    progress : callable
        Called with the runs so far.
    """
    waiting = [Waiting(part) for part in parts]
    known: list[tuple[float, float, int, int]] = []  # score, bytes, part, plan
    run: set[tuple[int, int]] = set()
    best = ceiling = np.inf

    def add(number: int, plans: Array) -> None:
        score = parts[number].score(plans)
        for place in np.flatnonzero(score < best * (1 - ROUNDING)).tolist():
            plan = int(plans[place])
            heapq.heappush(known, (float(score[place]), float(parts[number].nbytes[plan]), number, plan))

    for number, part in enumerate(parts):
        add(number, np.flatnonzero(part.known))
        for plan in (part.like(each) for each in likely):
            if plan is not None:
                plans, ceiling = part.refine(plan, ceiling)
                add(number, plans)
    while True:
        progress(found.runs)
        number = min(range(len(parts)), key=lambda each: waiting[each].score(), default=0)
        unknown = waiting[number].score() if parts else np.inf
        found.bound = min(unknown, known[0][0] if known else np.inf)
        if found.bound >= best * (1 - ROUNDING) or found.bound == np.inf or found.runs >= most_runs:
            return
        # The first plan that is known to fit is run at once: without a score that is reached nothing is ruled out.
        if not known or (unknown <= known[0][0] and ceiling < np.inf):
            plans, ceiling = parts[number].refine(waiting[number].plan(), ceiling)
            add(number, plans)
            continue
        score, _, number, plan = heapq.heappop(known)
        part = parts[number]
        if (number, plan) in run or part.score(np.array([plan]))[0] > score:  # settled meanwhile, it stands there twice
            continue
        if part.rough[plan]:
            add(number, part.settle(plan, best))
            continue
        scenario = part.variant.scenario_of(int(part.row[plan]), int(part.category[plan]))
        found.runs += 1
        run.add((number, plan))
        try:
            answer = estimate(scenario)
        except ScheduleError:  # too many actions to be played
            continue
        if answer.largest.total <= part.limit:
            candidate = Candidate(scenario, float(part.seconds[plan]), float(part.nbytes[plan]), answer)
            found.candidates.append(candidate)
            best = min(best, candidate.worth(objective))
            ceiling = min(ceiling, best)


class Waiting:
    """Plans whose order has not been looked at, the best first."""

    def __init__(self, part: Refined) -> None:
        self._part, self._place = part, 0
        self._scores = part.score()
        self._order = np.argsort(self._scores, kind="stable")

    def score(self) -> float:
        """Of the best; infinite where there is none."""
        while self._place < len(self._order) and self._part.known[self._order[self._place]]:
            self._place += 1
        return float(self._scores[self.plan()]) if self._place < len(self._order) else np.inf

    def plan(self) -> int:
        """The best."""
        return int(self._order[self._place])
