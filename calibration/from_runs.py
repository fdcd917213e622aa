"""Fit a profile and a stack to measured training runs, drawn towards the bottom-up values they start from.

A step time mixes everything, so runs identify few parameters at once. Each is held within physical bounds and drawn to
its bottom-up value in units of a prior width; what the runs say nothing about stays there and is listed. Families
(one lineage and model) weigh alike, however many rows they have, and are what cross-validation leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from flopcast_calibration.priors import priors, start_of, with_values
from flopcast_calibration.readers.training_runs import Run
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.specs import Scenario

IDENTIFIED = 0.6
"""A parameter whose posterior width is more than this share of its prior width is called not identified."""

SURPRISING = 3.0
"""Errors, in noises of a run, beyond which the values do not account for it."""
MOVED = 0.01
"""A parameter that stays within this share of its prior width was not moved: the runs do not depend on it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One fitted value: where it started, where it came to, and how much the runs had to say."""

    name: str
    prior: float
    value: float
    width: float
    """Posterior standard deviation."""
    prior_width: float
    left_out: tuple[float, ...] = ()
    """Its value in the fits that each left a fold of families out."""

    @property
    def identified(self) -> bool:
        """Whether the runs narrowed it down."""
        return self.width < IDENTIFIED * self.prior_width

    @property
    def at_bound(self) -> bool:
        """Whether it went as far as physics lets it."""
        known = priors().parameters[self.name]
        ends = [end for end in (known.lower, known.upper) if end != self.prior]
        return self.moved and any(abs(self.value - end) < 0.01 * self.prior_width for end in ends)

    @property
    def moved(self) -> bool:
        """Whether the runs moved it at all."""
        return abs(self.value - self.prior) > MOVED * self.prior_width


@dataclass(frozen=True, slots=True)
class RunsFit:
    """What came of a fit.

    before, errors, left_out_errors : predicted over measured step time − 1 of every run: bottom-up, fitted on all, and
        fitted on other families; None without cross-validation.
    """

    runs: tuple[Run, ...]
    parameters: tuple[Parameter, ...]
    before: np.ndarray
    errors: np.ndarray
    left_out_errors: np.ndarray | None

    @property
    def explained(self) -> tuple[Run, ...]:
        """Runs that the fitted values account for, but for what runs of one framework differ by."""
        most = SURPRISING * priors().noise
        return tuple(run for run, error in zip(self.runs, self.errors, strict=True) if abs(np.log1p(error)) <= most)

    @property
    def values(self) -> dict[str, float]:
        """Fitted value by name."""
        return {parameter.name: parameter.value for parameter in self.parameters}


def predict(run: Run, values: dict[str, float] | None = None) -> Estimate:
    """The estimate of a run: of its choices the fastest that fits; where none does, with the first change that saves
    memory and so makes one fit, or with the last.

    Parameters
    ----------
    values : dict, optional
        Of a profile and a stack, laid over the run's.

    Raises
    ------
    FlopcastError
        No choice can be simulated.
    """
    best = _fastest(run.choices, values, run.id)
    for changes, _ in run.memory_savings:
        if best.fits:
            break
        smaller = [scenario.replace(plan=scenario.plan.replace(**changes)) for scenario in run.choices]
        best = _fastest(smaller, values, run.id)
    return best


def _fastest(scenarios: Sequence[Scenario], values: dict[str, float] | None, name: str) -> Estimate:
    """The fastest estimate, of those that fit if any does."""
    best: tuple[tuple[bool, float], Estimate] | None = None
    problem: FlopcastError | None = None
    for scenario in scenarios:
        changed = with_values(scenario, values) if values else scenario
        try:
            answer = estimate(changed)
        except FlopcastError as error:
            problem = error
            continue
        # Of a row without a batch the choices differ in it.
        rank = (not answer.fits, answer.step_time_s / changed.training.tokens_per_step)
        if best is None or rank < best[0]:
            best = rank, answer
    if best is None:
        raise problem or FlopcastError(f"{name} has no scenario")
    return best[1]


def fit_runs(
    runs: Sequence[Run],
    parameters: Sequence[str],
    *,
    folds: int = 5,
    most_per_family: int = 60,
    report: Callable[[str], None] = lambda text: None,
    slopes: Callable[[Scenario], np.ndarray] | None = None,
    progress: Callable[[str], None] = lambda now: None,
) -> RunsFit:
    """Fit the named parameters to the runs.

    Parameters
    ----------
    runs : sequence of Run
        Those without a scenario that can be simulated are left out. All of one profile and stack.
    parameters : sequence of str
        Names in `flopcast_calibration.priors`.
    folds : int
        Cross-validation leaves out one of so many groups of families at a time; below 2 there is none.
    most_per_family : int
        Of larger families an even sample is fitted; all are scored.
    slopes : function, optional
        `sensitivities` of a scenario, taken to hold wherever the values go: for many small fits to the same runs.
    progress : function
        Told at every set of values that is tried.
    """
    pairs = [(run, answer) for run in runs if (answer := _settle(run)) is not None]
    if not pairs:
        raise FlopcastError("no run can be modelled; flopcast validate --runs says why, row by row")
    usable, settled = (tuple(column) for column in zip(*pairs, strict=True))
    first = usable[0].choices[0]
    prior = {name: start_of(first, name) for name in parameters}
    families = sorted({run.family for run in usable})
    everything, widths = _fit(settled, prior, most_per_family, slopes, progress)
    report(f"fitted on {len(usable)} runs of {len(families)} families")
    before, errors = (_errors(settled, values) for values in (prior, everything))
    left_out, values_left_out = None, []
    if folds >= 2 and len(families) >= 2:
        left_out = errors.copy()
        count = min(folds, len(families))
        # The largest families first, each to the fold with fewest rows.
        sizes = {family: sum(run.family == family for run in usable) for family in families}
        loads = [0] * count
        member: dict[str, int] = {}
        for family in sorted(families, key=lambda name: (-sizes[name], name)):
            fold = int(np.argmin(loads))
            loads[fold] += sizes[family]
            member[family] = fold
        for fold in range(count):
            inside = [run for run in settled if member[run.family] != fold]
            values, _ = _fit(inside, prior, most_per_family, slopes, progress)
            values_left_out.append(values)
            for index, run in enumerate(settled):
                if member[run.family] == fold:
                    left_out[index] = _errors([run], values)[0]
            report(f"left out {fold + 1} of {count}")
    found = tuple(
        Parameter(
            name,
            prior[name],
            everything[name],
            widths[name],
            priors().parameters[name].width_at(prior[name]),
            tuple(values[name] for values in values_left_out),
        )
        for name in parameters
    )
    return RunsFit(usable, found, before, errors, left_out)


def _settle(run: Run) -> Run | None:
    """The run with what its authors tuned settled by the bottom-up profile, so that a fit compares like with like.

    None where it cannot be simulated.
    """
    try:
        return replace(run, choices=(predict(run).scenario,), memory_savings=())
    except FlopcastError:
        return None


def _errors(runs: Sequence[Run], values: dict[str, float]) -> np.ndarray:
    return np.array([_ratio(run, values) - 1.0 for run in runs])


def _ratio(run: Run, values: dict[str, float]) -> float:
    answer = predict(run, values)
    return answer.step_time_s / run.step_time_s(answer.scenario)


def _fit(
    runs: Sequence[Run],
    prior: dict[str, float],
    most_per_family: int,
    slopes: Callable[[Scenario], np.ndarray] | None = None,
    progress: Callable[[str], None] = lambda now: None,
) -> tuple[dict[str, float], dict[str, float]]:
    """Values, and posterior widths from the curvature at the best fit."""
    chosen: list[Run] = []
    weights: list[float] = []
    for family in sorted({run.family for run in runs}):
        members = [run for run in runs if run.family == family]
        sample = members[:: max(1, -(-len(members) // most_per_family))]
        chosen += sample
        # A family of many rows counts as the square root of their number: rows of a sweep share their errors.
        weights += [len(sample) ** -0.25] * len(sample)
    weight = np.array(weights)
    names = list(prior)
    known = priors()
    freedom = known.freedom
    centre = np.array([prior[name] for name in names])
    width = np.array([known.parameters[name].width_at(prior[name]) for name in names])
    low, high = (np.array([getattr(known.parameters[name], end) for name in names]) for end in ("lower", "upper"))
    start = np.clip(centre, low + 1e-3 * width, high - 1e-3 * width)
    surprises: dict[bytes, np.ndarray] = {}

    def surprise(x: np.ndarray) -> np.ndarray:
        """Error of every run, over the noise."""
        key = x.tobytes()
        if key not in surprises:
            progress(f"fitting {len(chosen)} runs: {len(surprises) + 1} sets of values tried")
            values = dict(zip(names, x * width, strict=True))
            surprises[key] = np.log([_ratio(run, values) for run in chosen]) / known.noise
        return surprises[key]

    def objective(x: np.ndarray) -> np.ndarray:
        r = surprise(x)
        # Half of its square is the negative logarithm of a Student t: a run far off bends the rest little.
        far = np.sign(r) * np.sqrt((freedom + 1) * np.log1p(r**2 / freedom))
        return np.concatenate([weight * far, x - centre / width])

    jacobian: str | Callable[[np.ndarray], np.ndarray] = "2-point"
    if slopes is not None:
        table = np.array([slopes(run.choices[0]) for run in chosen]) / known.noise

        def jacobian(x: np.ndarray) -> np.ndarray:
            r = surprise(x)
            far = np.sqrt((freedom + 1) * np.log1p(r**2 / freedom))
            steep = (freedom + 1) * np.maximum(np.abs(r), 1e-6) / (freedom + r**2) / np.maximum(far, 1e-6)
            return np.concatenate([(weight * steep)[:, None] * table, np.eye(len(names))])

    result = least_squares(
        objective,
        start / width,
        jac=jacobian,
        bounds=(low / width, high / width),
        diff_step=0.02,
        xtol=1e-3,
        ftol=1e-3,
        max_nfev=12,
    )
    curvature = result.jac.T @ result.jac
    spread = np.sqrt(np.diag(np.linalg.inv(curvature + 1e-9 * np.eye(len(names)))))
    return (
        dict(zip(names, (result.x * width).tolist(), strict=True)),
        dict(zip(names, (spread * width).tolist(), strict=True)),
    )
