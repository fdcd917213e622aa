"""What a few measured runs of one's own are worth: values drawn to some runs of a source, its others predicted.

Runs of one source on one GPU are what a user has. Of each such group single runs and triples are given in turn, in the
same way as `flopcast anchor` and `calibrate from-runs` take them, and the others are predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp
from random import Random
from typing import NamedTuple

import numpy as np

from flopcast_calibration.from_runs import as_driven, drawn_to, priors
from flopcast_validation.runs.scored import Scored, modelled
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.report.terminal import grouped
from sim.specs import Scenario
from sim.specs.profile import MeasuredRun
from sim.specs.values import place_of, start_of, with_values
from sim.uncertainty import Doubt, Spreads, measured_run

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
    return grouped(((each.lineage, each.run.source, each.scenario.profile.gpu), each) for each in modelled(scored))


def after_runs(
    scored: Sequence[Scored],
    count: int,
    report: Callable[[int, int], None] = lambda done, total: None,
    first_order: Spreads | None = None,
) -> list[Anchored]:
    """Every source's runs predicted after `count` of its runs were measured.

    `report` is called with (sources done, sources in all). With `first_order`, the values that move, step times follow
    from what steps are made of, and nothing is estimated anew.
    """
    groups = [items for items in sources(scored).values() if len(items) > count]
    times: dict[int, float] = {}
    found = []
    for done, items in enumerate(groups, start=1):
        for chosen in choices(len(items), count, f"{items[0].run.source} {items[0].run.gpu}"):
            given = [items[index] for index in chosen]
            rest = [item for index, item in enumerate(items) if index not in chosen]
            try:
                found.append(_anchored(given, rest, times, first_order))
            except FlopcastError:
                continue
        report(done, len(groups))
    return found


def choices(size: int, count: int, seed: str) -> Iterator[tuple[int, ...]]:
    """Which of a source's runs are given: each in turn where there are few, else some choices, always the same.

    One run is drawn from each stretch of the source: every tenth, say, could always be of the same layout.
    """
    random = Random(seed)
    if count == 1:
        number = min(size, CHOICES)
        yield from ((random.randrange(k * size // number, (k + 1) * size // number),) for k in range(number))
        return
    seen = set()
    for _ in range(CHOICES):
        chosen = tuple(sorted(random.sample(range(size), count)))
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


def _driven(item: Scored) -> Doubt:
    return as_driven(item.doubt, item.scenario)


def _anchored(
    given: Sequence[Scored], rest: Sequence[Scored], times: dict[int, float], first_order: Spreads | None
) -> Anchored:
    """The rest as predicted with values drawn to the given runs.

    times : step times of scenarios as they stand, by identity, where they are known. [s]
    """
    scenario = given[0].scenario
    start = {name: start_of(scenario, name) for name in priors()}
    drawn = drawn_to(start, [_driven(item) for item in given], first_order)
    factors: dict[int, float] = {}

    def factor(item: Scored) -> float:
        """Step time with drawn values over that without."""
        key = id(item.scenario)
        if key not in factors:
            own = {name: start_of(item.scenario, name) for name in start}
            values = drawn.values_at(place_of(item.scenario), own)
            if first_order is not None:
                factors[key] = exp(_slope(own, values, _driven(item)))
            else:
                times[key] = times.get(key) or estimate(item.scenario).step_time_s
                factors[key] = estimate(with_values(item.scenario, values)).step_time_s / times[key]
        return factors[key]

    told = tuple(MeasuredRun(name=measured_run(item.scenario), **item.doubt._asdict()) for item in given)
    after = tuple(item.timed(_after(item.scenario, told), item.step_time_s * factor(item)) for item in rest)
    return Anchored(tuple(rest), after)


def _slope(before: Mapping[str, float], after: Mapping[str, float], doubt: Doubt) -> float:
    """Change of a step time's logarithm by values that moved, to first order."""
    known = ((priors()[name], before[name], value) for name, value in after.items())
    sizes = grouped((each.part, each.reached(start, value)) for each, start, value in known)
    return sum(doubt.shares.get(part, 0.0) * float(np.mean(each)) for part, each in sizes.items())


def _after(scenario: Scenario, told: tuple[MeasuredRun, ...]) -> Scenario:
    """The scenario as if its profile had been drawn to these measured runs."""
    provenance = scenario.profile.provenance.model_copy(update={"measured": told})
    return scenario.model_copy(update={"profile": scenario.profile.model_copy(update={"provenance": provenance})})
