"""What a few measured runs of one's own are worth: values drawn to some runs of a source, its others predicted.

Runs of one source on one GPU are what a user has. Of each such group single runs and triples are given in turn, in the
same way as `flopcast anchor` and `calibrate from-runs` take them, and the others are predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import exp
from random import Random
from typing import NamedTuple

import numpy as np

from flopcast_calibration.from_runs import fit_runs
from flopcast_calibration.priors import parameters_named, with_values
from flopcast_calibration.readers.families import lineage_of
from flopcast_calibration.sensitivity import sensitivities
from flopcast_validation.runs.scored import Scored
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.specs import Scenario
from sim.specs.profile import MeasuredRun
from sim.uncertainty import Doubt, facts_of, measured_doubts, measured_run, reach_of

GIVEN = (1, 3)
"""Runs that are given."""
CHOICES = 4
"""Ways to choose them from a group, at most."""


class Anchored(NamedTuple):
    """Runs of a source, predicted once some others of it were measured; `before` as they were predicted without."""

    before: tuple[Scored, ...]
    after: tuple[Scored, ...]


def sources(scored: Sequence[Scored]) -> dict[tuple[str, str, str], list[Scored]]:
    """Predicted runs by lineage, source and GPU."""
    found: dict[tuple[str, str, str], list[Scored]] = {}
    for item in scored:
        if item.error is not None and item.scenario is not None:
            key = (lineage_of(item.run.family), item.run.source, item.scenario.profile.gpu)
            found.setdefault(key, []).append(item)
    return found


def after_runs(
    scored: Sequence[Scored], count: int, report: Callable[[int, int], None] = lambda done, total: None
) -> list[Anchored]:
    """Every source's runs predicted after some of its runs were measured.

    Parameters
    ----------
    scored : sequence of Scored
    count : int
        Runs that are given.
    report : function
        Called with (sources done, sources in all).
    """
    groups = [items for items in sources(scored).values() if len(items) > count]
    known = _Known({}, {})
    found = []
    for done, items in enumerate(groups, start=1):
        for chosen in choices(len(items), count, f"{items[0].run.source} {items[0].run.gpu}"):
            given = [items[index] for index in chosen]
            rest = [item for index, item in enumerate(items) if index not in chosen]
            try:
                found.append(_anchored(given, rest, known))
            except FlopcastError:
                continue
        report(done, len(groups))
    return found


def choices(size: int, count: int, seed: str) -> Iterator[tuple[int, ...]]:
    """Which of a source's runs are given: each in turn where there are few, else some choices, always the same."""
    if count == 1:
        number = min(size, CHOICES)
        yield from ((index * size // number + size // (2 * number),) for index in range(number))
        return
    random = Random(seed)
    seen = set()
    for _ in range(CHOICES):
        chosen = tuple(sorted(random.sample(range(size), count)))
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


class _Known(NamedTuple):
    """What was worked out of scenarios, by their identity: step times and how these depend on every value."""

    times: dict[int, float]
    slopes: dict[int, np.ndarray]

    def time_s(self, scenario: Scenario) -> float:
        if id(scenario) not in self.times:
            self.times[id(scenario)] = _time_s(scenario)
        return self.times[id(scenario)]

    def slopes_of(self, scenario: Scenario) -> np.ndarray:
        key = id(scenario)
        if key not in self.slopes:
            self.slopes[key] = sensitivities(scenario, parameters_named(None))
        return self.slopes[key]


def _anchored(given: Sequence[Scored], rest: Sequence[Scored], known: _Known) -> Anchored:
    runs = [replace(item.run, choices=(item.scenario,), memory_savings=()) for item in given if item.scenario]
    found = fit_runs(runs, parameters_named(None), folds=0, slopes=known.slopes_of)
    values, explained = found.values, {run.id for run in found.explained}
    told = tuple(_told(item) for item in given if item.run.id in explained)
    changed: dict[int, float] = {}
    after = []
    for item in rest:
        scenario = item.scenario
        assert scenario is not None
        assert item.step_time_s is not None
        key = id(scenario)
        if key not in changed:
            changed[key] = _time_s(with_values(scenario, values))
        step_time_s = item.step_time_s * changed[key] / known.time_s(scenario)
        after.append(predicted_as(item, _after(scenario, told), step_time_s))
    return Anchored(tuple(rest), tuple(after))


def _told(item: Scored) -> MeasuredRun:
    """What a measured run tells of others."""
    assert item.scenario is not None
    return MeasuredRun(name=measured_run(item.scenario), shares=dict(item.shares), facts=facts_of(item.scenario))


def _after(scenario: Scenario, told: tuple[MeasuredRun, ...]) -> Scenario:
    """The scenario as if its profile had been drawn to these measured runs."""
    provenance = scenario.profile.provenance.model_copy(update={"measured": told})
    return scenario.model_copy(update={"profile": scenario.profile.model_copy(update={"provenance": provenance})})


def _time_s(scenario: Scenario) -> float:
    return estimate(scenario).step_time_s


def predicted_as(item: Scored, scenario: Scenario, step_time_s: float) -> Scored:
    """The run with another prediction, and the interval that goes with its scenario."""
    down, up = reach_of(Doubt(dict(item.shares), facts_of(scenario)), measured_doubts(scenario))
    ends = sorted(item.run.in_unit(step_time_s * exp(side), scenario) for side in (-down, up))
    return replace(
        item,
        scenario=scenario,
        predicted=item.run.in_unit(step_time_s, scenario),
        step_time_s=step_time_s,
        error=step_time_s / item.run.step_time_s(scenario) - 1.0,
        interval=(ends[0], ends[1]),
    )
