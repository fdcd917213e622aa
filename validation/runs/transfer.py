"""Transfer: how good a prediction is of a framework that nothing is known of, measured on those that are known.

Each run's stack is replaced by what an unknown framework of its time gets; all that its row says stays, such as which
attention kernel ran. In the same way its GPU's profile is replaced by what a datasheet tells. Tables of one's own are
taken as they are stated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flopcast_calibration.datasheet import table
from flopcast_calibration.readers.described import BEFORE_FLASH, UNKNOWN, version_of_unknown
from flopcast_validation.runs.anchored import GIVEN, Anchored, after_runs
from flopcast_validation.runs.export import file_of
from flopcast_validation.runs.intervals import Hit, known_only, left_out, lineage_left_out
from flopcast_validation.runs.scored import Scored, modelled
from flopcast_validation.tables import Columns
from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.report.terminal import grouped
from sim.specs import build_scenario
from sim.specs.frameworks import Date, date_of
from sim.specs.presets import datasheet_profile
from sim.uncertainty import is_unknown, recipe_of

FLASH: Date = (2023, 1)
"""Month from which an unknown framework is assumed to use flash attention, as in presets/frameworks/pytorch.yaml."""
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
            unknown = as_unknown(scored, report or silent)
        with progress("runs on GPUs known by their datasheets") as report:
            datasheet = by_datasheet(scored, report or silent)
    for count in given:
        with progress(f"sources after {given_words(count)} of theirs") as report:
            after[count] = after_runs(unknown or modelled(scored), count, report or silent)
    return Transfer(modelled(scored), unknown, datasheet, after)


def given_words(count: int) -> str:
    """So many runs, in words."""
    return {1: "one run", 3: "three runs"}.get(count, f"{count} runs")


def as_unknown(scored: Sequence[Scored], report: Report = silent) -> list[Scored]:
    """The runs that were predicted, their frameworks taken for unknown ones; those that already were stay.

    `report` is called with (runs done, runs in all).
    """
    return _predicted_anew(scored, _unknown_stack, report)


def by_datasheet(scored: Sequence[Scored], report: Report = silent) -> list[Scored]:
    """The runs that were predicted, of their GPUs only the datasheet known: what the other GPUs have in common.

    Parameters as `as_unknown`.
    """
    return _predicted_anew(scored, _datasheet_profile, report)


def _unknown_stack(item: Scored, file: dict[str, Any]) -> dict[str, Any]:
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


def _datasheet_profile(item: Scored, file: dict[str, Any]) -> dict[str, Any]:
    return {"profile": datasheet_profile(item.scenario.cluster.gpu, _table_without(item.scenario.profile.gpu))}


def _predicted_anew(scored: Sequence[Scored], changes: Changes, report: Report) -> list[Scored]:
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
