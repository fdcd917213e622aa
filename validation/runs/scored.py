"""A run of a table, what was predicted of it, and how far off that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flopcast_calibration.readers.training_runs import Run
from sim.specs import Scenario


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
    def covered(self) -> bool | None:
        """Whether the measurement lies in the interval."""
        return None if self.interval is None else self.interval[0] <= self.run.measured <= self.interval[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the JSON report; `error` is that of the predicted value in the run's own unit."""
        run = self.run
        return {
            "id": run.id,
            "source": run.source,
            "gpu": run.gpu,
            "framework": run.framework,
            "family": run.family,
            "unit": run.unit,
            "measured": None if np.isnan(run.measured) else run.measured,
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
