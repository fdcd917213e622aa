"""What a sweep goes over: a number of the scenario by its path, and values with their unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2

import numpy as np

from sim.errors import SpecError, nearest
from sim.search.plans.layouts import CHOICES, NUMBERS
from sim.specs import Scenario
from sim.specs.fields import find_field
from sim.units import EXAMPLES, count_factor, parse, show, show_time, significant

GEOMETRIC = 4.0
"""A range is cut into equal factors where its ends differ by more than this, into equal steps otherwise."""
POINTS = {"geometric": 9, "linear": 5}
"""Points of a range that does not say how many."""
DOUBLINGS = 12
"""A range is cut into doublings, up to so many, if its ends differ by a power of two. Whole numbers, which layouts and
batches must divide, are cut so from two doublings on."""
LARGEST = 1e15
"""Largest pure number of a range: no count, rate or share of a scenario is larger."""
SIZE = "gpus"
"""The axis that is no field: how many GPUs the plan uses."""
PLAN_NUMBERS = (*NUMBERS, "zero_stage")
"""Fields of the plan that are numbers; an axis over one fixes what the search else varies."""

_RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>[^:]+)(?::(?P<count>.*))?$")
_NUMBER = re.compile(r"\s*(?P<number>[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>.*?)\s*$")
_NETWORK = ("inter_node_bandwidth", "nic_bandwidth")
"""Bandwidths that are sold in bits a second."""
_LETTERS = {"bytes": "B", "bytes_per_s": "B/s", "flop_per_s": "FLOP/s", "flop": "FLOP", "w": "W"}


@dataclass(frozen=True, slots=True)
class Axis:
    """What is swept, over which values.

    path : as files write it; `gpus`, or plan.tp and the like, fix what a search else varies.
    full_path : where the scenario holds it; empty for what a search varies, `gpus` and the plan's fields.
    unit : its dimension, as in `sim.units`; None for pure numbers.
    spacing : listed, linear or geometric.
    """

    path: str
    full_path: str
    unit: str | None
    values: tuple[float, ...]
    spacing: str

    def show(self, value: float) -> str:
        """A value as a person writes it."""
        if self.unit is None:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        if self.unit == "bytes_per_s" and self.path.endswith(_NETWORK):
            return _short(show(8 * value, "bit/s"))
        return _short(show_time(value) if self.unit == "s" else show(value, _LETTERS[self.unit]))


def _short(shown: str) -> str:
    """`25 Gbit/s` for `25.0 Gbit/s`."""
    return re.sub(r"(\.\d*?)0+(?=\s)", r"\1", shown).replace(". ", " ")


def parse_axis(text: str, scenario: Scenario) -> Axis:
    """What is swept: a path of the scenario, `=`, and values with their unit.

    `a..b` is a range. Where b is more than four times a it is cut into doublings if they lead there, else 9 equal
    factors; where it is less, into 5 equal steps. Whole numbers double from four times a on. `a..b:N` has N values,
    `a,b,c` are these. A unit after the last value counts for all.

    Raises SpecError: no such number, or values that cannot be read.
    """
    path, equals, said = text.partition("=")
    path = path.strip()
    if not equals or not said.strip():
        raise SpecError(f"--sweep {text!r} must look like cluster.inter_node_bandwidth=25..800Gbit/s")
    if path == SIZE or path.startswith("plan."):
        full, unit, whole, path = "", None, True, _plan_field(path, scenario)
    else:
        field = find_field(scenario, path)
        full, unit, whole, path = field.full_path, field.unit, field.whole, field.path
    values, spacing = _values(said, unit, whole, path)
    least = 0 if path == "plan.zero_stage" else 1
    if (path == SIZE or path.startswith("plan.")) and min(values) < least:
        raise SpecError(f"--sweep {path}: {min(values):g} must be {least} or more")
    return Axis(path, full, unit, values, spacing)


def _plan_field(path: str, scenario: Scenario) -> str:
    name = path.removeprefix("plan.")
    if name == "ep" and not scenario.model.num_experts:
        raise SpecError(f"--sweep {path}: model {scenario.model.name!r} has no experts to deal")
    if path == SIZE or name in PLAN_NUMBERS:
        return path
    if name in ("schedule", *CHOICES):
        raise SpecError(f"{path} is a choice, not a number; --sensitivity shows what each of them costs")
    raise SpecError(f"a search does not vary {path!r}{nearest(name, PLAN_NUMBERS)}")


def _values(said: str, unit: str | None, whole: bool, path: str) -> tuple[tuple[float, ...], str]:
    match = _RANGE.match(said.strip())
    if match is None:
        parts = said.split(",")
        last = _NUMBER.match(parts[-1])
        trailing = last["unit"] if last else ""
        return _distinct([_read(part, trailing, unit, path) for part in parts], whole, path), "listed"
    ending = _NUMBER.match(match["last"])
    trailing = ending["unit"] if ending else ""
    first, last_value = (_read(match[name], trailing, unit, path) for name in ("first", "last"))
    if first >= last_value:
        raise SpecError(f"--sweep {path}: {said.strip()!r} must go from a smaller to a larger value")
    geometric = first > 0 and last_value / first > GEOMETRIC
    count = _count(match["count"], path)
    if count is None:
        count = POINTS["geometric" if geometric else "linear"]
        doublings = log2(last_value / first) if first > 0 else 0.0
        wide = geometric or (whole and doublings > 1.5)
        if wide and abs(doublings - round(doublings)) < 1e-9 and doublings < DOUBLINGS + 0.5:
            geometric, count = True, round(doublings) + 1
    values = np.geomspace(first, last_value, count) if geometric else np.linspace(first, last_value, count)
    if whole:
        values = np.unique(values.round())
    # Rounding of the spacing leaves 99.99999999999999 where 100 is meant.
    tidy = [float(f"{value:.12g}") for value in values.tolist()]
    return _distinct(tidy, whole, path), "geometric" if geometric else "linear"


def _count(text: str | None, path: str) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 2:
        raise SpecError(f"--sweep {path}: {text!r} values; after the colon stands a whole number of two or more")
    return int(text)


def _read(text: str, trailing: str, unit: str | None, path: str) -> float:
    """One value in SI; a value without a unit has the one that stands at the end."""
    match = _NUMBER.match(text)
    if match is None:
        example = f"a..b, a..b:N or a,b,c with {EXAMPLES[unit]}" if unit else "a..b, a..b:N or a,b,c"
        raise SpecError(f"--sweep {path}: {text.strip()!r} is not a number; write {example}")
    if unit is not None:
        return parse(f"{match['number']} {match['unit'] or trailing}", unit)
    letter = match["unit"] or trailing
    factor = count_factor(letter, path) if letter else 1.0
    if factor is None:
        raise SpecError(f"--sweep {path}: {text.strip()!r} has a unit, but {path} is a pure number")
    value = float(match["number"].replace("_", "")) * factor
    if abs(value) > LARGEST:
        raise SpecError(f"--sweep {path}: {text.strip()} is larger than any number here, {LARGEST:g}")
    return value


def _distinct(values: list[float], whole: bool, path: str) -> tuple[float, ...]:
    for value in values:
        if whole and not float(value).is_integer():
            raise SpecError(f"--sweep {path}: {significant(value)} must be a whole number")
        if values.count(value) > 1:
            raise SpecError(f"--sweep {path}: {value:g} stands there twice")
    return tuple(int(value) if whole else value for value in values)
