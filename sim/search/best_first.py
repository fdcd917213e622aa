"""The best plans, proven: plans run in the order of a score that they cannot go below, until no other can win.

Whatever bounds a plan (the closed form, a bound of any order, the price in its own order), the loop is the same: once
the last of the best few is no worse than the bound of the next plan, none that was not run can be among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from sim.search.candidate import ROUNDING

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
    progress: Callable[[int], None] = lambda runs: None,
) -> Found[Answer]:
    """Run plans until the best few are proven or as many as wanted were run.

    Parameters
    ----------
    plans : iterable of (bound, run)
        No bound is above that of a later plan, but for plans that were run before; without a run it is that of plans
        that are not listed.
    found : Found
        Filled as plans are run: interrupted (KeyboardInterrupt), it has what was found so far.
    progress : callable
        Called with the runs after each.
    """
    for bound, run in plans:
        if found.reaches(bound) or run is None:
            return found
        ran = run()
        found.runs += 1
        found.ran += [] if ran is None else [ran]
        progress(found.runs)
    found.bound = np.inf
    return found
