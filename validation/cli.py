"""`flopcast validate`: answers against reality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from sim.commands.examples import examples
from sim.commands.progress import progress_bar, spinner
from validation.job.cli import register as register_job
from validation.strategies.cli import register as register_strategies

app = typer.Typer(help="Compare predictions with what was measured.", invoke_without_command=True)


@app.callback(
    epilog=examples(
        "validate",
        "validate --runs runs.csv --sweeps --figure runs.png",
        "validate --memory layouts.csv",
    )
)
def validate(
    context: typer.Context,
    runs: Annotated[Path | None, typer.Option(help="CSV of measured training runs.")] = None,
    memory: Annotated[Path | None, typer.Option(help="CSV of layouts that fitted or ran out of memory.")] = None,
    profile: Annotated[str | None, typer.Option(help="Profile for all runs, instead of the one of each GPU.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write rows and groups here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw predicted against measured here (.png, .svg).")] = None,
    every: Annotated[bool, typer.Option("--every", help="List every run, not only groups.")] = False,
    sweeps: Annotated[
        bool, typer.Option("--sweeps", help="List every sweep of layouts: what we pick, what was the fastest.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Lay a field over every row: stack.attention=math.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write every modelled row as a scenario file into this folder.")
    ] = None,
    update_intervals: Annotated[
        bool, typer.Option("--update-intervals", hidden=True, help="Rewrite the table of 90 % intervals.")
    ] = False,
) -> None:
    """Without options: the published tables that ship with flopcast. With --runs: a table of your own."""
    if context.invoked_subcommand is not None:
        return
    for target in (json_file, figure):
        _writable(target)
    _drawable(figure)
    found: dict[str, Any] = {}
    if runs is not None:
        listing = _Listing(every, sweeps, update_intervals)
        found |= _runs(runs, profile, settings or [], figure, export, listing)
    if memory is not None:
        found |= _memory(memory) if runs is None else {"memory": _memory(memory)}
    if runs is None and memory is None:
        from validation.run import report

        _print_when_done(report)
        from validation.run import published_runs
        from validation.runs.report import group_table
        from validation.runs.score import groups_of, score_all

        with progress_bar("runs predicted") as progress:
            scored = score_all(published_runs(), progress or (lambda done, total: None))
        out = _console()
        out.print("More published runs; what they leave out is inferred as for any table (--runs)")
        out.print(group_table(groups_of(scored), ("all", "source"), out.width))
        return
    if json_file is not None:
        import json

        from sim.errors import SpecError

        try:
            json_file.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise SpecError(f"cannot write {json_file}: {error.strerror}") from None
        typer.echo(f"written: {json_file}")


@app.command(
    "schedules",
    epilog=examples(
        "validate schedules",
    ),
)
def schedules() -> None:
    """What schedules gain over each other: papers' figures beside the simulator's."""
    from validation.gains import report

    _print_when_done(report)


@app.command(
    "network",
    epilog=examples(
        "validate network",
    ),
)
def network() -> None:
    """What scatter/gather, rails and placement are worth: the 1T run with each switched off, links shared."""
    from validation.network_gains import report

    _print_when_done(report)


def _print_when_done(report: Callable[[], Iterable[str]]) -> None:
    """Print a table that takes its time."""
    with spinner("predicting"):
        lines = list(report())
    for line in lines:
        typer.echo(line)


def _drawable(path: Path | None) -> None:
    """Refuse a picture of a kind that cannot be drawn before any work is done."""
    from sim.errors import SpecError

    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise SpecError(f"{path} must end in .png, .svg or .pdf")


def _writable(path: Path | None) -> None:
    """Refuse a target that cannot be written before any work is done."""
    import os

    from sim.errors import SpecError

    if path is None:
        return
    if path.is_dir():
        raise SpecError(f"{path} is a folder; name a file in it")
    if not path.absolute().parent.is_dir():
        raise SpecError(f"the folder {path.parent} does not exist; make it first (mkdir -p {path.parent})")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise SpecError(f"{path} cannot be written to; choose another place")


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False)  # a cell of a table may hold [brackets]


class _Listing(NamedTuple):
    """What of a table of runs is listed beside its groups, and whether intervals are rewritten."""

    every: bool
    sweeps: bool
    update_intervals: bool


def _runs(
    path: Path,
    profile: str | None,
    settings: list[str],
    figure: Path | None,
    export: Path | None,
    listing: _Listing,
) -> dict[str, Any]:
    from calibration.readers.training_runs import unread_columns
    from validation.runs.report import draw, group_table, to_json, worst
    from validation.runs.score import groups_of, score_runs

    out = _console()
    with progress_bar("runs predicted") as progress:
        scored = score_runs(path, profile, progress or (lambda done, total: None), settings)
    unread = unread_columns(path)
    if unread:
        out.print(f"columns that nothing reads: {', '.join(unread)}\n", soft_wrap=True)
    if listing.update_intervals:
        from validation.runs.intervals import left_out_coverage, write_intervals

        write_intervals(scored)
        out.print(f"intervals written; the other families' intervals cover {left_out_coverage(scored):.1%} of runs")
    groups = groups_of(scored)
    listed: dict[str, Any] = {}
    if listing.sweeps:
        from validation.runs.sweep_report import print_sweeps

        listed = print_sweeps(out, scored)
    if listing.every:
        for item in scored:
            what = item.skipped or f"{item.run.measured:.5g} {item.run.unit}, predicted {item.predicted:.5g}"
            error = "" if item.error is None else f"{item.error:+.1%}"
            out.print(f"{item.run.id:24} {error:>8}  {what}", soft_wrap=True)
        out.print()
    out.print(group_table(groups, ("all", "fitted", "kind", "gpu", "framework", "source"), out.width))
    out.print(
        "Errors are predicted over measured step time − 1. left: rows not modelled. 90 %: share of measurements inside "
        "the 90 % interval. regret: how much slower the layout we would pick is than the fastest of a sweep. constant, "
        "6ND: mean error of a constant share of peak with the bubble, and of six FLOPs a parameter and token.\n"
    )
    _print_reasons(out, [item.skipped for item in scored])
    ranked = worst(scored)
    if ranked:
        out.print("\nworst ten:" if len(ranked) == 10 else "\nworst first:")
    for item, why in ranked:
        out.print(f"  {item.error:+7.1%}  {item.run.id:22} {item.run.gpu} {item.run.framework}: {why}", soft_wrap=True)
    if figure is not None and not ranked:
        out.print(f"not drawn: {figure}; no run could be modelled")
    elif figure is not None:
        draw(scored, figure)
        out.print(f"drawn: {figure}")
    if export is not None:
        from validation.runs.export import export_runs

        out.print(f"written: {len(export_runs(scored, export))} scenario files in {export}", soft_wrap=True)
    return to_json(scored, groups) | listed


def _print_reasons(out: Any, skipped: list[str | None], most: int = 15) -> None:
    """Why rows are not modelled, the commonest reasons first."""
    ranked = Counter(reason for reason in skipped if reason).most_common()
    for reason, count in ranked[:most]:
        out.print(f"not modelled: {count:5}  {reason}", soft_wrap=True)
    if len(ranked) > most:
        rest = sum(count for _, count in ranked[most:])
        out.print(f"not modelled: {rest:5}  {len(ranked) - most} more reasons (see --json)")


def _memory(path: Path) -> dict[str, Any]:
    from validation.runs.memory import score_memory, summary

    outcomes = score_memory(path)
    found = summary(outcomes)
    out = _console()
    if found["count"]:
        out.print(
            f"memory: {found['accuracy']:.1%} of {found['count']} outcomes right; called out of memory though they ran "
            f"{found['false_oom']:.1%}, missed {found['missed_oom']:.1%}; {found['skipped']} rows not modelled"
        )
    else:
        out.print(f"memory: none of {found['skipped']} rows could be modelled")
    _print_reasons(out, [item.skipped for item in outcomes])
    return {"rows": [item.to_dict() for item in outcomes], "summary": found}


register_job(app)
register_strategies(app)
