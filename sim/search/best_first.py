"""The best plan of a schedule, proven: plans are run in the order of what they cannot go below, until no other can win."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.search.refined import Refined
from sim.search.result import Candidate

Array = np.ndarray
ROUNDING = 1e-9
"""Of a score: what is less apart is equal."""


@dataclass
class Found:
    """What is known of the plans of a schedule.

    runs : plans that the exact engine ran.
    bound : score that no plan which was not run can go below; infinite where every such plan is ruled out.
    leanest : fewest bytes that any plan cannot do with. [bytes]
    """

    candidates: list[Candidate] = field(default_factory=list)
    runs: int = 0
    bound: float = 0.0
    leanest: float = np.inf

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
    limit: float,
    most_runs: int,
    progress: Callable[[int], None],
    found: Found,
) -> None:
    """Fill `found`, which holds what is known at every moment.

    Parameters
    ----------
    parts : sequence of Refined
        All plans of a schedule.
    limit : float
        Of one GPU's memory. [bytes]
    progress : callable
        Called with the runs so far.
    """
    scores = [_score(part, objective) for part in parts]
    for part in parts:
        found.leanest = min(found.leanest, float(part.nbytes.min(initial=np.inf)))
    order = [np.argsort(np.where(part.nbytes <= limit, score, np.inf), kind="stable") for part, score in
             zip(parts, scores, strict=True)]  # fmt: skip
    place = [0] * len(parts)
    refined: list[tuple[float, float, int, int]] = []  # score, bytes, part, plan
    best = np.inf

    def add(number: int, plans: Array) -> None:
        part = parts[number]
        score = _score(part, objective)
        for plan in plans[(part.nbytes[plans] <= limit) & (score[plans] < best * (1 - ROUNDING))].tolist():
            heapq.heappush(refined, (float(np.round(score[plan], 9)), float(part.nbytes[plan]), number, plan))

    while True:
        progress(found.runs)
        waiting = [_next(parts[number], order[number], place, number, scores[number], limit) for number in
                   range(len(parts))]  # fmt: skip
        unrefined = min(waiting, default=np.inf)
        found.bound = min(unrefined, refined[0][0] if refined else np.inf)
        if found.bound >= best * (1 - ROUNDING) or found.bound == np.inf or found.runs >= most_runs:
            return
        if not refined or unrefined <= refined[0][0]:
            number = int(np.argmin(waiting))
            part, plan = parts[number], int(order[number][place[number]])
            looked_at = part.refine(plan, scores[number] < best * (1 - ROUNDING), limit)
            add(number, looked_at)
            continue
        _, _, number, plan = heapq.heappop(refined)
        part = parts[number]
        if part.rough[plan]:
            settled = part.settle(plan, scores[number] < best * (1 - ROUNDING))
            refined = [each for each in refined if not (each[2] == number and not part.rough[each[3]] and each[3] in settled)]
            heapq.heapify(refined)
            add(number, settled)
            continue
        scenario = part.variant.scenario_of(int(part.field.row[plan]), int(part.field.category[plan]))
        found.runs += 1
        try:
            answer = estimate(scenario)
        except FlopcastError:  # too many actions to be played
            continue
        if answer.largest.total <= limit:
            candidate = Candidate(scenario, float(part.seconds[plan]), float(part.nbytes[plan]), answer)
            found.candidates.append(candidate)
            best = min(best, candidate.worth(objective))


def _next(part: Refined, order: Array, place: list[int], number: int, score: Array, limit: float) -> float:
    """Score of the best plan whose order has not been looked at; infinite where there is none."""
    at = place[number]
    while at < len(order) and part.known[order[at]]:
        at += 1
    place[number] = at
    if at == len(order) or part.nbytes[order[at]] > limit:
        return np.inf
    return float(score[order[at]])


def _score(part: Refined, objective: str) -> Array:
    """What the objective makes smallest, or what it cannot go below."""
    if objective == "memory_headroom":
        return part.nbytes
    return part.seconds * part.num_gpus if objective == "cost" else part.seconds
