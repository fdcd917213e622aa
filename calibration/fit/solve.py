"""The solver behind every fit, the shape of its result, and its uncertainty.

Few points are common (a data sheet of ten multiplies), so every fit is drawn weakly to prior values, in units of a
prior width; many points overrule them. Residuals are relative (logarithms of time), and outliers count less (soft L1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sim.errors import ProfileError
from sim.specs.yaml12 import load_yaml


class Draw(NamedTuple):
    """What one parameter is drawn to, how strongly, and its bounds.

    width : in the parameter's unit; with `log`, a factor (3: to a third or three times the value).
    log : the parameter's order of magnitude is what is uncertain.
    """

    value: float
    width: float
    low: float
    high: float
    log: bool = False

    def anywhere(self, rng: np.random.Generator) -> Draw:
        """A draw with another value, as likely as its width says."""
        off = float(rng.standard_normal())
        value = self.value * self.width**off if self.log else self.value + self.width * off
        return self._replace(value=min(max(value, self.low), self.high))


Prior = dict[str, Draw]
"""The prior of each parameter, by its name."""
PRIORS: dict[str, Prior] = {
    of: {name: Draw(*draw) for name, draw in draws.items()}
    for of, draws in load_yaml(Path(__file__).parents[1] / "facts" / "fits.yaml").items()
}
LEAST_HALF = 4
"""Points a half needs for the error on unseen measurements to mean anything."""
LARGE_BYTES = 64e6
"""A message of this size shows a link's bandwidth: its latency hardly counts. [bytes]"""


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters, how far the fit is from its own data, and how sure they are.

    residuals : log(predicted time / measured time) of every point.
    misfit : those residuals for any other parameters; None for a fit that is a plain average.
    count : measurements that it was fitted to.
    intervals : 90 % bootstrap interval of every parameter.
    unseen : median error on measurements that a fit to half of them has not seen.
    short : a few sizes tell a bandwidth; latencies and small messages are as in the base, and their intervals as wide
        as is known of any such link.
    """

    params: dict[str, float]
    residuals: np.ndarray
    misfit: Callable[[dict[str, float]], np.ndarray] | None = None
    count: int = 0
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    unseen: float | None = None
    short: bool = False

    @property
    def median_error(self) -> float:
        """Median absolute relative error."""
        return float(np.median(np.abs(np.expm1(self.residuals))))


def fit_to(
    predict: Callable[[dict[str, float]], np.ndarray],
    measured: np.ndarray,
    prior: Prior,
    noise: float = 0.05,
    starts: Sequence[dict[str, float]] = ({},),
) -> Fit:
    """Find the parameters whose predicted times [s] are nearest to the measured ones [s].

    `noise` is the relative noise of a measurement, which sets how much a point weighs against the prior. The search
    begins at the prior values and at those of `starts`, and the nearest of all that is found counts. Several starts are
    needed where parameters decide nothing unless they are far from the prior.
    """
    names = list(prior)
    log = np.array([prior[name].log for name in names])
    columns_ = (np.array([prior[name][i] for name in names]) for i in range(4))
    centre, width, low, high = (np.log(column, where=log, out=column.astype(float)) for column in columns_)

    def params_at(x: np.ndarray) -> dict[str, float]:
        values = x * width
        return dict(zip(names, np.exp(values, where=log, out=values).tolist(), strict=True))

    def misfit(x: np.ndarray) -> np.ndarray:
        return np.log(predict(params_at(x)) / measured)

    def objective(x: np.ndarray) -> np.ndarray:
        pull = x - centre / width
        # Soft L1 on the data alone: scaled so that the solver's plain squares see it.
        r = misfit(x) / noise
        return np.concatenate([np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r**2) - 1)), pull])

    bounds = (low / width, high / width)
    if not np.isfinite(objective(_placed(starts[0], prior, log) / width)).all():
        wrong = int(np.flatnonzero(~np.isfinite(misfit(_placed(starts[0], prior, log) / width)))[0])
        raise ProfileError(
            f"measurement {wrong + 1:,} of {len(measured):,} to which {', '.join(list(prior)[:3])} are fitted took "
            f"{measured[wrong]:.3g} s, which no size explains: take it out"
        )
    results = [
        least_squares(objective, _placed(start, prior, log) / width, bounds=bounds, diff_step=1e-3) for start in starts
    ]
    result = min(results, key=lambda found: float(found.cost))
    params = params_at(result.x)
    return Fit(params, misfit(result.x), lambda given: np.log(predict(given) / measured))


def _placed(start: dict[str, float], prior: Prior, log: np.ndarray) -> np.ndarray:
    """A starting point on the axes that are searched."""
    values = np.array([start.get(name, draw.value) for name, draw in prior.items()])
    return np.log(values, where=log, out=values)


def bootstrap(
    points: pd.DataFrame, fit: Callable[[pd.DataFrame], Fit], draws: int, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """90 % interval of every parameter, refitting on points drawn with replacement."""
    rng = np.random.default_rng(seed)
    values: dict[str, list[float]] = {}
    for _ in range(draws):
        for name, value in fit(points.iloc[rng.integers(0, len(points), len(points))]).params.items():
            values.setdefault(name, []).append(value)
    return {name: (float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))) for name, drawn in values.items()}


def drawn_intervals(
    points: pd.DataFrame, fit: Callable[..., Fit], prior: Prior, draws: int, noise: float = 0.05, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """90 % interval of every parameter where points are too few to be drawn with replacement.

    Every refit has noise on its times and other prior values: what the points do not tell is as wide as its prior [1]_.

    .. [1] Bardsley et al. 2014, "Randomize-then-optimize", SIAM J. Sci. Comput. 36:A1895.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        others = {name: draw.anywhere(rng) for name, draw in prior.items()}
        timed = points.assign(time_s=points.time_s * np.exp(noise * rng.standard_normal(len(points))))
        found.append(fit(timed, prior=others).params)
    limits = {name: np.quantile([params[name] for params in found], (0.05, 0.95)).tolist() for name in found[0]}
    return {name: (low, high) for name, (low, high) in limits.items()}


def unseen_error(points: pd.DataFrame, fit: Callable[[pd.DataFrame], Fit], seed: int = 0) -> float | None:
    """Median relative error on measurements the fit has not seen: each half of them predicted by a fit to the other.

    None where there are too few, or where the fit is a plain average.
    """
    mixed = np.random.default_rng(seed).permutation(len(points))
    first, second = (points.iloc[np.sort(half)] for half in (mixed[::2], mixed[1::2]))
    if len(second) < LEAST_HALF:
        return None
    one, other = fit(first), fit(second)
    if one.misfit is None or other.misfit is None or one.params.keys() != other.params.keys():
        return None
    residuals = np.concatenate([one.misfit(other.params), other.misfit(one.params)])
    return float(np.median(np.abs(np.expm1(residuals))))


def columns(points: pd.DataFrame, *names: str) -> list[np.ndarray]:
    """The named values of all points, an array each."""
    return [points[name].to_numpy(float) for name in names]
