"""`flopcast anchor`: one measured step of one's own, and every estimate that resembles it is drawn to it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands import completion as complete


def anchor(
    scenario: Annotated[Path, typer.Argument(help="The run's scenario file.", autocompletion=complete.scenario_files)],
    measured: Annotated[list[str], typer.Option(help='Its measured step time: "12.3 s"; repeats count as one.')],
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the profile here.")] = Path("anchored.yaml"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="Override a field: plan.tp=4.", autocompletion=complete.fields),
    ] = None,
    parameter: Annotated[list[str] | None, typer.Option(help="Fit only these (gemm.max_efficiency, …).")] = None,
) -> None:
    """Draw the profile and stack of a scenario to a step time that was measured, and write both to one file.

    Each value moves as far as it is uncertain and the step depends on it; `--profile` of every verb takes the file.
    """
    from rich.console import Console

    from calibration.from_runs import PRIOR, fit_runs
    from calibration.write import write_runs_profile
    from sim.errors import SpecError, nearest
    from sim.specs import load_scenario
    from sim.table import Table
    from sim.units import show_time

    if not out.absolute().parent.is_dir():
        raise SpecError(f"the folder {out.parent} does not exist; make it first (mkdir -p {out.parent})")
    names = parameter or list(PRIOR)
    unknown = [name for name in names if name not in PRIOR]
    if unknown:
        raise SpecError(f"unknown parameter {unknown[0]!r}{nearest(unknown[0], PRIOR)}")
    run = run_of(load_scenario(scenario, settings or ()), _median([_seconds(text) for text in measured]))
    found = fit_runs([run], names, folds=0)
    print_ = Console(highlight=False, markup=False).print
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("parameter", "before", "after", ""):
        table.add_column(name, justify="left" if name in ("parameter", "") else "right", no_wrap=True)
    for item in sorted(found.parameters, key=lambda each: -abs(each.value - each.prior) / each.prior_width):
        verdict = "" if item.moved else "not moved: no say in this step"
        table.add_row(item.name, f"{item.prior:.4g}", f"{item.value:.4g}", verdict)
    print_(table)
    step_s = run.measured
    print_(
        f"step time: measured {show_time(step_s)}, predicted {show_time(step_s * (1 + found.before[0]))} before, "
        f"{show_time(step_s * (1 + found.errors[0]))} after"
    )
    write_runs_profile(found, out, scenario.name)
    print_(f"profile: {out}", soft_wrap=True)
    print_(f"use it:  flopcast estimate SCENARIO --profile {shlex.quote(str(out))}", soft_wrap=True)


anchor.examples = (  # type: ignore[attr-defined]
    'anchor scenarios/megatron-2021/39.1b.yaml --measured "16.9 s" -o mine.yaml',
)


def run_of(scenario: Any, step_time_s: float) -> Any:
    """A scenario with its measured step time, as a row of a table of runs."""
    from calibration.readers.training_runs import Run

    return Run(
        id=scenario.name,
        source="measured here",
        gpu=scenario.cluster.gpu.name,
        framework=scenario.stack.framework or scenario.stack.name,
        measured=step_time_s,
        unit="iteration_s",
        choices=(scenario,),
        family=f"measured here / {scenario.model.name}",
        precision=scenario.training.precision,
        dense=not scenario.model.num_experts,
    )


def _seconds(text: str) -> float:
    from sim.errors import SpecError
    from sim.units import parse

    seconds = parse(text, "s")
    if not 1e-6 <= seconds <= 1e7:
        raise SpecError(f"--measured {text!r} is no step time: give 1 us to 1e7 s, such as '12.3 s'")
    return seconds


def _median(values: list[float]) -> float:
    from statistics import median

    return median(values)
