"""`calibrate from-runs`: from a table of training runs that were timed to a profile."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from flopcast_calibration.commands.shared import check_out, console
from sim.errors import SpecError, nearest


def from_runs(
    runs: Path,
    *,
    out: Path = Path("profile.yaml"),
    stack: str | None = None,
    gpu: str = "",
    precision: str = "",
    base: str | None = None,
    parameter: list[str] | None = None,
) -> None:
    """Fit a profile to measured training runs, drawn to the bottom-up one.

    `validate --transfer --runs FILE` says how well some of these runs would have told of the others.

    runs : CSV of measured training runs, in the columns of docs/validation.md.
    out --out -o : Profile to write, with the stack's values in it.
    stack : Only the runs of this stack; needed where there are several.
    gpu : Only runs whose GPU's name holds this.
    precision : Only runs of this precision.
    base : Profile to start from; default: the one of the runs' GPU.
    parameter : Fit only these (gemm.max_efficiency, …).
    """
    from flopcast_calibration.from_runs import fit_runs, parameters_named
    from flopcast_calibration.readers.training_runs import read_training_runs, unread_columns
    from flopcast_calibration.write import write_runs_profile
    from sim.commands.progress import spinner
    from sim.table import rows_table

    check_out(out)
    names = parameters_named(parameter)
    unread = unread_columns(runs)
    if unread:
        typer.echo(f"columns that nothing reads: {', '.join(unread)}")
    read = read_training_runs(runs, base)
    chosen = [
        run
        for run in read
        if run.choices and gpu in run.gpu and precision in run.precision and stack in (None, run.choices[0].stack.name)
    ]
    print_ = console().print
    if not chosen:
        raise SpecError(f"no run of {runs} is left to fit: {_why_none(read, stack, gpu, precision)}")
    kinds = sorted({(run.choices[0].profile.name, run.choices[0].stack.name) for run in chosen})
    if len(kinds) > 1:
        listed = "; ".join(f"profile {name}, stack {of}" for name, of in kinds)
        raise SpecError(f"runs of several kinds cannot share one fit: {listed}; choose with --stack and --gpu")
    with spinner("fitting") as say:
        found = fit_runs(chosen, names, progress=say)
    rows = []
    for item in found.parameters:
        verdict = "" if item.identified else "not identified"
        rows.append((item.name, f"{item.prior:.4g}", f"{item.value:.4g}", f"{item.width:.2g}", verdict))
    print_(rows_table(("parameter", "bottom-up", "fitted", "±", ""), rows, left=("parameter", "")))
    count = len({run.family for run in found.runs})
    not_modelled = sum(bool(run.skipped) for run in read) + len(chosen) - len(found.runs)
    print_(f"{len(found.runs)} runs of {count} families; {not_modelled} rows of the file are not modelled")
    for what, errors in (("before", found.before), ("fitted", found.errors)):
        print_(f"{what:9} mean absolute error {abs(errors).mean():6.1%}   bias {errors.mean():+6.1%}")
    write_runs_profile(found, out, runs.name)
    print_(f"profile: {out}")
    print_(f"use it:  flopcast estimate SCENARIO --profile {shlex.quote(str(out))}", soft_wrap=True)


def _why_none(read: list[Any], stack: str | None, gpu: str, precision: str) -> str:
    """What to change where a choice leaves no run."""
    usable = [run for run in read if run.choices]
    if not usable:
        return f"none of {len(read)} rows can be modelled ({read[0].id}: {read[0].skipped})"
    stacks = {run.choices[0].stack.name for run in usable}
    if stack is not None and stack not in stacks:
        return f"no run of stack {stack!r}{nearest(stack, stacks)}"
    gpus, precisions = ({getattr(run, name) for run in usable} for name in ("gpu", "precision"))
    if not any(gpu in name for name in gpus):
        return f"no run on a GPU {gpu!r}{nearest(gpu, gpus)}"
    if not any(precision in name for name in precisions):
        return f"no run of precision {precision!r}{nearest(precision, precisions)}"
    return f"{len(usable)} runs, but none of all of --stack, --gpu and --precision; loosen one"
