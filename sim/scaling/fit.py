"""A loss law of your own: fit L = E + A/N^alpha + B/D^beta to measured runs, with bootstrap intervals.

As Hoffmann et al. 2022 (arXiv:2203.15556, section 3.3) and Besiroglu et al. 2024 (arXiv:2404.10102) do it: the Huber
loss of log L, with log L = logsumexp(a − alpha log N, b − beta log D, e), minimised by BFGS from the best of a grid
of starts. The Huber losses are summed; averaging them stops the search early, which is what went wrong in 2022.
BFGS and not L-BFGS: five unknowns need no limited memory, and SciPy's L-BFGS-B crawls on cores that are busy.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import SpecError, nearest, require_positive
from sim.files import MEASUREMENTS, read_text
from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, LossLaw, PowerSum, optimal_params, power_sum_loss

Array = NDArray[np.float64]

COLUMNS = ("params", "tokens", "loss")
HUBER_DELTA = 1e-3
"""Residual of log L from which errors count linearly, as in both papers."""
LEAST_RUNS = 8
"""Five constants need more runs than constants, and some of them to disagree."""
#: starts of a, b, e, alpha, beta: Hoffmann et al. 2022, appendix D.2
_GRID = (
    (0, 5, 10, 15, 20, 25),
    (0, 5, 10, 15, 20, 25),
    (-1, -0.5, 0, 0.5, 1),
    (0, 0.5, 1, 1.5, 2),
    (0, 0.5, 1, 1.5, 2),
)
_STARTS = 12
_PRICED = 500
_LEAST_SHARE = 1e-4
_STEEPEST = 5.0
"""Exponent above which a loss that falls is no power law: twice the tokens would leave 3 % of a part."""
_OPTIONS: Any = {"gtol": 1e-3, "maxiter": 1000}
_NAMES = ("a", "b", "irreducible", "alpha", "beta")


@dataclass(frozen=True, slots=True)
class Runs:
    """Measured training runs: parameters, tokens seen, final loss."""

    params: Array
    tokens: Array
    loss: Array

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, rows: Any) -> Runs:
        """Some of the runs, by mask or index."""
        return Runs(self.params[rows], self.tokens[rows], self.loss[rows])


@dataclass(frozen=True, slots=True)
class LossFit:
    """A fitted law.

    objective : sum of Huber losses of log L.
    residual : root mean square of log L − log of the prediction.
    draws : constants of every bootstrap, one a row: a, b, irreducible, alpha, beta.
    """

    form: PowerSum
    runs: Runs
    objective: float
    residual: float
    draws: Array

    def interval(self, name: str, level: float = 0.9) -> tuple[float, float]:
        """Bootstrap interval of a constant, or of `exponent`, that of the best N in C."""
        values = self.draws.T[_NAMES.index(name)] if name != "exponent" else self.draws[:, 4] / self.draws[:, 3:].sum(1)
        return _percentiles(values, level)

    def params_interval(self, flop: float, level: float = 0.9) -> tuple[float, float]:
        """Bootstrap interval of the compute-optimal number of parameters, over draws whose loss falls with both."""
        falling = self.draws[(self.draws[:, 3:] > 0).all(axis=1)]
        return _percentiles(np.array([optimal_params(flop, _form(row)) for row in falling]), level)

    def law(self, name: str = "yours") -> LossLaw:
        """The fit as a law, to compare with the published ones."""
        flop = FLOP_PER_PARAM_TOKEN * self.runs.params * self.runs.tokens
        return LossLaw(
            name,
            f"fitted to {len(self.runs)} runs",
            "your runs",
            "fitted here",
            form=self.form,
            exponent_interval=self.interval("exponent"),
            interval_is="90 % of bootstraps",
            fitted_flop=(float(flop.min()), float(flop.max())),
        )


def read_runs(path: Path) -> Runs:
    """Read a CSV with the columns params, tokens and loss; others are ignored."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, MEASUREMENTS, "table of runs"), newline=""))
        names = [name.strip() for name in reader.fieldnames or ()]
        for column in COLUMNS:
            if column not in names:
                raise SpecError(f"{path} lacks the column {column!r}{nearest(column, names)}")
        reader.fieldnames = names
        rows = [[_number(path, reader.line_num, name, row[name]) for name in COLUMNS] for row in reader]
    except csv.Error as error:
        raise SpecError(f"cannot read {path}: {error}") from None
    if not rows:
        raise SpecError(f"{path} holds no runs; write one a line: {', '.join(COLUMNS)}")
    return Runs(*np.array(rows, dtype=float).T)


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float((text or "").replace("_", ""))
        require_positive(**{name: value})
    except (ValueError, SpecError):
        raise SpecError(f"{path}: line {line}: {name} = {text!r} is not a finite number above zero") from None
    return value


def fit_loss(runs: Runs, bootstraps: int = 200, seed: int = 0) -> LossFit:
    """Fit a law to runs.

    bootstraps : resamples of the runs, each fitted again from the best fit.
    seed : of the resampling: the same runs and seed give the same intervals.
    """
    _check(runs)
    logs = np.log(np.stack([runs.params, runs.tokens, runs.loss]))
    best, objective = min((_minimise(start, logs) for start in _best_starts(logs)), key=lambda found: found[1])
    _check_falls(best, logs)
    rng = np.random.default_rng(seed)
    draws = np.empty((bootstraps, 5))
    for row in draws:
        row[:] = _constants(_minimise(best, logs[:, rng.integers(0, len(runs), len(runs))])[0])
    draws = draws[np.isfinite(draws).all(axis=1)]  # of some resamples no power law is near
    if len(draws) < bootstraps / 2:
        raise SpecError("most resamples of these runs follow no power law, so none is known; give more runs")
    form = _form(_constants(best))
    residual = logs[2] - np.log(power_sum_loss(runs.params, runs.tokens, form))
    return LossFit(form, runs, objective, float(np.sqrt(np.mean(residual**2))), draws)


def _check(runs: Runs) -> None:
    require_positive(params=runs.params, tokens=runs.tokens, loss=runs.loss)
    if len(runs) < LEAST_RUNS:
        raise SpecError(f"{len(runs)} runs cannot fix five constants; give at least {LEAST_RUNS}")
    for name, values in (("params", runs.params), ("tokens", runs.tokens)):
        distinct = len(np.unique(values))
        if distinct < 3:
            raise SpecError(
                f"{name} takes only {distinct} different value{'s' if distinct > 1 else ''}, so its exponent cannot be "
                f"told from the irreducible loss; vary {name} over at least three"
            )


def _check_falls(theta: Array, logs: Array) -> None:
    """Refuse a fit whose loss has no part that falls with the parameters, or with the tokens."""
    terms = _terms(theta, logs)
    shares = np.exp(terms - np.logaddexp.reduce(terms, axis=0)).max(axis=1)
    for name, share, exponent in zip(("params", "tokens"), shares, theta[3:], strict=False):
        if share < _LEAST_SHARE or exponent <= 0:
            raise SpecError(f"the loss of these runs does not fall with {name}, so there is no law to fit; check them")
        if exponent > _STEEPEST:
            raise SpecError(
                f"the loss of these runs does not fall with {name} as a power law does. The exponent that fits best is "
                f"{exponent:.3g}, published ones are below 1; check the runs"
            )


def _terms(theta: Array, logs: Array) -> Array:
    """The three exponents of the logsumexp, one a row; theta may be (5,) or (5, starts, 1)."""
    a, b, e, alpha, beta = theta
    return np.stack(np.broadcast_arrays(a - alpha * logs[0], b - beta * logs[1], e + 0 * logs[0]))


def _best_starts(logs: Array) -> list[Array]:
    """The grid's starts of least objective, priced all at once, on some of the runs where there are very many."""
    grid = np.array(list(product(*_GRID)), dtype=float)
    some = logs[:, :: max(1, logs.shape[1] // _PRICED)]
    terms = _terms(grid.T[..., np.newaxis], some)
    residual = some[2] - np.logaddexp.reduce(terms, axis=0)
    size = np.abs(residual)
    huber = np.where(size <= HUBER_DELTA, residual**2 / 2, HUBER_DELTA * (size - HUBER_DELTA / 2))
    price = huber.sum(axis=1)
    return [grid[i] for i in np.argsort(price, kind="stable")[:_STARTS]]


def _minimise(start: Array, logs: Array) -> tuple[Array, float]:
    """BFGS from one start, with the exact gradient."""
    from scipy.optimize import minimize

    log_params, log_tokens, log_loss = logs

    def objective(theta: Array) -> tuple[float, Array]:
        a, b, e, alpha, beta = theta.tolist()
        x, y = a - alpha * log_params, b - beta * log_tokens
        top = np.maximum(np.maximum(x, y), e)
        p, q, r = np.exp(x - top), np.exp(y - top), np.exp(e - top)
        total = p + q + r
        residual = log_loss - top - np.log(total)
        clipped = np.minimum(np.maximum(residual, -HUBER_DELTA), HUBER_DELTA)
        pull = clipped / total
        of_params, of_tokens = pull * p, pull * q
        gradient = np.array([
            -of_params.sum(), -of_tokens.sum(), -(pull @ r), of_params @ log_params, of_tokens @ log_tokens,
        ])  # fmt: skip
        # In units of the Huber delta, so that the tolerance means the same for any runs.
        return float(clipped @ (residual - clipped / 2)) / HUBER_DELTA**2, gradient / HUBER_DELTA**2

    found = minimize(objective, start, jac=True, method="BFGS", options=_OPTIONS)
    return found.x, float(found.fun) * HUBER_DELTA**2


def _constants(theta: Array) -> Array:
    with np.errstate(over="ignore"):  # whoever calls asks whether they are finite
        return np.array([*np.exp(theta[:3]), *theta[3:]])


def _form(constants: Array) -> PowerSum:
    a, b, irreducible, alpha, beta = (float(value) for value in constants)
    return PowerSum(irreducible, a, alpha, b, beta)


def _percentiles(values: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
