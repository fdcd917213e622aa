"""A run of a table, what was predicted of it, and how far off that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any

from flopcast_calibration.readers.training_runs import Run, lineage_of
from sim.commands.options import finite
from sim.estimate import Estimate
from sim.specs import Scenario
from sim.specs.values import place_of
from sim.uncertainty import Doubt, Interval, facts_of, measured_doubts, shares_of, spread_of


@dataclass(frozen=True, slots=True)
class Scored:
    """One run and what was predicted of it; values in the run's unit.

    scenario : what was predicted; None where nothing was.
    error : predicted over measured step time − 1; positive is predicted too slow.
    interval : 90 % interval of the prediction, in the run's unit.
    fitted : its family was among those that set a value of the profile or stack.
    constant_error, six_nd_error : the naive guesses' errors, as `error`.
    extrapolated : something was extrapolated beyond what the profile was fitted on.
    shares : of the predicted step, by part (`sim.uncertainty.PARTS`).
    """

    run: Run
    scenario: Scenario | None = None
    predicted: float | None = None
    step_time_s: float | None = None
    error: float | None = None
    interval: tuple[float, float] | None = None
    fitted: bool = False
    skipped: str | None = None
    fits: bool | None = None
    choice: str = ""
    constant_error: float | None = None
    six_nd_error: float | None = None
    extrapolated: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def lineage(self) -> str:
        """Framework and organisation."""
        return lineage_of(self.run.family)

    @property
    def log_error(self) -> float:
        """Logarithm of the measured step time over the predicted one."""
        return -log(1.0 + (self.error or 0.0))

    @property
    def doubt(self) -> Doubt:
        """What an interval needs of a predicted run."""
        return Doubt(dict(self.shares), facts_of(self.scenario), place_of(self.scenario), self.log_error)

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the interval."""
        return None if self.interval is None else self.interval[0] <= self.run.measured <= self.interval[1]

    @property
    def half_width(self) -> float | None:
        """Half of the interval over the prediction."""
        known = self.interval is not None and self.predicted
        return (self.interval[1] - self.interval[0]) / 2 / self.predicted if known else None

    def estimated(self, answer: Estimate) -> Scored:
        """The run with what an estimate says of it."""
        told = {"fits": answer.fits, "extrapolated": answer.extrapolated}
        item = replace(self, **told, shares=shares_of(answer.breakdown.shares()))
        return item.timed(answer.scenario, answer.step_time_s)

    def timed(self, scenario: Scenario, step_time_s: float) -> Scored:
        """The run with another prediction, and the interval that goes with its scenario."""
        item, run = replace(self, scenario=scenario), self.run
        down, up = Interval(spread_of(item.doubt, measured_doubts(scenario)), item.doubt).reach
        low, high = sorted(run.in_unit(step_time_s * exp(side), scenario) for side in (-down, up))
        error = step_time_s / run.step_time_s(scenario) - 1.0
        predicted = run.in_unit(step_time_s, scenario)
        return replace(item, predicted=predicted, step_time_s=step_time_s, error=error, interval=(low, high))

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the JSON report; `error` is that of the predicted value in the run's own unit."""
        run = self.run
        return {
            **{name: getattr(run, name) for name in ("id", "source", "gpu", "framework", "family", "unit")},
            "measured": finite(run.measured),
            "predicted": self.predicted,
            "error": None if self.predicted is None else self.predicted / run.measured - 1.0,
            "time_error": self.error,
            "interval": None if self.interval is None else list(self.interval),
            "fitted": self.fitted,
            "fits": self.fits,
            "inferred": list(run.inferred),
            "chosen": self.choice,
            "skipped": self.skipped,
        }


def modelled(items: Sequence[Scored]) -> list[Scored]:
    """The runs that were predicted."""
    return [item for item in items if item.error is not None]
