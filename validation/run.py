"""The published runs that ship: tables of scenarios, with source and licence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flopcast_calibration.readers.training_runs import Run, read_runs
from sim.specs.yaml12 import load_yaml

_FACTS = Path(__file__).parent / "published"


class RunsTable(NamedTuple):
    """A table of measured runs that ships with flopcast.

    source : where the figures are printed: a paper, or a file of a repository at a commit.
    licence : of that repository, as SPDX names it, or that the figures are a paper's.
    lineage : what its rows have as `source`, which tells the framework's version and which runs share a recipe.
    rows : cells by column, in order: fields of a scenario, and what was measured.
    """

    name: str
    title: str
    source: str
    licence: str
    lineage: str
    rows: tuple[dict[str, Any], ...]


WILD = "wild"
"""The folder of runs of people outside the vendors' benchmark teams."""


def runs_tables(folder: str = "runs") -> list[RunsTable]:
    """Every table of measured runs that ships with flopcast in a folder, by name."""
    return sorted((_runs_table(path) for path in (_FACTS / folder).glob("*.yaml")), key=lambda table: table.name)


def _runs_table(path: Path) -> RunsTable:
    facts: dict[str, Any] = load_yaml(path)
    about = {"source": facts["lineage"], "inferred": tuple(facts.get("inferred", ()))}
    rows = []
    for number, values in enumerate(facts["rows"], start=1):
        cells = facts["common"] | dict(zip(facts["columns"], values, strict=True))
        stated = {name: value for name, value in cells.items() if value is not None}
        rows.append({"id": f"{path.stem}-{number}", **about, **_named(stated)})
    return RunsTable(path.stem, facts["title"], facts["source"], facts["licence"], facts["lineage"], tuple(rows))


@cache
def _described(what: str) -> dict[str, Any]:
    """Models or machines of published runs by name."""
    found: dict[str, Any] = load_yaml(_FACTS / "described" / f"{what}.yaml")
    return found


def _named(cells: dict[str, Any]) -> dict[str, Any]:
    """Cells with machine and model as sections of a scenario, instead of their names."""
    machine, model = cells.pop("machine", None), cells.pop("model", None)
    cells.setdefault("framework", cells.get("stack.framework", ""))
    if machine is not None:
        cells |= _described("machines")[machine]
        cells["gpu"] = cells["cluster"]["name"]
    if model is not None:
        cells["model"] = _described("models")[model]
    cells.setdefault("model_name", cells["model"]["name"] if model is not None else cells.get("model.name", ""))
    return cells


def published_runs(
    profile: str | None = None, overrides: Sequence[str] = (), tables: Sequence[str] | None = None, folder: str = "runs"
) -> list[Run]:
    """Runs of all those tables, what their sources leave open filled in as for any table of runs.

    Parameters
    ----------
    profile : str, optional
        Profile for all runs, a preset's name or a YAML file; default: the one of each run's GPU.
    overrides : sequence of str
        Fields of a scenario laid over every row: "stack.attention=math".
    tables : sequence of str, optional
        Names of tables; default: all.
    folder : str
        WILD for those in the wild, which are no part of the record.
    """
    chosen = (table for table in runs_tables(folder) if tables is None or table.name in tables)
    return read_runs((row for table in chosen for row in table.rows), profile, overrides)
