"""`flopcast validate`: answers against reality."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from flopcast_validation.job.cli import job
from flopcast_validation.steps import steps
from sim.commands.fills import with_records
from sim.commands.options import Json, JsonCommand, JsonFile, JsonGroup, check_target, examples, print_json
from sim.commands.progress import progress_bar, spinner
from sim.files import write_text

app = typer.Typer(cls=JsonGroup, help="Compare predictions with what was measured.", invoke_without_command=True)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked for beside the groups of runs.

    figure : Draw predicted against measured here (.png, .svg).
    every : List every run, not only groups.
    sweeps : List every sweep of layouts: what we pick, what was the fastest.
    markdown : Print the record as a table of Markdown only.
    export : Write every modelled row as a scenario file into this folder.
    transfer : Errors once one and three runs of a source are given; the record that ships is treated as unknown.
    """

    figure: Path | None = None
    every: bool = False
    sweeps: bool = False
    markdown: bool = False
    export: Path | None = None
    transfer: bool = False


@app.callback(
    epilog=examples(
        "validate",
        "validate --runs runs.csv --sweeps --figure runs.png",
        "validate --memory layouts.csv",
        "validate --kernels gemm.csv --json kernels.json",
    )
)
@with_records
def validate(
    context: typer.Context,
    *,
    runs: list[Path] | None = None,
    memory: Path | None = None,
    kernels: list[Path] | None = None,
    profile: str | None = None,
    json_file: JsonFile = None,
    settings: list[str] | None = None,
    listing: Listing,
) -> None:
    """Without options: the published runs that ship with flopcast. With --runs: a table of your own.

    runs : CSV of measured training runs, or a folder of scenarios with cases.csv; several are read as one.
    memory : CSV of layouts that fitted or ran out of memory; what it leaves out is as in --runs.
    kernels : Measured multiplies: any table or journal that calibrate fit reads; GPUs may differ.
    profile : Profile for all runs, instead of the one of each GPU.
    settings --set -s : Set a field in every row: stack.attention=math.
    """
    if context.invoked_subcommand is not None:
        return
    for target, endings in ((json_file, ()), (listing.figure, (".png", ".svg", ".pdf"))):
        _check_target(target, endings)
    quiet = str(json_file) == "-"
    found: dict[str, Any] = {}
    if runs or (memory is None and not kernels):
        from flopcast_validation.run import WILD, published_runs
        from flopcast_validation.runs.listing import print_runs
        from flopcast_validation.runs.scored import score_all

        read = _read(runs or [], profile, settings or [], quiet)
        with progress_bar("runs predicted") as progress:
            scored = score_all(read, progress or (lambda done, total: None))
        wild = [] if runs else score_all(published_runs(profile, settings or [], folder=WILD))
        found |= print_runs(_console(quiet), scored, listing, shipped=not runs, wild=wild)
    if memory is not None:
        scores = _memory(memory, [each for each in runs or [] if each.is_file()], quiet)
        found |= {"memory": scores} if runs else scores
    if kernels:
        found["kernels"] = _kernels(kernels, profile, quiet)
    if json_file is not None:
        _write_json(found, json_file)


@app.command(
    "claims",
    cls=JsonCommand,
    epilog=examples("validate claims", "validate claims --only chimera", "validate claims mechanisms"),
)
def claims(
    table: Annotated[
        str, typer.Argument(help="papers: those that flopcast grew from; mechanisms: what decides which plan is best.")
    ] = "papers",
    only: Annotated[str, typer.Option(help="Of papers whose title has this: chimera.")] = "",
    json_file: JsonFile = None,
) -> None:
    """What papers claim, claim by claim: published beside predicted, and why where it falls short."""
    from flopcast_validation.claims import NAMES, claims, report
    from sim.errors import SpecError, nearest

    if table not in NAMES:
        raise SpecError(f"unknown table of claims {table!r}{nearest(table, NAMES)}")
    _check_target(json_file)
    with spinner("predicting"):
        found = list(claims(table, only))
    if str(json_file) != "-":
        _show(lambda: report(found))
    if json_file is not None:
        _write_json({"claims": [claim.to_dict() for claim in found]}, json_file)


app.command(
    "job",
    epilog=examples("validate job --quick", "validate job --json job.json", "validate job --device cpu --size tiny"),
)(with_records(job))
app.command("steps", epilog=examples("validate steps -o steps.csv"))(with_records(steps))


@app.command("rl", epilog=examples("validate rl", "validate rl --json"))
def rl(as_json: Json = False) -> None:
    """Rates of TensorRT-LLM and step times of NeMo RL, as printed, beside what `flopcast rl` predicts."""
    from flopcast_validation.rl_runs import published_rates, published_steps, to_dict, view

    found = published_rates(), published_steps()
    if as_json:
        print_json(to_dict(*found))
    else:
        _show(lambda: view(*found))


def _show(view: Callable[[], Iterable[Any]]) -> None:
    """Print a view's lines and tables, which take their time."""
    with spinner("predicting"):
        parts = list(view())
    out = _console()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


def _write_json(found: dict[str, Any], path: Path) -> None:
    """Data into a file, or printed where that is `-`."""
    import json

    text = json.dumps(found, indent=1, allow_nan=False)
    if str(path) == "-":
        typer.echo(text)
        return
    write_text(path, text + "\n")
    typer.echo(f"written: {path}")


def _check_target(path: Path | None, endings: tuple[str, ...] = ()) -> None:
    """Refuse a target that cannot be written, or drawn, before any work is done."""
    if path is not None and str(path) != "-":
        check_target(path, endings)


def _console(quiet: bool = False) -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False, quiet=quiet)  # a cell of a table may hold [brackets]


def _read(tables: list[Path], profile: str | None, settings: list[str], quiet: bool) -> Any:
    """Runs of tables, or those that ship; what is wrong with options and tables is said before any work."""
    from flopcast_calibration.readers.training_runs import read_training_runs, unread_columns
    from flopcast_validation.run import published_runs

    if not tables:
        return published_runs(profile, settings)
    runs = [run for path in tables for run in read_training_runs(path, profile, settings)]
    unread = dict.fromkeys(name for path in tables for name in unread_columns(path))
    if unread and not quiet:
        typer.echo(f"columns that nothing reads: {', '.join(unread)}\n")
    return runs


def _memory(path: Path, runs: list[Path], quiet: bool) -> dict[str, Any]:
    from flopcast_validation.runs.listing import print_reasons
    from flopcast_validation.runs.memory import report, score_memory, summary

    outcomes = score_memory(path, runs)
    found, out = summary(outcomes), _console(quiet)
    for line in report(found):
        out.print(line)
    print_reasons(out, [item.skipped for item in outcomes])
    return {"rows": [asdict(item) for item in outcomes], "summary": found}


def _kernels(paths: list[Path], profile: str | None, quiet: bool) -> dict[str, Any]:
    import pandas as pd

    from flopcast_calibration.commands.shared import read_profile
    from flopcast_validation.kernels import score_kernels, to_dict, view

    with spinner("predicting"):
        each = [score_kernels(path, None if profile is None else read_profile(profile)) for path in paths]
    scored, notes = pd.concat([rows for rows, _ in each]), [note for _, notes in each for note in notes]
    if not quiet:
        _show(lambda: view(scored, notes))
    return to_dict(scored)
