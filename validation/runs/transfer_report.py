"""`flopcast validate --transfer`: errors once one and three runs of a source are given.

The shipped record is taken for runs of unknown frameworks first; tables of one's own are taken as they are stated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, isnan, log, nan
from typing import Any, NamedTuple

import numpy as np

from flopcast_calibration.readers.families import lineage_of
from flopcast_validation.runs.anchored import GIVEN, Anchored, after_runs
from flopcast_validation.runs.intervals import Hit, known_only, left_out, lineage_left_out
from flopcast_validation.runs.report import COLUMNS, WIDE, markdown, share
from flopcast_validation.runs.score import ErrorSummary, summary_of
from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.transfer import as_unknown, by_datasheet, silent
from sim.report.terminal import grouped
from sim.table import rows_table
from sim.uncertainty import is_unknown, recipe_of

MEAN = "mean over lineages"
KNOWN, NONE, DATASHEET = "known", "unknown", "known, GPU by datasheet"
_OF_MEANS = ("mean_error", "bias", "coverage", "half_width", "tau", "regret")


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
    known = [item for item in scored if item.error is not None]
    unknown, datasheet, after = [], [], {}
    if shipped:
        with progress("runs taken for those of unknown frameworks") as report:
            unknown = as_unknown(scored, report or silent)
        with progress("runs on GPUs known by their datasheets") as report:
            datasheet = by_datasheet(scored, report or silent)
    for count in given:
        with progress(f"sources after {_given(count)} of theirs") as report:
            after[count] = after_runs(unknown or known, count, report or silent)
    return Transfer(known, unknown, datasheet, after)


WORSE = 0.02
"""What a lineage's mean error may grow by once runs are given, before it counts as made worse."""


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


def summaries(found: Transfer) -> list[Summary]:
    """Without and with given runs."""
    stated = [("known" if found.unknown else "as stated", found.known), (NONE, found.unknown)]
    pairs = [(what, [(item, item) for item in items]) for what, items in stated if items]
    for count, every in found.after.items():
        both = [pair for each in every for pair in zip(each.before, each.after, strict=True)]
        pairs += [(f"after {_given(count)}", both)] if both else []
    return [_summary(what, both) for what, both in pairs]


def _summary(what: str, pairs: Sequence[tuple[Scored, Scored]]) -> Summary:
    rows = []
    for before, after in pairs:
        low, high, size = (log(end / after.predicted) for end in (*after.interval, after.run.measured))
        score = high - low + 20.0 * max(0.0, low - size, size - high)
        row = (abs(before.error or 0.0), abs(after.error or 0.0), float(low <= size <= high), score, (high - low) / 2)
        rows.append((lineage_of(after.run.family), row))
    of = grouped(rows)
    means = {lineage: np.mean(rows, axis=0) for lineage, rows in of.items()}
    before, error, inside, score, _ = np.mean(list(means.values()), axis=0).tolist()
    grown = {lineage: float(each[1] - each[0]) for lineage, each in means.items()}
    worst = max(grown, key=lambda name: grown[name])
    return Summary(
        what,
        len(of),
        len({after.run.id for _, after in pairs}),
        before,
        error,
        inside,
        exp(float(np.median([row[4] for rows in of.values() for row in rows]))),
        score,
        sum(each > WORSE for each in grown.values()),
        f"{worst[:_NAME_WIDTH]} {100 * grown[worst]:+.1f}" if grown[worst] > 0 else "",
    )


SUMMARY = {
    "runs given": "{0.what}", "lineages": "{0.lineages}", "runs": "{0.runs}", "before": "{0.before:.1%}",
    "error": "{0.error:.1%}", "inside": "{0.inside:.0%}", "factor": "{0.factor:.2f}", "score": "{0.score:.2f}",
    "worse": "{0.worse}",
}  # fmt: skip
"""Heading -> format of a `Summary`."""


def cells_of(columns: Mapping[str, str], found: Sequence[NamedTuple]) -> list[tuple[str, ...]]:
    """Rows of records, by SUMMARY or COVERAGE."""
    return [tuple(form.format(each) for form in columns.values()) for each in found]


def _given(count: int) -> str:
    return {1: "one run", 3: "three runs"}.get(count, f"{count} runs")


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
        before = None if isnan(self.before) else self.before
        data = {**self.errors.to_dict(), "by": "lineage", "name": self.lineage, "what": self.what, "before": before}
        kept = (*_OF_MEANS, "by", "name", "count", "what", "before")
        return {key: data[key] for key in kept} if self.lineage == MEAN else data


def rows_of(found: Transfer) -> list[Row]:
    """Rows of the table: by lineage and by what is known, and the means over lineages."""
    rows = []
    for what, items in ((KNOWN, found.known), (DATASHEET, found.datasheet), (NONE, found.unknown)):
        for lineage, own in grouped((lineage_of(item.run.family), item) for item in items).items():
            rows.append(Row(lineage, what, summary_of("lineage", lineage, own)))
    for count, every in found.after.items():
        of = grouped((lineage_of(each.after[0].run.family), each) for each in every)
        rows += [_after(lineage, f"after {_given(count)}", own) for lineage, own in of.items()]
    rows.sort(key=lambda row: row.lineage)
    return rows + _means(rows)


def _after(lineage: str, what: str, every: Sequence[Anchored]) -> Row:
    """All predictions together; order and regret by choice of given runs, since each predicts a sweep anew."""
    summary = summary_of("lineage", lineage, [item for each in every for item in each.after])
    single = [summary_of("lineage", lineage, each.after) for each in every]
    taus = [each.tau for each in single if each.tau is not None]
    regrets = [each.regret for each in single if each.regret is not None]
    before = float(np.mean([abs(item.error or 0.0) for each in every for item in each.before]))
    changed = {"tau": float(np.mean(taus)) if taus else None, "regret": float(np.mean(regrets)) if regrets else None}
    count = len({item.run.id for each in every for item in each.after})
    return Row(lineage, what, replace(summary, count=count, **changed), before)


def _means(rows: Sequence[Row]) -> list[Row]:
    found = []
    for what in dict.fromkeys(row.what for row in rows):
        of = [row for row in rows if row.what == what]
        values: dict[str, Any] = {}
        for name in _OF_MEANS:
            there = [value for row in of if (value := getattr(row.errors, name)) is not None]
            values[name] = float(np.mean(there)) if there else None
        count = sum(row.errors.count for row in of)
        whole = replace(of[0].errors, name=MEAN, count=count, **values)
        found.append(Row(MEAN, what, whole, float(np.mean([row.before for row in of]))))
    order = [KNOWN, DATASHEET, NONE, *(f"after {_given(count)}" for count in GIVEN)]
    return sorted(found, key=lambda row: order.index(row.what))


_HEADS = ("lineage", "framework", "runs", "before", "error", "bias", "90 %", "±", "tau", "regret")
_LEAST = ("before", "±", "tau", "regret")
_NAME_WIDTH = 22


def transfer_table(rows: Sequence[Row], width: int) -> Any:
    """A rich table of them; in a narrow terminal without what matters least."""
    kept = [place for place, head in enumerate(_HEADS) if width >= WIDE or head not in _LEAST]
    lines = [(name[:_NAME_WIDTH], *cells) for name, *cells in _lines(rows)]
    rows_ = [tuple(line[place] for place in kept) for line in lines]
    return rows_table([_HEADS[place] for place in kept], rows_, left=_HEADS[:2], gap=1)


def transfer_markdown(rows: Sequence[Row]) -> str:
    """Table in Markdown of the lineages with more than `FEW` runs, and of the means."""
    many = {row.lineage for row in rows if row.errors.count > FEW}
    return markdown(_HEADS, _lines([row for row in rows if row.lineage in {MEAN, *many}]))


FEW = 8
"""A lineage of at most so many runs has no row of its own in pages."""


def _lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells of every row; a lineage is named once."""
    lines, last = [], ""
    for row in rows:
        lines.append((row.lineage[:30] if row.lineage != last else "", row.what, *_cells(row)))
        last = row.lineage
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    errors = row.errors
    runs, mean, bias, inside, tau, regret = (
        COLUMNS[name][0](errors) for name in ("runs", "mean", "bias", "90 %", "tau", "regret")
    )
    return runs, share(row.before), mean, bias, inside, share(errors.half_width, digits=0), tau, regret


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


def coverages(found: Transfer) -> list[Coverage]:
    """Leave-lineage-out coverage by what is known of a run."""
    counts = list(found.after)
    after = [[item for each in found.after[count] for item in each.after] for count in counts]
    batches = batches_of(found) if found.unknown else [found.known]
    if len({lineage_left_out(item) for item in batches[0]}) < 2:
        return []
    _, hits = left_out(batches, lambda spreads: after)
    names = ("known framework", "unknown framework", "GPU known by its datasheet") if found.unknown else ("as stated",)
    named = [(name, hit) for name, of_batch in zip(names, hits, strict=False) for hit in of_batch]
    classes = grouped((f"{name}, {recipe_of(hit.item.scenario)}", hit) for name, hit in named)
    for count, of_batch in zip(counts, hits[len(batches) :], strict=True):
        classes[f"{'unknown framework' if found.unknown else 'as stated'}, after {_given(count)}"] = of_batch
    return [_coverage(name, of) for name, of in sorted(classes.items()) if of]


def batches_of(found: Transfer) -> list[list[Scored]]:
    """Runs of known frameworks, of unknown ones, and on GPUs known by their datasheets: what intervals learn of."""
    unknown = [item for item in found.unknown if item.scenario and is_unknown(item.scenario.stack)]
    return [_on_measured(known_only(found.known)), _on_measured(unknown), known_only(found.datasheet)]


def _on_measured(items: Sequence[Scored]) -> list[Scored]:
    return [item for item in items if item.scenario and not item.scenario.profile.provenance.of_datasheet]


def _coverage(name: str, hits: Sequence[Hit]) -> Coverage:
    of = grouped((lineage_left_out(hit.item), hit.inside) for hit in hits)
    mean = float(np.mean([np.mean(inside) for inside in of.values()]))
    pooled = float(np.mean([hit.inside for hit in hits]))
    runs = len({hit.item.run.id for hit in hits})
    return Coverage(name, len(of), runs, mean, pooled, exp(float(np.median([hit.width for hit in hits]))))


COVERAGE = {
    "intervals from the other lineages alone": "{0.name}", "lineages": "{0.lineages}", "runs": "{0.runs}",
    "inside": "{0.mean:.0%}", "pooled": "{0.pooled:.0%}", "factor": "{0.factor:.2f}",
}  # fmt: skip
"""Heading -> format of a `Coverage`."""
