"""Answers as plain data: of an estimate, and of the command line."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from sim.cli import app
from sim.estimate import Estimate
from sim.specs import Scenario

ROOT = Path(__file__).parents[2]
UNSTEADY = ("elapsed_s", "plans_per_s")
"""Keys of answers that a clock decides."""


def described(answer: Estimate) -> dict[str, Any]:
    """Return what is frozen of an estimate: step, causes, bubble, memory and notes."""
    return {
        "step_time_s": answer.step_time_s,
        "interval_s": list(answer.step_time_interval_s),
        "bubble_fraction": answer.bubble_fraction,
        "breakdown_s": {cause: seconds for cause, seconds in answer.breakdown.seconds.items() if seconds > 1e-12},
        "memory_bytes": [use.total for use in answer.memory],
        "fullest_rank_bytes": {name: size for name, size in answer.largest.to_dict().items() if size},
        "assumptions": list(answer.assumptions),
    }


def counted(answer: Estimate) -> dict[str, Any]:
    """Return parameters, FLOPs of a step, and the weights of each pipeline rank. [parameters, FLOP, bytes]"""
    seconds = answer.step_time_s * answer.num_gpus
    return {
        "params": answer.params,
        "active_params": answer.active_params,
        "model_flop": answer.model_flop_per_s_per_gpu * seconds,
        "hardware_flop": answer.hardware_flop_per_s_per_gpu * seconds,
        "weights_bytes": [use.to_dict()["weights"] for use in answer.memory],
    }


def fields(scenario: Scenario) -> dict[str, Any]:
    """Return what a scenario says: every field that is not its default; profile and hardware by name."""
    data = scenario.model_dump(
        mode="json", exclude={"assumed", "profile", "cluster", "description"}, exclude_defaults=True
    )
    return {**data, "cluster": scenario.cluster.name, "gpus": scenario.plan.num_gpus, "profile": scenario.profile.name}


def ask(*words: str | Path) -> str:
    """Return what a command prints, in the folder that a reader would be in.

    Raises
    ------
    Exception
        The error that the command ends with.
    """
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 2:
        raise ValueError(result.output)
    return result.stdout


def ask_json(*words: str | Path) -> Any:
    """Return what a command with --json says, without what a clock decides."""
    return _steady(json.loads(ask(*words, "--json")))


def _steady(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _steady(value) for name, value in data.items() if name not in UNSTEADY}
    return list(map(_steady, data)) if isinstance(data, list) else data


@contextmanager
def folder() -> Iterator[Path]:
    """Work in an empty folder that is gone afterwards."""
    path = Path(tempfile.mkdtemp())
    try:
        with chdir(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
