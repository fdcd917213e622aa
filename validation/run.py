"""Score flopcast on published tables, with a naive baseline beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any, NamedTuple

from flopcast_calibration.readers.training_runs import Run, read_runs
from sim import estimate, load_scenario
from sim.files import SCENARIOS
from sim.specs.yaml12 import load_yaml

_FACTS = Path(__file__).parent / "published"
WIDTH = 80
"""Columns of the report."""


class ScoredRow(NamedTuple):
    """One measured run. Values are in the table's unit; errors are of the step time: positive is predicted too slow.

    baseline : what a constant FLOP rate predicts.
    inside : the measurement lies in the 90 % interval.
    error, baseline_error : predicted over measured step time − 1, and the constant's.
    """

    scenario: str
    measured: float
    predicted: float
    baseline: float
    fits: bool
    inside: bool
    error: float
    baseline_error: float


class ScoredTable(NamedTuple):
    """A published table and how well it is predicted."""

    title: str
    source: str
    unit: str
    baseline: str
    note: str
    rows: tuple[ScoredRow, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error of the prediction."""
        return fmean(abs(row.error) for row in self.rows)

    @property
    def mean_baseline_error(self) -> float:
        """Mean absolute relative error of the constant."""
        return fmean(abs(row.baseline_error) for row in self.rows)


def tables() -> list[str]:
    """Names of the published tables shipped with flopcast."""
    return sorted(path.stem for path in _FACTS.glob("*.yaml"))


def score(name: str, profile: str | None = None, scenarios: Path = SCENARIOS) -> ScoredTable:
    """Predict every row of the published table `name`, one of `tables()`, from the folder of scenario files.

    `profile` replaces the scenarios' own.
    """
    facts: dict[str, Any] = load_yaml(_FACTS / f"{name}.yaml")
    rows = tuple(_row(facts, item, profile, scenarios) for item in facts["rows"])
    note = facts.get("fitted_note") or "no row was used in fitting the profile"
    return ScoredTable(facts["title"], facts["source"], facts["unit"], facts["baseline"]["what"], note, rows)


def _row(facts: dict[str, Any], item: dict[str, Any], profile: str | None, scenarios: Path) -> ScoredRow:
    answer = estimate(load_scenario(scenarios / f"{item['scenario']}.yaml", profile=profile))
    guess, measured = facts["baseline"], item["measured"]
    reached = answer.hardware_flop_per_s_per_gpu / 1e12
    constant = guess["value"] if "value" in guess else guess["share_of_peak"] * answer.peak_flop_per_s / 1e12
    is_rate, step_s = facts["unit"] != "seconds per step", answer.step_time_s
    predicted, baseline = (reached, constant) if is_rate else (step_s, step_s * reached / constant)
    # Of a rate and of a time alike: the measurement over the prediction bounds the time from one side or the other.
    low, high = (end / step_s for end in answer.step_time_interval_s)
    inside = low <= (predicted / measured if is_rate else measured / predicted) <= high
    off = [(measured / each if is_rate else each / measured) - 1.0 for each in (predicted, baseline)]
    return ScoredRow(item["scenario"], measured, predicted, baseline, answer.fits, inside, *off)


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


def report() -> Iterator[str]:
    """Every shipped table as text: measured, predicted, error, and the constant's error."""
    for name in tables():
        table = score(name)
        yield from wrap(f"{table.title} ({table.unit})", WIDTH)
        yield from wrap(table.source, WIDTH, initial_indent="  ", subsequent_indent="  ")
        yield f"{'':29} {'measured':>8} {'predicted':>9} {'error':>6} {'constant':>9}  90 %     fits"
        for row in table.rows:
            place, fits = "inside " if row.inside else "OUTSIDE", "yes" if row.fits else "NO"
            yield (
                f"  {row.scenario.rpartition('/')[2]:27} {row.measured:8.2f} {row.predicted:9.2f} {row.error:+6.1%} "
                f"{row.baseline_error:+9.1%}  {place}  {fits}"
            )
        yield f"  {'mean absolute error':27} {'':8} {'':9} {table.mean_error:6.1%} {table.mean_baseline_error:9.1%}"
        yield from wrap(f"constant: {table.baseline}; {table.note}", WIDTH, initial_indent="  ", subsequent_indent="  ")
        yield ""
