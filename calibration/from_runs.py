"""Fit a profile and a stack to measured training runs, drawn towards the bottom-up values they start from.

A step time mixes everything, so runs identify few parameters at once. Before they are seen, the seconds of each part of
a step are off as they were in published runs (`sim.uncertainty`). To first order a step time is longer by the sum of
that over its parts, each times its share of the step, so measured runs condition a normal, and the values that set a
part move with it. Every run pulls a scenario's values by what the two have in common, so that runs which disagree each
speak for what is like them. What the runs say nothing about stays and is listed. Families (one lineage and model) weigh
alike, however many rows they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flopcast_calibration.readers.training_runs import Run
from sim.errors import FlopcastError, SpecError, nearest
from sim.estimate import Estimate, estimate
from sim.specs import Scenario, build_scenario
from sim.specs.values import closeness, place_of, start_of, with_values
from sim.specs.yaml12 import load_yaml
from sim.uncertainty import PARTS, REST, Doubt, Spreads, doubt_of, shipped_spreads

IDENTIFIED = 0.6
"""A parameter whose posterior width is more than this share of its prior width is called not identified."""

MOVED = 0.01
"""A parameter that stays within this share of its prior width was not moved: the runs do not depend on it."""


class ParameterPrior(NamedTuple):
    """What a value sets, and how far it may lie from where a fit starts.

    part : of a step, whose seconds it sets (`sim.uncertainty.PARTS`).
    power : of the factor on these seconds, by which the value is multiplied.
    lower, upper : bounds.
    """

    part: str
    power: float
    lower: float
    upper: float

    def pulled(self, start: float, size: float) -> float:
        """The value, from where it starts, times a factor given as a logarithm, within the bounds."""
        return min(max(start * exp(min(size, 700.0)), min(self.lower, start)), max(self.upper, start))

    def reached(self, start: float, value: float) -> float:
        """Logarithm of the factor by which the value makes its part longer."""
        return log(value / start) / self.power if start > 0.0 else 0.0


@cache
def priors() -> dict[str, ParameterPrior]:
    """What is known of every value before a run is seen, by path: "stack." of a StackSpec, the rest of a Profile."""
    data: dict[str, Any] = load_yaml(Path(__file__).parent / "facts" / "priors.yaml")
    return {name: ParameterPrior(**fields) for name, fields in data.items()}


def parameters_named(names: Sequence[str] | None) -> list[str]:
    """These parameters, or all; one that there is not is refused, and the nearest named."""
    known = priors()
    for name in names or ():
        if name not in known:
            raise SpecError(f"unknown parameter {name!r}{nearest(name, known)}")
    return list(names or known)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One fitted value: where it started, where it came to, and how much the runs had to say."""

    name: str
    prior: float
    value: float
    width: float
    """Posterior standard deviation."""
    prior_width: float

    @property
    def identified(self) -> bool:
        """Whether the runs narrowed it down."""
        return self.width < IDENTIFIED * self.prior_width

    @property
    def at_bound(self) -> bool:
        """Whether it went as far as physics lets it."""
        ends = [end for end in self.ends if end != self.prior]
        return self.moved and any(abs(self.value - end) < 0.01 * self.prior_width for end in ends)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the most that it may be."""
        known = priors()[self.name]
        return known.pulled(self.prior, -np.inf), known.pulled(self.prior, np.inf)

    @property
    def moved(self) -> bool:
        """Whether the runs moved it at all."""
        return abs(self.value - self.prior) > MOVED * self.prior_width


@dataclass(frozen=True, slots=True)
class RunsFit:
    """What came of a fit.

    answers : bottom-up estimates of the runs.
    too_far : runs further off than ODD standard deviations of all that may move, which changed nothing.
    before, errors : predicted over measured step time − 1 of every run, bottom-up and fitted.
    """

    runs: tuple[Run, ...]
    answers: tuple[Estimate, ...]
    parameters: tuple[Parameter, ...]
    before: np.ndarray
    errors: np.ndarray
    too_far: tuple[Run, ...]
    drawn: Drawn

    @property
    def explained(self) -> tuple[Run, ...]:
        """Runs that the fitted values account for, but for what runs of one framework differ by."""
        pairs = zip(self.runs, np.log1p(self.errors), strict=True)
        return tuple(run for run, left in pairs if abs(left) <= ODD * REST)

    @property
    def values(self) -> dict[str, float]:
        """Fitted value by name."""
        return {parameter.name: parameter.value for parameter in self.parameters}


def predict(run: Run, values: dict[str, float] | None = None) -> Estimate:
    """The estimate of a run, with values laid over its profile and stack: of its choices the fastest that fits.

    Where none fits, the first change that saves memory and so makes one fit is taken, or the last. FlopcastError is
    raised where no choice can be simulated.
    """
    best = _fastest(run.choices, values, run.id)
    for changes, _ in run.memory_savings:
        if best.fits:
            break
        smaller = [with_changes(file, changes) for file in run.files]
        best = _fastest(smaller, values, run.id)
    return best


def with_changes(file: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]) -> Scenario:
    """Return the scenario of a file with some fields changed: part → field → value.

    What a framework does may follow from them (with adapters it fuses less), so the scenario is built anew.
    """
    return build_scenario({**file, **{part: {**file[part], **fields} for part, fields in changes.items()}})


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
    runs: Sequence[Run], parameters: Sequence[str], progress: Callable[[str], None] = lambda now: None
) -> RunsFit:
    """Fit the named parameters (`flopcast_calibration.from_runs`) to runs of one profile and stack.

    Runs without a scenario that can be simulated are left out. `progress` is told of every run that is estimated.
    """
    pairs = []
    for number, run in enumerate(runs, start=1):
        progress(f"estimating {len(runs)} runs: {number} done")
        with suppress(FlopcastError):
            pairs.append((run, predict(run)))
    if not pairs:
        raise FlopcastError("no run can be modelled; flopcast validate --runs says why, row by row")
    usable, answers = (tuple(column) for column in zip(*pairs, strict=True))
    # What a run's authors tuned is settled by the bottom-up profile, so that a fit compares like with like.
    settled = [replace(run, choices=(answer.scenario,), memory_savings=()) for run, answer in pairs]
    before = np.array([_error(*pair) for pair in zip(settled, answers, strict=True)])
    doubts = [
        as_driven(doubt_of(each.scenario, each.breakdown.shares()), each.scenario)._replace(log_error=-np.log1p(error))
        for each, error in zip(answers, before, strict=True)
    ]
    start = {name: start_of(usable[0].choices[0], name) for name in parameters}
    found = drawn_to(start, doubts)
    after = [_error(run, predict(run, found.values_at(place_of(run.choices[0])))) for run in settled]
    far = tuple(run for run, odd in zip(usable, found.odd, strict=True) if odd)
    return RunsFit(usable, answers, found.parameters(), before, np.array(after), far, found)


def _error(run: Run, answer: Estimate) -> float:
    return answer.step_time_s / run.step_time_s(answer.scenario) - 1.0


COMPUTED = ("matrix multiplies", "attention", "memory-bound kernels")
"""Parts that recomputation does again."""
TRAFFIC = ("tensor-parallel traffic", "pipeline sends", "data-parallel traffic")
"""Parts that NVLink carries where there is no other network."""


def as_driven(doubt: Doubt, scenario: Scenario) -> Doubt:
    """The step with its parts as values drive them: what waits and what is computed again goes with the work behind it,
    attention that is not fused with the memory-bound kernels that it is, and traffic inside one NVLink domain with that
    of tensor parallelism.
    """
    shares = dict(doubt.shares)
    again, waits = shares.pop("recomputation", 0.0), shares.pop("waiting", 0.0)
    computed = sum(shares.get(name, 0.0) for name in COMPUTED)
    for name in COMPUTED if computed else ():
        shares[name] = shares.get(name, 0.0) * (1.0 + again / computed)
    if scenario.stack.attention == "math":
        shares["memory-bound kernels"] = sum(shares.pop(name, 0.0) for name in COMPUTED[1:])
    if scenario.plan.num_gpus <= scenario.cluster.nvlink_domain_gpus:
        shares["tensor-parallel traffic"] = sum(shares.pop(name, 0.0) for name in TRAFFIC)
    return doubt._replace(shares={name: share / max(1.0 - waits, LEAST_WORK) for name, share in shares.items()})


LEAST_WORK = 0.05
"""Share of a step that is work, at least."""


class Drawn(NamedTuple):
    """Values drawn to measured runs: each run pulls a scenario's values by what the two have in common.

    start : where the values start, by name.
    places : of the runs (`sim.specs.values.place_of`).
    pulls : logarithms of the factors on the values by which each run pulls, (runs, values).
    widths : standard deviations of the values' logarithms before and after, at `place`, (2, values).
    odd : the runs that are too far off to pull anything, (runs,).
    rates : by what share runs tell less of each other for each doubling of what they differ in.
    """

    start: Mapping[str, float]
    places: Sequence[Mapping[str, float]]
    pulls: np.ndarray
    widths: np.ndarray
    odd: np.ndarray
    rates: Mapping[str, float]

    @property
    def place(self) -> Mapping[str, float]:
        """The place of the run that the others are most like."""
        return self.places[int(closeness(self.places, self.places, self.rates).sum(axis=0).argmax())]

    def values_at(self, place: Mapping[str, float], start: Mapping[str, float] | None = None) -> dict[str, float]:
        """Values of a scenario at a place, from where it starts (default: where the first run did)."""
        pulls = closeness([place], self.places, self.rates)[0] @ self.pulls
        pairs = zip((start or self.start).items(), pulls, strict=True)
        return {name: priors()[name].pulled(value, pull) for (name, value), pull in pairs}

    def parameters(self) -> tuple[Parameter, ...]:
        """The values at `place`, as a person reads them."""
        rows = zip(self.values_at(self.place).items(), self.start.values(), *self.widths, strict=True)
        return tuple(
            Parameter(name, start, value, value * after, start * before) for (name, value), start, before, after in rows
        )


def drawn_to(start: Mapping[str, float], doubts: Sequence[Doubt], spreads: Spreads | None = None) -> Drawn:
    """Values drawn to runs, from where those that may move start.

    A run with loads l and likenesses a to the measured ones M is expected to be off by the sum of a (l · loads) weight,
    the weights being K⁻¹ e with K = k(M, M) + r², r = REST and e how far the measured runs are off. This conditions a
    normal (Rasmussen and Williams 2006, eq. 2.25). Runs that are odd say nothing.

    doubts : of every run.
    """
    known, spreads = [priors()[name] for name in start], spreads or shipped_spreads()
    places, sizes = [each.place for each in doubts], np.array([each.log_error for each in doubts])
    alike = closeness(places, places, spreads.apart)
    loads = np.array([each.loads(spreads) for each in doubts])
    loads *= np.array([any(each.part == part for each in known) for part in PARTS])
    odd = np.abs(sizes) >= ODD * np.sqrt(np.sum(loads**2, axis=1) + REST**2)
    scale = float(np.exp(np.mean(np.log([each.scale(spreads) for each in doubts]))))  # less known kinds are further off
    moves = np.array([[each.power * (each.part == part) for each in known] for part in PARTS], float)  # of values
    moves *= scale * np.array(list(spreads.parts.values()))[:, None]

    used = np.ix_(~odd, ~odd)
    inverse = np.zeros_like(alike)
    inverse[used] = np.linalg.inv((loads @ loads.T * alike)[used] + REST**2 * np.eye(np.sum(~odd)))
    pulls = loads * (inverse @ sizes)[:, None]
    seen = loads * alike[alike.sum(axis=0).argmax()][:, None]
    left = np.sqrt(1.0 - np.einsum("ip,ij,jp->p", seen, inverse, seen))
    widths = np.array([np.abs(moves).sum(axis=0), (np.abs(moves) * left[:, None]).sum(axis=0)])
    return Drawn(start, places, pulls @ moves, widths, odd, spreads.apart)


ODD = 3.0
"""Standard deviations of an error beyond which a run is odd: nothing that is open explains it, so it moves nothing."""
