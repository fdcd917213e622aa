"""Sweeps summed up by source: regret, rank correlation, and what repeated measurements say of chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flopcast_validation.runs.sweeps import GOAL, SweepScore

FEWEST_REPEATED = 3
"""Layouts that a source must have measured more than once for their spread to stand for its sweeps."""
_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The sweeps of one source, or of all.

    within : sweeps whose regret is at most GOAL.
    repeated, spread : layouts that were measured more than once, and the standard deviation of the logarithm of one
        such measurement; None without.
    oracle_regret : mean regret of a planner who knows the truth, on measurements that spread so; None where too few
        were repeated. A lower bound: what was measured, chance included, is taken for the truth.
    """

    source: str
    sweeps: int
    runs: int
    within: int
    mean_regret: float
    median_regret: float
    worst_regret: float
    mean_tau: float | None
    repeated: int
    spread: float | None
    oracle_regret: float | None


def summaries_of(sweeps: Sequence[SweepScore]) -> list[SweepSummary]:
    """One for every source, in their order, and one for all."""
    sources = dict.fromkeys(each.source for each in sweeps)
    found = [_summary(source, [each for each in sweeps if each.source == source]) for source in sources]
    return [*found, _summary("all", sweeps)] if sweeps else []


def _summary(name: str, sweeps: Sequence[SweepScore]) -> SweepSummary:
    regrets = np.array([each.regret for each in sweeps])
    taus = [each.tau for each in sweeps if each.tau is not None]
    repeated, spread = spread_of(sweeps)
    # The spread of one source says nothing of another's.
    known = spread is not None and repeated >= FEWEST_REPEATED and len({each.source for each in sweeps}) == 1
    return SweepSummary(
        source=name,
        sweeps=len(sweeps),
        runs=sum(each.count for each in sweeps),
        within=int((regrets <= GOAL).sum()),
        mean_regret=float(regrets.mean()),
        median_regret=float(np.median(regrets)),
        worst_regret=float(regrets.max()),
        mean_tau=float(np.mean(taus)) if taus else None,
        repeated=repeated,
        spread=spread,
        oracle_regret=float(np.mean([oracle_regret(each, spread or 0.0) for each in sweeps])) if known else None,
    )


def spread_of(sweeps: Sequence[SweepScore]) -> tuple[int, float | None]:
    """How many layouts were measured more than once, and the standard deviation of the log of one measurement."""
    squares, free, repeated = 0.0, 0, 0
    for layout in (layout for each in sweeps for layout in each.layouts if len(layout.runs) > 1):
        logs = np.log(layout.each_s)
        squares += float(((logs - logs.mean()) ** 2).sum())
        free += len(logs) - 1
        repeated += 1
    return repeated, float(np.sqrt(squares / free)) if free else None


def oracle_regret(sweep: SweepScore, spread: float, seed: int = 0) -> float:
    """Mean regret of one who picks what is fastest in truth, where every run's measurement spreads by chance.

    `spread` is the standard deviation of the logarithm of one measurement.
    """
    truth = np.log([layout.measured_s for layout in sweep.layouts])
    width = spread / np.sqrt([len(layout.runs) for layout in sweep.layouts])
    drawn = truth + width * np.random.default_rng(seed).standard_normal((_DRAWS, len(truth)))
    return float(np.expm1(drawn[:, truth.argmin()] - drawn.min(axis=1)).mean())
