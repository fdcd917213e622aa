"""Rows of a table of runs as scenario files, so that anyone can ask for each of them what validation asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from flopcast_calibration.readers.training_runs import Run
from flopcast_validation.runs.scored import Scored
from sim.errors import SpecError
from sim.files import write_text
from sim.specs import Scenario
from sim.specs.yaml12 import dump_yaml

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


def file_of(run: Run, scenario: Scenario) -> dict[str, Any]:
    """What a file holds of the chosen scenario: that of the choice it came from, with the memory savings it needed.

    A scenario that is not of this run is a ValueError.
    """
    savings = [{}, *(changes for changes, _ in run.memory_savings)]
    for changes in savings:
        for choice, file in zip(run.choices, run.files, strict=True):
            changed = (getattr(choice, part).replace(**changes.get(part, {})) for part in ("training", "plan"))
            if (*changed,) == (scenario.training, scenario.plan):
                whole = file | {part: file[part] | fields for part, fields in changes.items()}
                sections = ("model", "cluster", "plan", "training", "stack", "profile")
                return {name: whole[name] for name in sections if whole.get(name) is not None}
    raise ValueError(f"{run.id}: the scenario is none of its choices")


def _file_name(name: str, used: dict[str, int]) -> str:
    """A run's name as that of a file, which no other run has."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "run"
    used[plain.lower()] = count = used.get(plain.lower(), 0) + 1
    return plain if count == 1 else f"{plain}-{count}"
