"""`flopcast validate job`: calibrate this machine, predict a real training job, run it, and compare."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flopcast_validation.tables import Columns, cell, table_of
from sim.errors import SpecError, nearest
from sim.files import write_text

if TYPE_CHECKING:
    from flopcast_validation.job.choose import Choice
    from flopcast_validation.job.compare import JobResult

COLUMNS: Columns = {
    "configuration": lambda row: row.configuration.name,
    "predicted": lambda row: f"{row.predicted_s * 1e3:,.0f} ms",
    "measured": lambda row: f"{row.measured_s * 1e3:,.0f} ms",
    "error": "error:+.1%",
    "loss Δ": "loss_error:.0e",
    "others' share": "foreign_share:.0%",
}


@dataclass(frozen=True, slots=True)
class Comparing:
    """How configurations are run, and what is kept of it.

    out --json OUT : Write rows and facts as JSON.
    figure : Draw a measured and the simulated timeline (.png or .svg).
    keep : Folder for the raw measurements; those it holds are not taken again.
    """

    repeats: Annotated[int, typer.Option(min=1, help="How many times to run all configurations.")] = 1
    steps: Annotated[int, typer.Option(min=1, help="Timed optimizer steps of each run.")] = 5
    patience: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for other programs to leave the machine alone; 0 with --quick."),
    ] = 60.0
    out: Path | None = None
    figure: Path | None = None
    keep: Path | None = None


def job(*, quick: bool = False, size: str = "auto", device: str = "auto", how: Comparing) -> None:
    """Train a GPT for real, cut in many ways; predict each step time before it runs, and compare.

    Needs torch. Uses the GPUs of this machine, or those of several under torchrun. Ctrl-C keeps what was measured.

    quick : Three small configurations, for CI.
    size : Model size: tiny, small (0.35 B parameters), medium (1.3 B), large (6.7 B); auto is tiny on a CPU, on GPUs
        the largest that one of them trains.
    device : cuda, cpu, or auto.
    """
    from flopcast_calibration.bench.run import pick_device

    if device not in ("auto", "cuda", "cpu"):
        raise SpecError(f"unknown device {device!r}{nearest(device, ('auto', 'cuda', 'cpu'))}")
    chosen = pick_device(device)
    from flopcast_validation.job.choose import SIZE_NAMES, choose
    from flopcast_validation.job.launch import joined_world

    if size not in SIZE_NAMES:
        raise SpecError(f"unknown size {size!r}{nearest(size, SIZE_NAMES)}")
    others = joined_world()
    if others is not None and others.rank > 0:
        others.follow()
        return
    try:
        _compare(choose(size, quick, chosen), chosen, 0.0 if quick else how.patience, how)
    finally:
        if others is not None:
            others.release()


def _compare(choice: Choice, device: str, patience_s: float, how: Comparing) -> None:
    import tempfile

    from rich.console import Console

    from flopcast_validation.job.calibrate import calibrate_machine
    from flopcast_validation.job.compare import measure_all, predict_all

    shape, suite = choice.shape, choice.suite
    console = Console(highlight=False)
    for line in choice.notes:
        console.print(line, style="dim")
    with tempfile.TemporaryDirectory() as folder, console.status("calibrating") as status:
        kept = how.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        machine, facts = calibrate_machine(
            shape, suite, device, kept, patience_s, lambda what: status.update(f"calibrating: {what}")
        )
    rows = predict_all(shape, suite, machine)
    console.print(_line([*COLUMNS][:-1]), style="bold")

    def report(row: JobResult, repeat: int) -> None:
        if how.repeats > 1 and row is rows[0]:
            console.print(f"repeat {repeat + 1} of {how.repeats}", style="dim")
        console.print(_line([cell(row, how) for how in COLUMNS.values()][:-1]))
        if how.out is not None:
            _write(how.out, shape, rows, facts)

    interrupted = False
    try:
        measure_all(rows, shape, device, how.steps, how.repeats, patience_s, report)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; what was measured counts")
    done = [row for row in rows if row.seconds]
    if done:
        _conclude(console, done, how.figure)
        if how.out is not None:
            console.print(f"written: {how.out}")
    if interrupted:
        raise typer.Exit(130)


def _conclude(console: Any, done: list[JobResult], figure: Path | None) -> None:
    """The table as it stands after all repeats, its summary, and the figure."""
    from flopcast_validation.job.compare import draw, summary

    console.print("median over the repeats", style="italic")
    console.print(table_of(COLUMNS, done))
    found = summary(done)
    console.print(
        f"{found['configurations']} configurations: absolute error {found['median_abs_error']:.1%} in the median, "
        f"{found['mean_abs_error']:.1%} in the mean, largest {found['max_abs_error']:.1%}, "
        f"Kendall's tau {found['kendall_tau']:.2f}"
    )
    if figure is not None:
        draw(max(done, key=lambda row: (row.configuration.pp, row.configuration.num_chunks)), figure)
        console.print(f"drawn: {figure}")


def _write(path: Path, shape: Any, rows: list[JobResult], facts: dict[str, Any]) -> None:
    """Everything so far, in one piece: a reader never sees half a file."""
    from flopcast_validation.job.compare import LOSS_TOLERANCE, summary

    done = [row for row in rows if row.seconds]
    data = {
        "machine": facts,
        "model": asdict(shape),
        "loss_tolerance": LOSS_TOLERANCE[shape.precision],
        "summary": summary(done),
        "rows": [row.to_dict() for row in done],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(data, indent=1) + "\n")


def _line(cells: list[str]) -> str:
    """Cells of a row while others are still measured."""
    return f"{cells[0]:42}" + "".join(f"{cell:>9}" for cell in cells[1:])
