"""A calibration as a profile file: values with their 90 % intervals and sources, in the format of presets."""

from __future__ import annotations

from collections.abc import Mapping
from math import log1p
from pathlib import Path
from statistics import fmean
from typing import Any

from flopcast_calibration.build import BANDWIDTHS, NETWORK, OWN_VALUES, SHARED, TOGETHER, Calibration
from flopcast_calibration.from_runs import RunsFit, predict
from sim.files import write_text
from sim.specs import Profile, Scenario
from sim.specs.base import Spec, file_name, unit_of
from sim.specs.profile import MeasuredRun
from sim.specs.values import place_of, with_values
from sim.specs.yaml12 import dump_yaml
from sim.uncertainty import facts_of, measured_run, shares_of
from sim.units import UNIT_NAMES

#: Fields that are written though they have their default: fits put values there.
_SAID = ("exponent", "half_length", "operations", "precisions", "two_domain_trees")

#: fit -> section of the profile, where their names differ
_SECTIONS = {
    "send": "nvlink",
    "interference": "nvlink",
    "launch": "host",
    "graph launch": "host",
    "copies": "host",
    "state": "attention",
}


def _written(name: str, value: Any) -> Any:
    """A value as files write it: with its unit under the short name."""
    if isinstance(value, float):
        unit = unit_of(name)
        return f"{value:.5g} {UNIT_NAMES[unit]}" if unit else float(f"{value:.5g}")
    return value


def profile_data(calibration: Calibration) -> dict[str, Any]:
    """The profile as plain data, fitted values with interval and source."""
    profile = calibration.profile
    data = _section(profile)
    for part, fit in calibration.fits.items():
        source = f"fitted on {fit.count} {part} measurements"
        for name, value in fit.params.items():
            target, field = _place(data, part, name)
            if isinstance(target[file_name(field)], bool):
                target[file_name(field)] = {"value": bool(value), "source": source}
                continue
            near = f"near the base's: {fit.count} measurements tell a bandwidth alone"
            target[file_name(field)] = {
                "value": _written(field, value),
                "interval": [_written(field, end) for end in fit.intervals[name]],
                "source": near if fit.short and name not in BANDWIDTHS else source,
            }
    return data


def _place(data: dict[str, Any], part: str, name: str) -> tuple[dict[str, Any], str]:
    """Where a fitted parameter lives: (mapping, field)."""
    if (part, name) == ("memory", "kernel_floor_s"):
        return data["gemm"], name
    if part == "memory" and name != "efficiency":
        return data["memory"]["operations"], name
    if part == "gemm" and name in data["gemm"].get("alignment", ()):
        return data["gemm"]["alignment"][name], "rate"
    if part == TOGETHER:
        return data["gemm"], name
    if part.startswith("gemm "):
        return data["gemm"]["precisions"], part.removeprefix("gemm ")
    section = "network" if part.startswith(NETWORK) else "nvlink"
    operation = part.removeprefix(SHARED).strip() if part.startswith(SHARED) else part.removeprefix(NETWORK)
    if operation in OWN_VALUES:
        return data[section]["operations"][operation], name
    return data[section if part.startswith(NETWORK) else _SECTIONS.get(part, part)], name


def _section(spec: Spec) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        unsaid = value == field.get_default(call_default_factory=True)
        if (
            value is None
            or (unsaid and name not in _SAID)
            or (isinstance(value, Spec) and not value.model_dump(exclude_none=True))
        ):
            continue
        if isinstance(value, Spec):
            rows[name] = _section(value)
        elif isinstance(value, dict):
            items = {str(key): item for key, item in value.items()}
            rows[name] = {key: _section(i) if isinstance(i, Spec) else _written(key, i) for key, i in items.items()}
        elif isinstance(value, tuple):
            rows[name] = list(value)  # bare numbers stand under the name that carries their unit
        else:
            rows[file_name(name)] = _written(name, value)
    return rows


def write_profile(calibration: Calibration, path: Path, raw: Path | None = None) -> Profile:
    """Write the profile's YAML; `raw` is the file of measurements, named in its provenance."""
    data = profile_data(calibration)
    if raw is not None:
        data["provenance"]["raw_data"] = raw.name
    text = dump_yaml({"source": "see provenance", **data})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return calibration.profile


def write_runs_profile(fit: RunsFit, path: Path, source: str) -> None:
    """Write the profile that came of a fit to training runs, with the stack's values in a section of their own.

    Values that the runs did not identify keep a note that says so.
    """
    scenario = with_values(fit.runs[0].choices[0], fit.values)
    profile = scenario.profile
    data = _section(profile)
    families = sorted({run.family for run in fit.runs})
    stack: dict[str, Any] = {}
    for item in fit.parameters:
        section, field = item.name.split(".")
        known = "" if item.identified else "; these runs hardly narrow what was known of it"
        entry = {
            "value": _written(field, item.value),
            "interval": [_written(field, max(0.0, item.value + sign * 1.645 * item.width)) for sign in (-1, 1)],
            "source": f"fitted to {_counted(len(fit.runs), len(families))} ({source}){known}",
        }
        if section == "stack" and item.moved:
            stack[file_name(field)] = entry
        elif section != "stack":
            data[section][file_name(field)] = entry
    if stack:
        data["stack"] = stack
    data["name"] = path.stem
    data["residuals"] = {"training runs": round(float(abs(fit.errors).mean()), 4)}
    data["provenance"] = {
        **data.get("provenance", {}),
        "method": f"from training runs, drawn to profile {profile.name!r}",
        "fitted_on": [f"{_counted(len(fit.runs), len(families))}: {source}"],
        "fitted_families": families,
        "measured": _told(fit),
        "moved": {
            item.name: [float(f"{value:.5g}") for value in (item.prior, item.value, *item.ends)]
            for item in fit.parameters
            if item.moved
        },
        "measured_stack": fit.runs[0].choices[0].stack.name,
    }
    text = dump_yaml({"source": f"as in profile {profile.name!r}", **data})
    write_text(path, text)


MOST_RUNS = 50
"""Measured runs that a profile keeps one by one. Of more, those at one place pull as one."""


def _told(fit: RunsFit) -> list[dict[str, Any]]:
    """What measured runs tell of others, as the fitted values have it."""
    groups: dict[Any, list[int]] = {}
    for row, place in enumerate(fit.drawn.places):
        groups.setdefault(tuple(place.items()) if len(fit.runs) > MOST_RUNS else row, []).append(row)
    told = []
    for rows in groups.values():
        row, off = rows[0], -fmean(log1p(fit.before[each]) for each in rows)
        pulls = dict(zip(fit.drawn.start, fit.drawn.pulls[rows].sum(axis=0), strict=True))
        by = {item.name: float(f"{pulls[item.name]:.4g}") for item in fit.parameters if item.moved}
        answer = predict(fit.runs[row], fit.drawn.values_at(fit.drawn.places[row]))
        run = as_measured(answer.scenario, answer.breakdown.shares()).replace(pulls=by, log_error=round(off, 4))
        told.append(run.model_dump(mode="json"))
    return told


def as_measured(scenario: Scenario, causes: Mapping[str, float]) -> MeasuredRun:
    """What a profile keeps of a measured run that it was drawn to."""
    shares = {name: round(share, 4) for name, share in shares_of(causes).items() if share > 5e-5}
    return MeasuredRun(name=measured_run(scenario), shares=shares, facts=facts_of(scenario), place=place_of(scenario))


def _counted(runs: int, families: int) -> str:
    """ "3 training runs of 1 family"."""
    return f"{runs} training run{'s' * (runs != 1)} of {families} famil{'ies' if families != 1 else 'y'}"
