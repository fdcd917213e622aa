"""`flopcast validate --transfer`: errors once one and three runs of a source are given, by lineage, and on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, isnan, log, nan
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from flopcast_validation.runs.intervals import Hit, known_only, left_out, lineage_left_out
from flopcast_validation.runs.report import COLUMNS, WIDE
from flopcast_validation.runs.score import ErrorSummary, mean_of, summary_of
from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.transfer import Transfer, given_words
from flopcast_validation.tables import Columns, cells, markdown
from sim.commands.options import finite
from sim.report.terminal import grouped
from sim.table import rows_table
from sim.uncertainty import is_unknown, recipe_of

MEAN = "mean over lineages"
KNOWN, DATASHEET, NONE = "known", "known, GPU by datasheet", "unknown"
_OF_MEANS = ["mean_error", "bias", "coverage", "half_width", "tau", "regret"]
_NAME_WIDTH = 22
WORSE = 0.02
"""What a lineage's mean error may grow by once runs are given, before it counts as made worse."""
FEW = 8
"""A lineage of at most so many runs has no row of its own in pages."""
Pairs = list[tuple[Scored, Scored]]
"""Runs as they are predicted before and after others were given."""


def predictions(found: Transfer) -> dict[str, list[Pairs]]:
    """Every way to know a run, and the times that runs were predicted so: each predicts a sweep once."""
    ways = {KNOWN: found.known, DATASHEET: found.datasheet, NONE: found.unknown}
    named = {what: [[(item, item) for item in items]] for what, items in ways.items() if items}
    for count, every in found.after.items():
        if every:
            named[f"after {given_words(count)}"] = [[*zip(each.before, each.after, strict=True)] for each in every]
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
    "runs given": "what", "lineages": "lineages", "runs": "runs", "before": "before:.1%", "error": "error:.1%",
    "inside": "inside:.0%", "factor": "factor:.2f", "score": "score:.2f", "worse": "worse",
}  # fmt: skip


def summaries(found: Transfer) -> list[Summary]:
    """Without and with given runs."""
    pairs = {what: [pair for each in every for pair in each] for what, every in predictions(found).items()}
    pairs.pop(DATASHEET, None)
    return [_summary("as stated" if what == KNOWN and not found.unknown else what, own) for what, own in pairs.items()]


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


class Row(NamedTuple):
    """Errors of a lineage's runs: as known, as unknown, after some were measured.

    before : mean error of the same runs before that; NaN but after runs.
    """

    lineage: str
    what: str
    errors: ErrorSummary
    before: float = nan

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what does not exist is null, of means what is no mean over lineages."""
        about = {"by": "lineage", "name": self.lineage, "what": self.what, "before": finite(self.before)}
        errors = self.errors.to_dict()
        kept = (*_OF_MEANS, "count") if self.lineage == MEAN else errors
        return {name: errors[name] for name in kept} | about


def rows_of(found: Transfer) -> list[Row]:
    """Rows of the table: by lineage and by what is known, and the means over lineages."""
    rows = []
    for what, every in predictions(found).items():
        parts = (part for each in every for part in grouped((pair[1].lineage, pair) for pair in each).items())
        rows += [_row(lineage, what, own) for lineage, own in grouped(parts).items()]
    order = [KNOWN, DATASHEET, NONE, *(f"after {given_words(count)}" for count in found.after)]
    means = sorted(_means(rows), key=lambda row: order.index(row.what))
    return sorted(rows, key=lambda row: row.lineage) + means


def _row(lineage: str, what: str, every: Sequence[Pairs]) -> Row:
    """All predictions together; order and regret by choice of given runs, since each predicts a sweep anew."""
    pairs = [pair for each in every for pair in each]
    summary = summary_of("lineage", lineage, [after for _, after in pairs])
    single = [summary_of("lineage", lineage, [after for _, after in each]) for each in every]
    orders = {name: mean_of([getattr(each, name) for each in single]) for name in ("tau", "regret")}
    given = any(before is not after for before, after in pairs)
    before = float(np.mean([abs(before.error or 0.0) for before, _ in pairs])) if given else nan
    return Row(lineage, what, replace(summary, count=len({id(after.run) for _, after in pairs}), **orders), before)


def _means(rows: Sequence[Row]) -> list[Row]:
    table = pd.DataFrame([{**asdict(row.errors), "what": row.what, "before": row.before} for row in rows])
    table[_OF_MEANS] = table[_OF_MEANS].astype(float)
    found = []
    for what, own in table.groupby("what"):
        means = {name: float(own[name].mean()) for name in _OF_MEANS}
        first = next(row.errors for row in rows if row.what == what)
        whole = replace(first, name=MEAN, count=int(own["count"].sum()), **means)
        found.append(Row(MEAN, what, whole, float(own.before.mean())))
    return found


_HEADS = ("lineage", "framework", "runs", "before", "error", "bias", "90 %", "±", "tau", "regret")
_LEAST = ("before", "±", "tau", "regret")
_ERRORS = {name: COLUMNS[name] for name in ("runs", "mean", "bias", "90 %", "tau", "regret")} | {"±": "half_width:.0%"}


def transfer_table(rows: Sequence[Row], width: int) -> Any:
    """A rich table of them; in a narrow terminal without what matters least."""
    kept = [place for place, head in enumerate(_HEADS) if width >= WIDE or head not in _LEAST]
    lines = ((name[:_NAME_WIDTH], *rest) for name, *rest in _lines(rows))
    chosen = (tuple(line[place] for place in kept) for line in lines)
    return rows_table([_HEADS[place] for place in kept], chosen, left=_HEADS[:2], gap=1)


def transfer_markdown(rows: Sequence[Row]) -> str:
    """Table in Markdown of the lineages with more than `FEW` runs, and of the means."""
    many = {MEAN, *(row.lineage for row in rows if row.errors.count > FEW)}
    return markdown(_HEADS, _lines([row for row in rows if row.lineage in many]))


def _lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells of every row; a lineage is named once."""
    lines, last = [], ""
    for row, (runs, mean, bias, inside, tau, regret, wide) in zip(
        rows, cells(_ERRORS, [row.errors for row in rows]), strict=True
    ):
        before = "" if isnan(row.before) else f"{row.before:.1%}"
        name = row.lineage[:30] if row.lineage != last else ""
        lines.append((name, row.what, runs, before, mean, bias, inside, wide, tau, regret))
        last = row.lineage
    return lines


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
