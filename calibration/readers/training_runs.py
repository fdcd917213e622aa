"""Measured training runs as scenarios with a measurement: what a row says, and by which rule the rest was filled in.

Columns are fields of a scenario by their paths, or short ones: `id, gpu, num_gpus, layers, hidden, heads, seq_len,
global_batch_seqs, micro_batch_seqs, tp, pp, dp, measured_value, measured_unit` and others that may be empty. A row that
cannot be modelled keeps its place with the reason.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flopcast_calibration.readers.cells import ALIASES, FACTS, Row, Unmodelled, check_columns, number, override_cells
from flopcast_calibration.readers.described import UNKNOWN, framework_name
from flopcast_calibration.readers.open_fields import MemorySaving, read_scenarios
from sim.errors import FlopcastError, SpecError
from sim.files import MEASUREMENTS, read_text
from sim.specs import Profile, Scenario, load_scenario
from sim.specs.frameworks import halves_attention
from sim.specs.loading import described, resolve
from sim.specs.presets import NAME as DATASHEET
from sim.specs.presets import split_profile
from sim.specs.yaml12 import load_yaml
from sim.work.sums import causal_flop, hardware_flop, model_flop, total_params

SIZES = ("layers", "hidden", "heads")
REQUIRED = ("gpu", "num_gpus", *SIZES, "seq_len", "measured_value", "measured_unit")
"""Columns a file must have; the model's name can stand for its sizes."""

STEP_TIMES = (1e-6, 1e7)
"""A measurement that makes a step shorter or longer than this is in another unit than it says. [s]"""

_CONVENTIONS = {"mfu_pct": "model", "hfu_pct": "executed"}
"""Convention of FLOPs that the names of shares of peak stand for."""

NO_CONVENTION = "flops_convention: not stated, taken as the model's FLOPs, without recomputed ones"


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run.

    scenario : None where the row cannot be modelled.
    choices : scenarios that differ in what the row leaves open and its authors tuned; the fastest that fits counts.
    memory_savings : changes of the plan, with the rule that allows them, the first of which counts that makes a choice
        fit where none does as it stands.
    files : each choice as a scenario file holds it.
    framework : as the row calls it; framework_name: as presets do.
    measured : in `unit`.
    peak_flop_per_s : what shares of peak are of, where the row says so; else the GPU's peak at the run's precision.
    skipped : why there is no scenario.
    inferred : what the row does not say, and the rule that filled it in.
    family : source lineage and model, what cross-validation leaves out together.
    sweep : runs of one sweep differ in their layout only.
    """

    id: str
    source: str
    gpu: str
    framework: str
    measured: float
    unit: str
    choices: tuple[Scenario, ...] = ()
    files: tuple[dict[str, Any], ...] = ()
    memory_savings: tuple[MemorySaving, ...] = ()
    skipped: str | None = None
    inferred: tuple[str, ...] = ()
    family: str = ""
    sweep: str = ""
    precision: str = ""
    convention: str = ""
    framework_name: str = ""
    peak_flop_per_s: float | None = None
    dense: bool = True

    @property
    def scenario(self) -> Scenario | None:
        """The first choice."""
        return self.choices[0] if self.choices else None

    def in_unit(self, step_time_s: float, scenario: Scenario) -> float:
        """A step time in the unit of the measurement, by the FLOP convention of its source."""
        training, gpus = scenario.training, scenario.plan.num_gpus
        nodes = max(1.0, gpus / scenario.cluster.node.gpus_per_node)
        return {
            "iteration_s": lambda: step_time_s,
            "tokens_per_s_per_gpu": lambda: training.tokens_per_step / step_time_s / gpus,
            "tokens_per_s_per_node": lambda: training.tokens_per_step / step_time_s / nodes,
            "tokens_per_s": lambda: training.tokens_per_step / step_time_s,
            "samples_per_s": lambda: training.global_batch_size / step_time_s,
            "samples_per_s_per_gpu": lambda: training.global_batch_size / step_time_s / gpus,
            "tflops_per_gpu": lambda: step_flop(self.convention, scenario) / step_time_s / gpus / 1e12,
            "mfu_pct": lambda: 100 * step_flop(self.convention, scenario) / step_time_s / gpus / self._peak(scenario),
            "hfu_pct": lambda: 100 * step_flop(self.convention, scenario) / step_time_s / gpus / self._peak(scenario),
        }[self.unit]()

    def _peak(self, scenario: Scenario) -> float:
        return self.peak_flop_per_s or scenario.cluster.gpu.peak(scenario.training.peak_precision)

    def step_time_s(self, scenario: Scenario) -> float:
        """The measurement as a step time. [s]"""
        value = self.in_unit(1.0, scenario)
        return self.measured if self.unit == "iteration_s" else value / self.measured


def step_flop(convention: str, scenario: Scenario) -> float:
    """FLOPs of a step as the source of a FLOP rate counts them. [FLOP]

    executed : the model's and those that this plan recomputes.
    hardware, megatron2021 : 4/3 of the model's under full recomputation, the whole attention (Narayanan et al. 2021).
    8*N, 6*N : a multiple of parameters and tokens, no attention (BigScience).
    causal attention halved : model FLOPs with half of the attention.
    model, and everything else : model FLOPs, the whole attention; half of it where the framework counts so.
    """
    model, training, plan = scenario.model, scenario.training, scenario.plan
    said = convention.lower()
    if "8*n" in said or "6*n" in said:
        factor = 8.0 if plan.recompute == "full" or "6*n" not in said else 6.0
        return factor * total_params(model) * training.tokens_per_step
    if said.startswith("executed"):
        return hardware_flop(model, training, plan)
    if "megatron2021" in said or said.startswith(("hardware", "paper formula")):
        return hardware_flop(model, training, plan.replace(recompute="full"))
    stack = scenario.stack
    if "causal attention halved" in said or (said == "model" and halves_attention(stack.framework, stack.version)):
        return causal_flop(model, training)
    return model_flop(model, training)


def read_training_runs(path: Path, profile: str | None = None, overrides: Sequence[str] = ()) -> list[Run]:
    """Every row of a CSV of measured runs, or of a folder of cases, in order.

    Parameters
    ----------
    path : Path
        A folder has cases.csv (columns id, source and measured_step_s), and the scenario of each row as cases/ID.yaml.
    profile : str, optional
        Profile for all runs, a preset's name or a YAML file; default: the one of each run's GPU.
    overrides : sequence of str
        Fields of a scenario laid over every row: "stack.attention=math".

    Raises
    ------
    SpecError
        The file cannot be read, lacks a column that every row needs, or has no rows; there is no such profile.
    """
    if not path.is_dir():
        return read_runs(read_rows(path, REQUIRED), profile, overrides)
    table = path / "cases.csv"
    if not table.is_file():
        raise SpecError(f"{path} has no cases.csv; give a CSV of runs, or a folder with cases.csv and cases/ID.yaml")
    return [_case(path, row, profile, overrides) for row in read_rows(table, ("id", "source", "measured_step_s"))]


def read_runs(rows: Iterable[Row], profile: str | None = None, overrides: Sequence[str] = ()) -> list[Run]:
    """Every row of a table, in order; parameters as for a file.

    An unknown profile, or an override of no field, is a SpecError.
    """
    chosen = None if profile is None else _profile(profile)
    known: dict[Any, Any] = {}
    cells = override_cells(overrides)
    numbered = enumerate(rows, start=1)
    return [read_run({**row, **cells}, f"row {number}", chosen, known) for number, row in numbered]


def unread_columns(path: Path) -> list[str]:
    """Columns of a table that nothing reads, each with the name that it may have meant; notes, where there are some.

    A folder of cases has none. A file that cannot be read, or a column that is a path but of no field of a scenario, is
    a SpecError.
    """
    if path.is_dir():
        return []
    rows = read_rows(path, ())
    notes = [_NOTES] if any(row.get("notes") for row in rows) else []
    return [*check_columns(rows[0]), *notes]


_NOTES = (
    "notes, which are for people (what they say of kernels, routing, recomputation or versions belongs in columns such "
    "as stack.attention, training.expert_skew, plan.recompute_modules, stack.version: flopcast fields)"
)


def read_rows(path: Path, required: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV with a header; cells that a row lacks are empty, cells beyond the header are dropped.

    A file that cannot be read, lacks a required column, or has no rows is a SpecError.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, MEASUREMENTS, "table of runs"), newline=""))
        columns = [name.strip() for name in reader.fieldnames or []]
        reader.fieldnames = columns
        rows = list(reader)
    except csv.Error as error:
        raise SpecError(f"cannot read {path}: {error}") from None
    there = {*columns, *(short for short, path in ALIASES.items() if path in columns)}
    missing = [name for name in required if name not in there]
    if "model_name" in there:
        missing = [name for name in missing if name not in SIZES]
    if missing:
        raise SpecError(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            f"it has {', '.join(columns) or 'none'}"
        )
    if not rows:
        raise SpecError(f"{path} has a header and no rows")
    return [{key: (value or "").strip() for key, value in row.items() if isinstance(key, str)} for row in rows]


def _profile(name: str) -> dict[str, Any]:
    """A profile's data by name or YAML file, once it is known to be sound."""
    data: dict[str, Any] = resolve(name, "profile")
    if name != DATASHEET:
        Profile.read(split_profile(data)[0], f"profile {name}")
    return data


def _unmeasured(row: Row, where: str) -> Run:
    """What a row says of its run, before what was measured is read."""
    unit = str(row.get("measured_unit", ""))
    return Run(
        id=str(row.get("id") or where),
        source=str(row.get("source", "")),
        gpu=str(row.get("gpu", "")),
        framework=str(row.get("framework", "")),
        measured=float("nan"),
        unit=unit,
        framework_name=row.get("stack.framework") or framework_name(str(row.get("framework", ""))) or UNKNOWN,
        family=family_of(row),
        sweep=sweep_of(row),
        precision=str(_cell(row, "precision")) or "bf16",
        convention=str(row.get("flops_convention", "")) or _CONVENTIONS.get(unit, ""),
        dense=str(_cell(row, "experts")) in ("", "0", "1"),
    )


def read_run(
    row: Row, where: str, profile: Mapping[str, Any] | None = None, known: dict[Any, Any] | None = None
) -> Run:
    """One row; a row that cannot be modelled says why.

    `where` is what to call a row without an id; `profile` replaces the one of the row's GPU. Rows that differ only in
    their measurement share the scenarios that `known` keeps.
    """
    precision, run = str(_cell(row, "precision")), _unmeasured(row, where)
    try:
        run = replace(run, measured=number(row, "measured_value"))
        if run.unit not in FACTS["units"]:
            raise Unmodelled(f"measured_unit {run.unit!r} is not one of {', '.join(FACTS['units'])}")
        run = replace(run, **_known_scenarios(row, profile, {} if known is None else known))
        if row.get("peak_tflops"):
            run = replace(run, peak_flop_per_s=number(row, "peak_tflops") * 1e12)
        if run.unit == "tflops_per_gpu" and not run.convention:
            run = replace(run, inferred=(*run.inferred, NO_CONVENTION))
        first = run.choices[0]
        run = replace(run, precision=precision or first.training.precision, dense=not first.model.num_experts)
        seconds = run.step_time_s(first)
        if not STEP_TIMES[0] <= seconds <= STEP_TIMES[1]:
            stated = f"measured_value = {run.measured:g} {run.unit}"
            raise Unmodelled(f"{stated} makes a step of {seconds:.2g} s; check value and unit")
    except (Unmodelled, FlopcastError) as error:
        return replace(run, choices=(), files=(), inferred=(), skipped=reason(error))
    return run


def _cell(row: Row, short: str) -> Any:
    """A short column's value, or its field's, by its path or in its section."""
    section, _, name = ALIASES[short].partition(".")
    fields = row.get(section)
    in_section = fields.get(name, "") if isinstance(fields, Mapping) else ""
    return row.get(short) or row.get(ALIASES[short]) or in_section


def reason(error: Exception) -> str:
    """An error as the reason in a table: one line of bounded length, whatever a cell held."""
    text = " ".join(str(error).split())
    return text if len(text) <= 400 else f"{text[:300]} …"


def _known_scenarios(row: Row, profile: str | Mapping[str, Any] | None, known: dict[Any, Any]) -> dict[str, Any]:
    key = repr({name: cell for name, cell in row.items() if name not in FACTS["measurement"]})
    if key not in known:
        try:
            known[key] = read_scenarios(row, profile)
        except (Unmodelled, FlopcastError) as error:
            known[key] = Unmodelled(reason(error))
    if isinstance(known[key], Unmodelled):
        raise known[key]
    found: dict[str, Any] = known[key]
    return found


def family_of(row: Row) -> str:
    """Lineage of the source and the model: runs that share a recipe, which cross-validation leaves out together."""
    source = str(row.get("source", "")).lower()
    named = (lineage for words, lineage in FACTS["lineages"].items() if words in source)
    lineage = next(named, re.sub(r"\W*\(.*", "", source))
    name = re.sub(r"[^a-z0-9.]", "", str(row.get("model_name", "")).lower()).replace("3.1", "3")
    return f"{lineage} / {name}"


def lineage_of(family: str) -> str:
    """A family's lineage: framework and organisation, what a run of someone else's differs by."""
    return family.partition(" / ")[0]


def sweep_of(row: Row) -> str:
    """What a sweep of layouts keeps fixed."""
    sizes = ("seq_len", "global_batch_seqs", "precision")
    named = [row.get(name, "") for name in ("source", "gpu", "num_gpus", "model_name")]
    fixed = (row.get(name) or row.get(ALIASES[name], "") for name in sizes)
    return " | ".join(map(str, (*named, *fixed, row.get("framework", ""))))


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
        return replace(empty, skipped=reason(error))


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
