"""`flopcast calibrate`: measure a machine, fit a profile, look at it, hold two against each other."""

from __future__ import annotations

import typer

from flopcast_calibration.commands.look import compare, show
from flopcast_calibration.commands.matters import matters
from flopcast_calibration.commands.measure import fit, from_runs, run
from sim.commands.fills import with_records
from sim.commands.options import examples

app = typer.Typer(help="Measure a machine and fit the profile that every estimate then uses.", no_args_is_help=True)

for command, name, lines in (
    (run, "run", ("calibrate run -o mine.yaml", "calibrate run --quick -o mine.yaml")),
    (fit, "fit", ("calibrate fit all_reduce.log gemm.csv -o mine.yaml",)),
    (from_runs, "from-runs", ("calibrate from-runs runs.csv -o mine.yaml",)),
    (show, "show", ("calibrate show a100", "calibrate show mine.yaml --png mine.png")),
    (compare, "compare", ("calibrate compare a100 h100",)),
    (matters, "matters", ("calibrate matters scenarios/gpt3-175b-1024-a100.yaml",)),
):
    app.command(name, epilog=examples(*lines))(with_records(command))
