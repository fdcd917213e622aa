"""How far values may be drawn to a measured run: the widths of `calibration/facts/priors.yaml`, learnt.

Chosen are those with which one and three runs of a source predict its other runs best, on average over lineages. To
first order a step time's logarithm is linear in the values, which makes a fit to a few runs a solve of that size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import flopcast_calibration.priors
from flopcast_calibration.priors import parameters_named, priors
from flopcast_calibration.sensitivity import sensitivities
from flopcast_validation.runs.anchored import GIVEN, choices, sources
from flopcast_validation.runs.scored import Scored
from sim.files import write_text

MOST = 30
"""Runs of a source that count, evenly sampled."""
REACH = 4.0
"""Factor by which a width may change at most."""
RIDGE = 4e-4
"""What it costs to change a width by a factor e, in mean errors: widths that do not matter stay."""
ROUNDS = 6


class Source(NamedTuple):
    """One source's runs: log errors, what each group of values does to pairs of them, and choices of given ones."""

    lineage: str
    errors: np.ndarray
    pairs: np.ndarray
    given: tuple[tuple[int, ...], ...]


def update_priors(
    batches: Sequence[Sequence[Scored]],
    report: Callable[[int, int], None] = lambda done, total: None,
    path: Path | None = None,
) -> None:
    """Rewrite widths and noise of the priors' file.

    batches : predicted runs of known frameworks, and the same taken for unknown; they count alike.
    """
    names = parameters_named(None)
    of = [priors().parameters[name].group for name in names]
    groups = list(dict.fromkeys(of))
    tables = [_sources(batch, groups, of, names, report) for batch in batches]
    factors = learn(tables, len(groups), priors().noise)
    write(dict(zip(groups, np.exp(factors[:-1]).tolist(), strict=True)), float(np.exp(factors[-1])), path)


def _sources(
    batch: Sequence[Scored],
    groups: Sequence[str],
    of: Sequence[str],
    names: Sequence[str],
    report: Callable[[int, int], None],
) -> list[Source]:
    found = []
    every = sources(batch)
    for done, ((lineage, source, gpu), items) in enumerate(every.items(), start=1):
        items = items[:: -(-len(items) // MOST)]
        if len(items) > 1:
            rows = np.array([sensitivities(item.scenario, names) for item in items if item.scenario])
            columns = [[index for index, name in enumerate(of) if name == group] for group in groups]
            pairs = np.array([rows[:, column] @ rows[:, column].T for column in columns])
            errors = np.log1p([item.error or 0.0 for item in items])
            given = [c for k in GIVEN if len(items) > k for c in choices(len(items), k, f"{source} {gpu}")]
            found.append(Source(lineage, errors, pairs, tuple(given)))
        report(done, len(every))
    return found


def learn(tables: Sequence[Sequence[Source]], size: int, noise: float) -> np.ndarray:
    """Logarithms of the factors on the widths, and of the noise: one at a time, while the mean error falls."""
    start = np.append(np.zeros(size), np.log(noise))
    best, step = start.copy(), 0.7
    lowest = cost(best, start, tables)
    for _ in range(ROUNDS):
        before = lowest
        for index in range(size + 1):
            for sign in (1, -1):
                while True:
                    trial = best.copy()
                    trial[index] += sign * step
                    value = cost(trial, start, tables)
                    if value >= lowest or abs(trial[index] - start[index]) > np.log(REACH):
                        break
                    best, lowest = trial, value
        if lowest > before - 1e-5:
            step /= 2
    return best


def cost(factors: np.ndarray, start: np.ndarray, tables: Sequence[Sequence[Source]]) -> float:
    """Mean error of what is not given, over lineages and tables, and what changes of the widths cost."""
    means = []
    for table in tables:
        lineages: dict[str, list[float]] = {}
        for source in table:
            lineages.setdefault(source.lineage, []).extend(_left_errors(source, factors))
        means.append(np.mean([np.mean(errors) for errors in lineages.values()]))
    return float(np.mean(means) + RIDGE * np.sum((factors - start) ** 2))


def _left_errors(source: Source, factors: np.ndarray) -> list[float]:
    """Mean error of the other runs, for every choice of given ones."""
    covariance = np.tensordot(np.exp(2.0 * factors[:-1]), source.pairs, 1)
    variance, freedom = np.exp(2.0 * factors[-1]), priors().freedom
    found = []
    for given in source.given:
        chosen = list(given)
        rest = np.setdiff1d(np.arange(len(source.errors)), chosen)
        noise = np.full(len(chosen), variance)
        weights = np.zeros(len(chosen))
        for _ in range(4):  # a Student t as a mixture of normals: noise that is as large as it has to be
            weights = np.linalg.solve(covariance[np.ix_(chosen, chosen)] + np.diag(noise), source.errors[chosen])
            noise = variance * (freedom + (noise * weights) ** 2 / variance) / (freedom + 1.0)
        left = source.errors[rest] - covariance[np.ix_(rest, chosen)] @ weights
        found.append(float(np.abs(np.expm1(np.clip(left, -2.0, 2.0))).mean()))
    return found


def write(factors: dict[str, float], noise: float, path: Path | None = None) -> None:
    """The priors' file with its widths multiplied by their groups' factors, all else as it stands."""
    file = path or flopcast_calibration.priors.FILE
    text = re.sub(
        r"(group: (\w+), width: )(\S+),(.*?at_zero: )?(?(4)(\S+)\})",
        lambda match: _scaled(match, factors[match[2]]),
        file.read_text(encoding="utf-8"),
    )
    write_text(file, re.sub(r"(?m)^noise: \S+", f"noise: {noise:.3g}", text))
    priors.cache_clear()


def _scaled(match: re.Match[str], factor: float) -> str:
    """One parameter's line from its group on, with its widths multiplied."""
    text = f"{match[1]}{float(match[3]) * factor:.3g},"
    return f"{text}{match[4]}{float(match[5]) * factor:.3g}}}" if match[4] else text
