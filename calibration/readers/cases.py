"""Measured runs as scenario files: a folder of cases, each with what was measured of it in a table beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flopcast_calibration.readers.families import family_of
from flopcast_calibration.readers.training_runs import Run, read_rows, read_training_runs
from sim.errors import FlopcastError, SpecError
from sim.specs import Scenario, load_scenario
from sim.specs.loading import described
from sim.specs.yaml12 import load_yaml

TABLE = "cases.csv"
"""The table in such a folder: columns id, source and measured_step_s; the scenario of a row is cases/ID.yaml."""
COLUMNS = ("id", "source", "measured_step_s")


def read_measured(path: Path, profile: str | None = None, overrides: Sequence[str] = ()) -> list[Run]:
    """Every measured run of a CSV, or of a folder of cases; parameters as `read_training_runs`."""
    return (read_cases if path.is_dir() else read_training_runs)(path, profile, overrides)


def read_cases(folder: Path, profile: str | None = None, overrides: Sequence[str] = ()) -> list[Run]:
    """Every case of a folder, in the order of its table.

    A folder without a table of cases, or a table that lacks a column, is a SpecError.
    """
    if not (folder / TABLE).is_file():
        raise SpecError(f"{folder} has no {TABLE}; give a CSV of runs, or a folder with {TABLE} and cases/ID.yaml")
    return [_case(folder, row, profile, overrides) for row in read_rows(folder / TABLE, COLUMNS)]


def _case(folder: Path, row: dict[str, str], profile: str | None, overrides: Sequence[str]) -> Run:
    """One case; a case that cannot be modelled says why."""
    name, seconds = row["id"], row["measured_step_s"]
    empty = Run(name, row["source"], row.get("gpu", ""), row.get("framework", ""), float("nan"), "iteration_s")
    if not seconds:
        return replace(empty, skipped="no step time was measured")
    try:
        path = folder / "cases" / f"{name}.yaml"
        run = run_of(load_scenario(path, overrides, profile), float(seconds), row["source"], name)
        return replace(run, files=(described(load_yaml(path), overrides),))
    except (FlopcastError, ValueError) as error:
        return replace(empty, skipped=str(error).partition("\n")[0])


def run_of(scenario: Scenario, step_time_s: float, source: str = "measured here", name: str = "") -> Run:
    """A scenario with its measured step time, as a row of a table of runs."""
    return Run(
        id=name or scenario.name,
        source=source,
        gpu=scenario.cluster.gpu.name,
        framework=scenario.stack.framework or scenario.stack.name,
        measured=step_time_s,
        unit="iteration_s",
        choices=(scenario,),
        family=family_of({"source": source, "model_name": scenario.model.name}),
        precision=scenario.training.precision,
        framework_name=scenario.stack.framework,
        dense=not scenario.model.num_experts,
    )
