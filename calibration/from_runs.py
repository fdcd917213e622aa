"""Fit a profile and a stack to measured training runs, drawn towards the bottom-up values they start from.

A step time mixes everything, so runs identify few parameters at once. Before they are seen, a value's logarithm is
normal around the bottom-up one, as wide as the part of a step that it sets was off in published runs
(`sim.uncertainty`). To first order step times are linear in these logarithms, so measured runs condition a normal. What
the runs say nothing about stays and is listed. Families (one lineage and model) weigh alike, however many rows they
have, and are what cross-validation leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flopcast_calibration.priors import priors, start_of, with_values
from flopcast_calibration.readers.training_runs import Run
from flopcast_calibration.sensitivity import sensitivities
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.specs import Scenario
from sim.uncertainty import Doubt, condition, facts_of, shipped_spreads

IDENTIFIED = 0.6
"""A parameter whose posterior width is more than this share of its prior width is called not identified."""

SURPRISING = 3.0
"""Errors, in standard deviations of what runs of one framework differ by, beyond which values do not account for a
run."""
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
        known = priors()[self.name]
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
        spreads = shipped_spreads()
        most = [SURPRISING * Doubt({}, facts_of(run.choices[0])).rest(spreads, told=True) for run in self.runs]
        left = np.abs(np.log1p(self.errors)) <= most
        return tuple(run for run, explained in zip(self.runs, left, strict=True) if explained)

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
        smaller = [with_changes(scenario, changes) for scenario in run.choices]
        best = _fastest(smaller, values, run.id)
    return best


def with_changes(scenario: Scenario, changes: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """Return the scenario with fields of some of its parts changed: part → field → value."""
    return scenario.replace(**{part: getattr(scenario, part).replace(**fields) for part, fields in changes.items()})


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
        It is told of every run that is varied.
    """
    pairs = [(run, answer) for run in runs if (answer := _settle(run)) is not None]
    if not pairs:
        raise FlopcastError("no run can be modelled; flopcast validate --runs says why, row by row")
    usable, settled = (tuple(column) for column in zip(*pairs, strict=True))
    slope_of = slopes or (lambda scenario: sensitivities(scenario, parameters))
    fit = _Fit(settled, parameters, most_per_family, slope_of, progress)
    prior = {name: start_of(usable[0].choices[0], name) for name in parameters}
    everything, widths = fit.values_of(prior, {run.family for run in usable})
    folds_of = _folds(usable, folds)
    report(f"fitted on {len(usable)} runs of {len({run.family for run in usable})} families")
    before, errors = (_errors(settled, values) for values in (prior, everything))
    left_out, values_left_out = (errors.copy() if folds_of else None), []
    for number, fold in enumerate(folds_of, start=1):
        values, _ = fit.values_of(prior, {run.family for run in usable} - fold)
        values_left_out.append(values)
        for index, run in enumerate(settled):
            if left_out is not None and run.family in fold:
                left_out[index] = _errors([run], values)[0]
        report(f"left out {number} of {len(folds_of)}")
    found = tuple(
        Parameter(
            name,
            prior[name],
            everything[name],
            widths[name],
            fit.scale * priors()[name].width * prior[name],
            tuple(values[name] for values in values_left_out),
        )
        for name in parameters
    )
    return RunsFit(usable, found, before, errors, left_out)


def _folds(runs: Sequence[Run], folds: int) -> list[set[str]]:
    """Groups of families to leave out in turn, the largest first, each to the group with fewest rows."""
    sizes = Counter(run.family for run in runs)
    if folds < 2 or len(sizes) < 2:
        return []
    found: list[set[str]] = [set() for _ in range(min(folds, len(sizes)))]
    for family in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(found, key=lambda fold: sum(sizes[each] for each in fold)).add(family)
    return found


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


class _Fit:
    """Errors of a sample of the runs, and how they depend on the parameters."""

    def __init__(
        self,
        runs: Sequence[Run],
        parameters: Sequence[str],
        most_per_family: int,
        slopes: Callable[[Scenario], np.ndarray],
        progress: Callable[[str], None],
    ) -> None:
        sizes = Counter(run.family for run in runs)
        every = {family: max(1, -(-size // most_per_family)) for family, size in sizes.items()}
        place: Counter[str] = Counter()
        self.runs = []
        for run in runs:
            if place[run.family] % every[run.family] == 0:
                self.runs.append(run)
            place[run.family] += 1
        self.parameters = parameters
        found = []
        for number, run in enumerate(self.runs, start=1):
            progress(f"fitting {len(self.runs)} runs: {number} varied")
            found.append(slopes(run.choices[0]))
        self.slopes = np.array(found)
        self.sizes = np.array([-np.log(_ratio(run, {})) for run in self.runs])
        # A family of many rows counts as the square root of their number: rows of a sweep share their errors.
        count = Counter(run.family for run in self.runs)
        spreads = shipped_spreads()
        self.noise = spreads.told * np.array([count[run.family] ** 0.25 for run in self.runs])
        scales = [Doubt({}, facts_of(run.choices[0])).scale(spreads) for run in self.runs]
        self.scale = float(np.exp(np.mean(np.log(scales))))  # runs of less known kinds are further off

    def values_of(self, prior: dict[str, float], families: set[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Values once the runs of some families are known, and their standard deviations."""
        here = [run.family in families for run in self.runs]
        known, slopes = [priors()[name] for name in self.parameters], self.scale * self.slopes[here]
        sizes, noise = self.sizes[here], self.scale * self.noise[here]
        open_ = np.ones(len(known), dtype=bool)
        values, sds = dict(prior), np.ones(len(known))
        while open_.any():
            mean, covariance = condition(slopes * open_, sizes, noise)
            sds[open_] = np.sqrt(np.diag(covariance))[open_]
            reached = np.zeros(len(known))
            for place in np.flatnonzero(open_):
                name, each = self.parameters[place], known[place]
                values[name] = each.moved(prior[name], self.scale * mean[place])
                reached[place] = each.sds(prior[name], values[name]) / self.scale
            beyond = open_ & (np.abs(mean - reached) > MOVED)
            if not beyond.any():
                break
            # What a value cannot take beyond its bound is left to the others.
            sizes, open_ = sizes - slopes @ (reached * beyond), open_ & ~beyond
        widths = self.scale * sds * np.array([each.width for each in known])
        return values, {name: values[name] * width for name, width in zip(self.parameters, widths, strict=True)}
