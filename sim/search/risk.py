"""Plans ranked by a step time that they stay below with some probability, so that the winner is robust.

Every plan has its own interval, since each is made of other parts, which are known differently well
(`sim.uncertainty`). Plans that were run on the exact engine are ranked by a quantile of that. A plan that was not run
is no faster than the slowest of these, and its quantile is above its step time at least as far as that of a step made
of its parts in the best known shares: that bounds what was not ranked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sim.errors import SpecError
from sim.search.best_first import gap_of
from sim.search.candidate import Candidate
from sim.search.result import SearchResult
from sim.uncertainty import PARTS, doubt_of, least_quantile_factor, shipped_spreads

RANKED = 40
"""Plans of which the exact engine proves that no other is faster, and which are ranked."""


@dataclass(frozen=True, slots=True)
class Risk:
    """How plans are ranked by a quantile.

    probability : with which a step is no longer than the quantile.
    fastest : the plan that is best by the expected step, and its place in this ranking.
    part : of what the fastest plan's step has more doubt than the first's; empty where it is the first.
    ranked : plans that were ranked. gap : by what share at most another plan's quantile is better than the first's.
    """

    probability: float
    fastest: Candidate
    place: int
    part: str
    ranked: int
    gap: float

    def factor(self, candidate: Candidate) -> float:
        """The quantile of a plan's step time over the step time."""
        return candidate.answer.interval.quantile(self.probability)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "probability": self.probability,
            "fastest": self.fastest.to_dict(),
            "place_of_fastest": self.place,
            "more_doubt": self.part or None,
            "plans_ranked": self.ranked,
            "gap": self.gap,
        }


def check_risk(probability: float, objective: str = "step_time") -> None:
    """Refuse what no ranking can be by.

    Raises SpecError: names the value, the rule and the remedy.
    """
    if not 0.5 <= probability < 1.0:
        raise SpecError(f"--risk {probability:g} must be at least 0.5 and below 1, such as 0.9")
    if objective == "memory_headroom":
        raise SpecError("--risk speaks of step times, and --objective memory_headroom of memory; leave one out")


def at_risk(result: SearchResult, probability: float, top: int = 10) -> SearchResult:
    """The best plans of a result in the order of a quantile of what the objective makes smallest.

    Parameters
    ----------
    result : SearchResult
        Of a search for the best RANKED plans or more.
    probability : float
        With which a step is no longer than the quantile: 0.9. At 0.5 the order is that of the expected step.
    top : int
        How many to return.

    Raises
    ------
    SpecError
        The probability is below a half, or not below one; or the objective is memory.
    """
    check_risk(probability, result.objective)
    fastest = result.best[0]
    risk = Risk(probability, fastest, 1, "", len(result.best), 0.0)
    worth = {id(each): each.worth(result.objective) * risk.factor(each) for each in result.best}
    ranked = sorted(result.best, key=lambda each: worth[id(each)])
    slowest = result.best[-1].worth(result.objective)
    bound = slowest * least_quantile_factor(fastest.scenario, probability)
    risk = replace(
        risk,
        place=1 + ranked.index(fastest),
        part="" if ranked[0] is fastest else _more_doubt(fastest, ranked[0]),
        gap=gap_of(worth[id(ranked[0])], bound),
    )
    return replace(result, best=tuple(ranked[:top]), top=top, risk=risk)


def _more_doubt(one: Candidate, other: Candidate) -> str:
    """The part of a step of which one plan has most more doubt than the other."""
    spreads = shipped_spreads()
    first, second = (
        doubt_of(each.scenario, each.answer.breakdown.shares()).loads(spreads) ** 2 for each in (one, other)
    )
    return list(PARTS)[int(np.argmax(first - second))]
