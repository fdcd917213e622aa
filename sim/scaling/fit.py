"""A loss law of your own: L = E + A/N^alpha + B/D^beta fitted to measured runs, with bootstrap intervals.

As Hoffmann et al. 2022 (arXiv:2203.15556, section 3.3) and Besiroglu et al. 2024 (arXiv:2404.10102) do it: the sum of
Huber losses of log L, with log L = logsumexp(a − alpha log N, b − beta log D, e), from the best of a grid of starts.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from sim.arrays import Floats
from sim.errors import SpecError, nearest, require_positive
from sim.files import MEASUREMENTS, read_text
from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, LossLaw, PowerSum

COLUMNS = ("params", "tokens", "loss")
NAMES = ("a", "b", "irreducible", "alpha", "beta")
HUBER_DELTA = 1e-3
"""Residual of log L from which errors count linearly, as in both papers."""
LEAST_RUNS = 8
"""Five constants need more runs than constants, and some of them to disagree."""
_GRID = [np.arange(0, 26, 5), np.arange(0, 26, 5), np.arange(-1, 1.1, 0.5), *[np.arange(0, 2.1, 0.5)] * 2]
"""Starts of log A, log B, log E, alpha and beta (Hoffmann et al. 2022, appendix D.2)."""
_STARTS = 40
"""Starts that are tried. A dozen may all lie beside the valley of the least loss where few runs are noisy."""
_LEAST_SHARE, _STEEPEST = 1e-4, 5.0
"""A part of the loss that is smaller everywhere, or whose exponent is larger, falls by no power law."""


@dataclass(frozen=True, slots=True)
class LossFit:
    """A fitted law.

    runs : parameters, tokens and losses, (3, runs).
    constants : A, B, E, alpha and beta; draws : those of every bootstrap, one a row.
    objective : sum of Huber losses of log L. residual : root mean square of log L.
    """

    runs: Floats
    constants: Floats
    draws: Floats
    objective: float
    residual: float

    def interval(self, name: str, level: float = 0.9) -> tuple[float, float]:
        """Bootstrap interval of a constant, or of `exponent`, that of the best N in C."""
        alpha, beta = self.draws[:, 3:].T
        values = beta / (alpha + beta) if name == "exponent" else self.draws[:, NAMES.index(name)]
        return _percentiles(values, level)

    def params_interval(self, flop: float, level: float = 0.9) -> tuple[float, float]:
        """Bootstrap interval of the compute-optimal number of parameters, over draws whose loss falls with both."""
        falling = self.draws[(self.draws[:, 3:] > 0).all(axis=1)]
        return _percentiles(np.array([float(_form(row).allocation(flop)) for row in falling]), level)

    def law(self, name: str = "yours") -> LossLaw:
        """The fit as a law, to compare with the published ones."""
        form, flop = _form(self.constants), FLOP_PER_PARAM_TOKEN * self.runs[0] * self.runs[1]
        return LossLaw(
            name,
            f"fitted to {len(flop)} runs",
            "your runs",
            "fitted here",
            form.allocation,
            form,
            form.frontier,
            exponent_interval=self.interval("exponent"),
            interval_is="90 % of bootstraps",
            fitted_flop=(float(flop.min()), float(flop.max())),
        )


def read_runs(path: Path) -> Floats:
    """Read a CSV with the columns params, tokens and loss, (3, runs); other columns are ignored.

    Raises SpecError: a column is missing, or a number is none above zero.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, MEASUREMENTS, "table of runs"), newline=""))
        reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
        for column in COLUMNS:
            if column not in names:
                raise SpecError(f"{path} lacks the column {column!r}{nearest(column, names)}")
        rows = [[_number(path, reader.line_num, name, row[name]) for name in COLUMNS] for row in reader]
    except csv.Error as error:
        raise SpecError(f"cannot read {path}: {error}") from None
    if not rows:
        raise SpecError(f"{path} holds no runs; write one a line: {', '.join(COLUMNS)}")
    return np.array(rows).T


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float((text or "").replace("_", ""))
        require_positive(**{name: value})
    except (ValueError, SpecError):
        raise SpecError(f"{path}: line {line}: {name} = {text!r} is not a finite number above zero") from None
    return value


def fit_loss(runs: Floats, bootstraps: int = 200, seed: int = 0) -> LossFit:
    """Fit a law to runs.

    runs : parameters, tokens and losses, (3, runs).
    bootstraps : resamples of the runs, each fitted again from the best fit.
    seed : of the resampling: the same runs and seed give the same intervals.

    Raises SpecError: there are too few runs, or their loss does not fall with both as powers do.
    """
    _check(runs)
    logs = np.log(runs)
    best, objective = min((_minimised(start, logs) for start in _best_starts(logs)), key=lambda found: found[1])
    _check_falls(best, logs)
    chosen = np.random.default_rng(seed).integers(0, logs.shape[1], (bootstraps, logs.shape[1]))
    with np.errstate(over="ignore"):
        draws = _constants(np.array([_minimised(best, logs[:, rows])[0] for rows in chosen]))
    draws = draws[np.isfinite(draws).all(axis=1) & (draws[:, :2] > 0).all(axis=1)]  # of some no power law is near
    if len(draws) < bootstraps / 2:
        raise SpecError("most resamples of these runs follow no power law, so none is known; give more runs")
    residual = float(np.sqrt(np.mean(_residuals(best, logs) ** 2)))
    return LossFit(runs, _constants(best), draws, objective, residual)


def _check(runs: Floats) -> None:
    if (number := runs.shape[1]) < LEAST_RUNS:
        raise SpecError(f"{number} runs cannot fix five constants; give at least {LEAST_RUNS}")
    for name, values in zip(COLUMNS[:2], runs, strict=False):
        if (distinct := len(np.unique(values))) < 3:
            raise SpecError(
                f"{name} takes only {distinct} different value{'s' * (distinct > 1)}, so its exponent cannot be told "
                f"from the irreducible loss; vary {name} over at least three"
            )


def _check_falls(theta: Floats, logs: Floats) -> None:
    """Refuse a fit whose loss has no part that falls with the parameters, or with the tokens."""
    terms = _terms(theta, logs)
    shares = np.exp(terms - np.logaddexp.reduce(terms)).max(axis=1)
    for name, share, exponent in zip(COLUMNS[:2], shares, theta[3:], strict=False):
        if share < _LEAST_SHARE or exponent <= 0:
            raise SpecError(f"the loss of these runs does not fall with {name}, so there is no law to fit; check them")
        if exponent > _STEEPEST:
            raise SpecError(
                f"the loss of these runs does not fall with {name} as a power law does. The exponent that fits best is "
                f"{exponent:.3g}, published ones are below 1; check the runs"
            )


def _terms(theta: Floats, logs: Floats) -> Floats:
    """The three exponents of the logsumexp, one a row; theta may be (5) or (5, starts, 1)."""
    a, b, e, alpha, beta = theta
    return np.stack(np.broadcast_arrays(a - alpha * logs[0], b - beta * logs[1], e))


def _residuals(theta: Floats, logs: Floats) -> Floats:
    """Log of the predicted loss less that of the measured one."""
    return np.asarray(np.logaddexp.reduce(_terms(theta, logs)) - logs[2])


def _slopes(theta: Floats, logs: Floats) -> Floats:
    """Derivatives of the residuals; (runs, 5)."""
    terms = _terms(theta, logs)
    a, b, e = np.exp(terms - np.logaddexp.reduce(terms))
    return np.stack([a, b, e, -a * logs[0], -b * logs[1]], axis=1)


def _best_starts(logs: Floats) -> Floats:
    """The starts of the grid with the least sum of Huber losses; on 500 of the runs where there are more."""
    grid = np.array(list(product(*_GRID)))
    size = np.abs(_residuals(grid.T[..., np.newaxis], logs[:, :: max(1, logs.shape[1] // 500)]))
    huber = np.where(size <= HUBER_DELTA, size**2 / 2, HUBER_DELTA * (size - HUBER_DELTA / 2))
    return np.asarray(grid[np.argsort(huber.sum(axis=1), kind="stable")[:_STARTS]])


def _minimised(start: Floats, logs: Floats) -> tuple[Floats, float]:
    """The constants of the least sum of Huber losses near a start, and that sum."""
    from scipy.optimize import least_squares

    found = least_squares(
        _residuals, start, _slopes, args=(logs,), loss="huber", f_scale=HUBER_DELTA, x_scale="jac", ftol=1e-10
    )
    return found.x, float(found.cost)


def _constants(theta: Floats) -> Floats:
    return np.concatenate([np.exp(theta[..., :3]), theta[..., 3:]], axis=-1)


def _form(constants: Floats) -> PowerSum:
    return PowerSum(**dict(zip(NAMES, constants.tolist(), strict=True)))


def _percentiles(values: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
