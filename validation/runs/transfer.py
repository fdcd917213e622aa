"""Transfer: how good a prediction is of a framework that nothing is known of, measured on those that are known.

Each run's stack is replaced by what an unknown framework of its time gets; all that its row says stays, such as which
attention kernel ran. In the same way its GPU's profile is replaced by what a datasheet tells. Tables of one's own are
taken as they are stated.

What a few runs of one's own are worth is measured as well. Runs of one source on one GPU are what a user has: of each
such group single runs and triples are given in turn, as `flopcast anchor` and `calibrate from-runs` take them, and the
others are predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flopcast_calibration.datasheet import table
from flopcast_calibration.from_runs import as_driven, drawn_to, priors
from flopcast_calibration.readers.described import BEFORE_FLASH, UNKNOWN, version_of_unknown
from flopcast_validation.runs.intervals import Hit, known_only, left_out, lineage_left_out
from flopcast_validation.runs.scored import Scored, file_of, modelled
from flopcast_validation.tables import Columns
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.report.terminal import grouped
from sim.specs import Scenario, build_scenario
from sim.specs.frameworks import Date, date_of
from sim.specs.presets import datasheet_profile
from sim.specs.profile import MeasuredRun
from sim.specs.values import place_of, start_of, with_values
from sim.uncertainty import Doubt, Spreads, is_unknown, measured_run, recipe_of

FLASH: Date = (2023, 1)
"""Month from which an unknown framework is assumed to use flash attention, as in presets/frameworks/pytorch.yaml."""
GIVEN = (1, 3)
"""Runs that are given."""
CHOICES = 4
"""Ways to choose them from a group, at most."""
Report = Callable[[int, int], None]
Changes = Callable[[Scored, dict[str, Any]], dict[str, Any]]
"""Sections of a run's scenario that are replaced, from the run and its file."""


def silent(done: int, total: int) -> None:
    """Reports nothing."""


class Transfer(NamedTuple):
    """Runs with their frameworks known and taken for unknown ones, and these after some were measured.

    datasheet : their GPUs known by the datasheet alone.
    after : by the number of runs that were given.
    """

    known: list[Scored]
    unknown: list[Scored]
    datasheet: list[Scored]
    after: dict[int, list[Anchored]]


def transfer(
    scored: Sequence[Scored], progress: Callable[[str], Any], shipped: bool = True, given: Sequence[int] = GIVEN
) -> Transfer:
    """Predict all of it; `progress` gives a context with what to report to.

    given : numbers of runs that are given.
    shipped : take frameworks for unknown ones, and GPUs as their datasheets have them.
    """
    unknown, datasheet, after = [], [], {}
    if shipped:
        with progress("runs taken for those of unknown frameworks") as report:
            unknown = predicted_anew(scored, unknown_stack, report or silent)
        with progress("runs on GPUs known by their datasheets") as report:
            datasheet = predicted_anew(scored, datasheet_only, report or silent)
    for count in given:
        with progress(f"sources after {given_words(count)} of theirs") as report:
            after[count] = after_runs(unknown or modelled(scored), count, report or silent)
    return Transfer(modelled(scored), unknown, datasheet, after)


def given_words(count: int) -> str:
    """So many runs, in words."""
    return {1: "one run", 3: "three runs"}.get(count, f"{count} runs")


def unknown_stack(item: Scored, file: dict[str, Any]) -> dict[str, Any]:
    """The stack of a framework taken for an unknown one; that of one that already was stays."""
    stack = item.scenario.stack
    if is_unknown(stack):
        return {}
    version, _ = version_of_unknown(item.run.gpu, item.scenario.training.precision)
    if date_of(stack.version, stack.framework) < FLASH:
        version = BEFORE_FLASH
    return {"stack": {**file["stack"], "framework": UNKNOWN, "version": version}}


@cache
def _table_without(family: str) -> dict[str, Any]:
    return table([family.lower()])


def datasheet_only(item: Scored, file: dict[str, Any]) -> dict[str, Any]:
    """The profile where only the datasheet of its GPU is known: what the other GPUs have in common."""
    return {"profile": datasheet_profile(item.scenario.cluster.gpu, _table_without(item.scenario.profile.gpu))}


def predicted_anew(scored: Sequence[Scored], changes: Changes, report: Report = silent) -> list[Scored]:
    """The runs that were predicted, with sections of their scenarios replaced; `report` is told (done, in all)."""
    used = [item for item in scored if item.scenario is not None]
    answers: dict[int, Estimate | None] = {}
    found = []
    for done, item in enumerate(used, start=1):
        key = id(item.scenario)
        if key not in answers:
            answers[key] = _answer(item, changes)
        answer = answers[key]
        if answer is not None:
            fitted = item.fitted and answer.scenario == item.scenario
            found.append(replace(item, fitted=fitted).estimated(answer))
        if done % 50 == 0 or done == len(used):
            report(done, len(used))
    return found


def _answer(item: Scored, changes: Changes) -> Estimate | None:
    """The estimate with sections replaced; None where it cannot be."""
    file = file_of(item.run, item.scenario)
    replaced = changes(item, file)
    if not replaced:
        return estimate(item.scenario)
    try:
        return estimate(build_scenario(file | replaced, where=item.run.id))
    except FlopcastError:
        return None


_NAME_WIDTH = 22
WORSE = 0.02
"""What a lineage's mean error may grow by once runs are given, before it counts as made worse."""
Pairs = list[tuple[Scored, Scored]]
"""Runs as they are predicted before and after others were given."""


def predictions(found: Transfer) -> dict[str, Pairs]:
    """Every way to know a run, and the runs as they were predicted so."""
    known = "known" if found.unknown else "as stated"
    ways = {known: found.known, "known, GPU by datasheet": found.datasheet, "unknown": found.unknown}
    named = {what: [(item, item) for item in items] for what, items in ways.items() if items}
    for count, every in found.after.items():
        pairs = [pair for each in every for pair in zip(each.before, each.after, strict=True)]
        named |= {f"after {given_words(count)}": pairs} if pairs else {}
    return named


class Summary(NamedTuple):
    """Errors and intervals, mean over lineages, before and after some runs of each source are given.

    before : of the same runs as they are predicted without; `error` where none is given.
    inside : share in the 90 % interval. factor : of the interval, at the median over runs.
    score : interval score: the interval's width as a logarithm, and 20 times how far a run lies beyond it.
    worse : lineages whose error grows by more than WORSE; worst : the one that grows most, by that much.
    """

    what: str
    lineages: int
    runs: int
    before: float
    error: float
    inside: float
    factor: float
    score: float
    worse: int
    worst: str


SUMMARY: Columns = {
    "framework": "what", "lineages": "lineages", "runs": "runs", "before": "before:.1%", "error": "error:.1%",
    "inside": "inside:.0%", "factor": "factor:.2f", "score": "score:.2f", "worse": "worse",
}  # fmt: skip


def summaries(found: Transfer) -> list[Summary]:
    """Without and with given runs."""
    return [_summary(what, pairs) for what, pairs in predictions(found).items()]


def _summary(what: str, pairs: Pairs) -> Summary:
    rows = []
    for before, after in pairs:
        low, high, size = (log(end / after.predicted) for end in (*after.interval, after.run.measured))
        score = high - low + 20.0 * max(0.0, low - size, size - high)
        sizes = (abs(each.error or 0.0) for each in (before, after))
        rows.append((after.lineage, *sizes, float(low <= size <= high), score, (high - low) / 2))
    table = pd.DataFrame(rows, columns=["lineage", "before", "error", "inside", "score", "half"])
    by_lineage = table.groupby("lineage").mean()
    means, grown = by_lineage.mean(), by_lineage.error - by_lineage.before
    worst = f"{grown.idxmax()[:_NAME_WIDTH]} {100 * grown.max():+.1f}" if grown.max() > 0 else ""
    of = {name: float(means[name]) for name in ("before", "error", "inside", "score")}
    runs, factor = len({after.run.id for _, after in pairs}), exp(float(table.half.median()))
    return Summary(what, len(grown), runs, **of, factor=factor, worse=int((grown > WORSE).sum()), worst=worst)


class Coverage(NamedTuple):
    """How runs of a class lie in the intervals that the other lineages' errors alone give.

    lineages : or families of GPUs, where these are left out.
    mean : share inside, mean over them; pooled : over runs.
    factor : the interval's factor at the median.
    """

    name: str
    lineages: int
    runs: int
    mean: float
    pooled: float
    factor: float


COVERAGE: Columns = {
    "intervals from the other lineages alone": "name", "lineages": "lineages", "runs": "runs", "inside": "mean:.0%",
    "pooled": "pooled:.0%", "factor": "factor:.2f",
}  # fmt: skip


def coverages(found: Transfer) -> list[Coverage]:
    """Leave-lineage-out coverage by what is known of a run."""
    after = [[item for each in every for item in each.after] for every in found.after.values()]
    batches = batches_of(found) if found.unknown else [found.known]
    if len({lineage_left_out(item) for item in batches[0]}) < 2:
        return []
    _, hits = left_out(batches, lambda spreads: after)
    names = ("known framework", "unknown framework", "GPU known by its datasheet") if found.unknown else ("as stated",)
    named = ((name, hit) for name, of_batch in zip(names, hits, strict=False) for hit in of_batch)
    classes = grouped((f"{name}, {recipe_of(hit.item.scenario)}", hit) for name, hit in named)
    stated = "unknown framework" if found.unknown else "as stated"
    for count, of_batch in zip(found.after, hits[len(batches) :], strict=True):
        classes[f"{stated}, after {given_words(count)}"] = of_batch
    return _coverage(classes)


def _coverage(classes: Mapping[str, Sequence[Hit]]) -> list[Coverage]:
    found = []
    for name, hits in sorted(classes.items()):
        if hits:
            of = grouped((lineage_left_out(hit.item), hit.inside) for hit in hits)
            mean = float(np.mean([np.mean(inside) for inside in of.values()]))
            pooled, runs = float(np.mean([hit.inside for hit in hits])), len({hit.item.run.id for hit in hits})
            found.append(
                Coverage(name, len(of), runs, mean, pooled, exp(float(np.median([hit.width for hit in hits]))))
            )
    return found


def batches_of(found: Transfer) -> list[list[Scored]]:
    """Runs of known frameworks, of unknown ones, and on GPUs known by their datasheets: what intervals learn of."""
    unknown = [item for item in found.unknown if item.scenario and is_unknown(item.scenario.stack)]
    return [_on_measured(known_only(found.known)), _on_measured(unknown), known_only(found.datasheet)]


def _on_measured(items: Sequence[Scored]) -> list[Scored]:
    return [item for item in items if item.scenario and not item.scenario.profile.provenance.of_datasheet]


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
    report: Report = silent,
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
