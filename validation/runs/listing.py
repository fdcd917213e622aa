"""What `flopcast validate` prints of scored runs (groups, sweeps, reasons, the worst), and the files it writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from flopcast_calibration.readers.described import UNKNOWN
from flopcast_validation.runs.intervals import left_out_coverage
from flopcast_validation.runs.score import WIDE, draw, group_table, groups_of, in_the_wild, markdown_table, to_json
from flopcast_validation.runs.scored import Scored, file_of, modelled
from flopcast_validation.tables import cells, markdown, table_of
from sim.commands.progress import progress_bar
from sim.errors import SpecError
from sim.files import write_text
from sim.specs.yaml12 import dump_yaml
from sim.table import rows_table

if TYPE_CHECKING:
    from flopcast_validation.cli import Listing

SHIPPED = ("wild", "all", "fitted", "kind", "framework")
OWN = ("all", "fitted", "kind", "gpu", "framework", "source")
"""Groups that are printed of the published runs that ship, and of a table of one's own."""


def print_runs(
    out: Any, scored: Sequence[Scored], listing: Listing, *, shipped: bool, wild: Sequence[Scored] = ()
) -> dict[str, Any]:
    """Print the scores; plain data of all of it."""
    listed: dict[str, Any] = {}
    if listing.transfer:
        listed |= _print_transfer(out, scored, shipped=shipped, in_markdown=listing.markdown)
    groups = [*([in_the_wild(wild)] if wild else []), *groups_of(scored)]
    if listing.markdown:
        out.print(markdown_table(groups), soft_wrap=True)
        _write_files(out, scored, listing)
        return to_json(scored, groups)
    if listing.sweeps:
        from flopcast_validation.runs.sweeps import print_sweeps

        listed |= print_sweeps(out, scored)
    if listing.every:
        _print_every(out, scored)
    if out.width < WIDE:
        out.print(f"In {WIDE} columns and more the table has medians, sweeps, tau and regret too (--markdown: always).")
    if shipped:
        out.print("Published runs that ship; what they leave out is inferred as for any table (--runs)")
    out.print(group_table(groups, SHIPPED if shipped else OWN, out.width))
    out.print(
        "Errors are predicted over measured step time − 1. left: rows not modelled. 90 %: share of measurements inside "
        "the 90 % interval. regret: how much slower the layout we would pick is than the fastest of a sweep. constant, "
        "6ND: mean error of a constant share of peak with the bubble, and of six FLOPs a parameter and token."
    )
    share = left_out_coverage(scored)
    if share == share:
        out.print(f"Intervals that the other lineages' errors alone would give cover {share:.0%} of these runs.\n")
    print_reasons(out, [item.skipped for item in scored])
    _print_unknown(out, scored)
    _print_worst(out, scored)
    _write_files(out, scored, listing)
    return to_json(scored, groups) | listed


def _print_transfer(out: Any, scored: Sequence[Scored], *, shipped: bool, in_markdown: bool) -> dict[str, Any]:
    """What is lost where the framework is not known, and won by runs of one's own; plain data of it."""
    from flopcast_validation.runs import transfer as report

    found = report.transfer(scored, progress_bar, shipped)
    covered, summed = report.coverages(found), report.summaries(found)
    plain = {"coverage": [each._asdict() for each in covered], "summary": [each._asdict() for each in summed]}
    if in_markdown:
        parts = ((report.SUMMARY, summed), (report.COVERAGE, covered))
        tables = (markdown(columns, cells(columns, each)) for columns, each in parts)
        out.print("\n\n".join(tables), soft_wrap=True)
        return plain
    out.print(table_of(report.SUMMARY, summed, left=("framework",), gap=1))
    out.print(
        "known, unknown: with the framework, and as an unknown one of its time. GPU by datasheet: its profile is what "
        "the other GPUs have in common. after one run, three runs: values fitted to as many runs of the same source "
        "and GPU (flopcast anchor), its others predicted; before: these without."
    )
    out.print(
        "Means over lineages, in the intervals that ship. score: the interval's width as a logarithm, and 20 times how "
        f"far a run lies beyond it. worse: lineages whose error grows by more than {report.WORSE:.0%}. Lineages with "
        "too few runs leave the table, so compare error with before.\n"
    )
    for each in summed:
        if each.worst:
            out.print(f"Made worst {each.what}: {each.worst} points")
    if covered:
        out.print(table_of(report.COVERAGE, covered, gap=1))
        out.print(
            "inside: share of runs in the interval, mean over lineages; pooled: over runs. factor: the interval's, at "
            "the median.\n"
        )
    return plain


def print_reasons(out: Any, skipped: Iterable[str | None], most: int = 15) -> None:
    """Why rows are not modelled, the commonest reasons first."""
    ranked = Counter(reason for reason in skipped if reason).most_common()
    rows = [(str(count), reason) for reason, count in ranked[:most]]
    if len(ranked) > most:
        rows.append((str(sum(count for _, count in ranked[most:])), f"{len(ranked) - most} more reasons (--json)"))
    if rows:
        why = ("not modelled because",)
        out.print(rows_table(("runs", *why), rows, left=why, wrap=why))


def _print_unknown(out: Any, scored: Sequence[Scored]) -> None:
    """Frameworks that are not known, and what they were taken for."""
    runs = (item.run for item in scored if item.run.framework_name == UNKNOWN != item.run.framework)
    names = Counter(run.framework or "not stated" for run in runs)
    if names:
        listed = ", ".join(f"{name} ({count})" for name, count in names.most_common(8))
        out.print(f"frameworks that are not known, priced as others of their time: {listed}")


def _print_every(out: Any, scored: Sequence[Scored]) -> None:
    for item in scored:
        what = item.skipped or f"{item.run.measured:.5g} {item.run.unit}, predicted {item.predicted:.5g}"
        error = "" if item.error is None else f"{item.error:+.1%}"
        out.print(f"{item.run.id:24} {error:>8}  {what}", soft_wrap=True)
    out.print()


def _print_worst(out: Any, scored: Sequence[Scored]) -> None:
    rows = [
        (f"{item.error:+.1%}", item.run.id, f"{item.run.gpu}, {item.run.framework}" + " does not fit" * (not item.fits))
        for item in sorted(modelled(scored), key=lambda each: -abs(each.error or 0.0))[:10]
    ]
    if rows:
        out.print()
        out.print(rows_table(("worst", "run", "of"), rows, left=("run", "of"), wrap=("of",)))


def _write_files(out: Any, scored: Sequence[Scored], listing: Listing) -> None:
    if listing.figure is not None and not modelled(scored):
        out.print(f"not drawn: {listing.figure}; no run could be modelled")
    elif listing.figure is not None:
        draw(scored, listing.figure)
        out.print(f"drawn: {listing.figure}")
    if listing.export is not None:
        written = len(export_runs(scored, listing.export))
        out.print(f"written: {written} scenario files in {listing.export}", soft_wrap=True)


WIDTH = 116


def export_runs(scored: Sequence[Scored], folder: Path) -> list[Path]:
    """Write every run that was predicted as a scenario file, with what was inferred, and why, as comments.

    `flopcast estimate` of a file says the step time and interval that validation found for the row. A folder that
    cannot be written to is a SpecError.
    """
    used: dict[str, int] = {}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"cannot write to {folder}: {error.strerror}") from None
    for item in scored:
        if item.scenario is None:
            continue
        path = folder / f"{_file_name(item.run.id, used)}.yaml"
        write_text(path, scenario_file(item))
        written.append(path)
    return written


def scenario_file(item: Scored) -> str:
    """A predicted run as the text of a scenario file. A run that was not predicted is a ValueError."""
    run, scenario = item.run, item.scenario
    if scenario is None:
        raise ValueError(f"{run.id} was not predicted")
    lines = [f"{run.id}: {run.source or 'source not stated'}; {run.framework or 'framework not stated'}; {run.gpu}"]
    measured = f"measured: {run.measured:g} {run.unit}"
    if run.unit != "iteration_s":
        measured += f", a step of {run.step_time_s(scenario):.6g} s"
    lines += [measured, "inferred, where the row says nothing:", *(f"- {rule}" for rule in run.inferred)]
    comments = [part for line in lines for part in wrap(line, WIDTH - 2, subsequent_indent="  ") or [""]]
    data = {"name": run.id, **file_of(run, scenario)}
    text = dump_yaml(data, width=WIDTH, default_flow_style=None)
    return "".join(f"# {line}\n" for line in comments) + text


def _file_name(name: str, used: dict[str, int]) -> str:
    """A run's name as that of a file, which no other run has."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "run"
    used[plain.lower()] = count = used.get(plain.lower(), 0) + 1
    return plain if count == 1 else f"{plain}-{count}"
