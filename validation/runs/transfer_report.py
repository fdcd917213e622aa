"""`flopcast validate --transfer`: errors once one and three runs of a source are given, as means over lineages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import pandas as pd

from flopcast_validation.runs.intervals import Hit, known_only, left_out, lineage_left_out
from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.transfer import Transfer, given_words
from flopcast_validation.tables import Columns
from sim.report.terminal import grouped
from sim.uncertainty import is_unknown, recipe_of

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
