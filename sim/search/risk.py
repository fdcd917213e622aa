"""Plans ranked by a step time that they stay below with some probability, so that the winner is robust.

Every plan has its own interval, since each is made of other parts, which are known differently well
(`sim.uncertainty`). Plans that were run on the exact engine are ranked by a quantile of that. A plan that was not run
is no faster than the slowest of these, and its quantile is above its step time at least as far as that of a step made
of its parts in the best known shares: that bounds what was not ranked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sim.errors import SpecError
from sim.search.best_first import gap_of
from sim.search.candidate import Candidate
from sim.search.result import SearchResult
from sim.uncertainty import least_quantile_factor

RANKED = 40
"""Plans of which the exact engine proves that no other is faster, and which are ranked."""


@dataclass(frozen=True, slots=True)
class Risk:
    """How plans are ranked by a quantile.

    probability : with which a step is no longer than the quantile.
    fastest : the plan that is best by the expected step, and its place in this ranking.
    ranked : plans that were ranked. gap : by what share at most another plan's quantile is better than the first's.
    """

    probability: float
    fastest: Candidate
    place: int
    ranked: int
    gap: float

    def factor(self, candidate: Candidate) -> float:
        """The quantile of a plan's step time over the step time."""
        return candidate.answer.interval.quantile(self.probability)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        plain = {"probability": self.probability, "plans_ranked": self.ranked, "gap": self.gap}
        return {**plain, "fastest": self.fastest.to_dict(), "place_of_fastest": self.place}


def check_risk(probability: float) -> None:
    """Raise where a probability is below a half, or not below one."""
    if not 0.5 <= probability < 1.0:
        raise SpecError(f"--risk {probability:g} must be at least 0.5 and below 1, such as 0.9")


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
        The probability is below a half, or not below one.
    """
    check_risk(probability)
    fastest, slowest = result.best[0], result.best[-1].worth(result.objective)
    risk = Risk(probability, fastest, 1, len(result.best), 0.0)
    worth = [each.worth(result.objective) * risk.factor(each) for each in result.best]
    order = sorted(range(len(worth)), key=worth.__getitem__)
    gap = gap_of(min(worth), slowest * least_quantile_factor(fastest.scenario, probability))
    risk = replace(risk, place=1 + order.index(0), gap=gap)
    return replace(result, best=tuple(result.best[place] for place in order[:top]), top=top, risk=risk)
