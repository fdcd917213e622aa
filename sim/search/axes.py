"""What a sweep goes over: a number of the scenario, or a field of the plan, and its values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2

import numpy as np

from sim.errors import SpecError, nearest
from sim.search.plans.layouts import CHOICES, NUMBERS
from sim.specs import Scenario
from sim.specs.base import Spec, file_name, number_kind, unit_of
from sim.specs.loading import build_scenario
from sim.units import EXAMPLES, count_factor, number_and_unit, parse, show_bare, significant

_SECTIONS = ("model", "cluster", "training", "stack", "profile")
_ABOUT_THE_FIT = {"residuals", "unseen", "provenance"}
"""Parts of a profile that say how good it is; no answer depends on them."""


@dataclass(frozen=True, slots=True)
class NumericField:
    """A number of a scenario.

    path : as files and overrides write it, such as cluster.inter_node_bandwidth.
    full_path : with the units in the names, where bare SI numbers are accepted.
    unit : its dimension, as in `sim.units`; None for pure numbers.
    whole : it counts something.
    value : the scenario's own; None where it is left open. [SI]
    """

    path: str
    full_path: str
    unit: str | None
    whole: bool
    value: float | None


def numeric_fields(scenario: Scenario) -> dict[str, NumericField]:
    """Every number of a scenario outside its plan, by path."""
    found = (field for section in _SECTIONS for field in _walk(getattr(scenario, section), section, section))
    return {field.path: field for field in found}


def _walk(spec: Spec, path: str, full_path: str) -> Iterator[NumericField]:
    """Yield the numbers of a record and of those below it; each of a mapping's is at its key."""
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        items = {f".{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {"": value}
        for key, item in items.items() if name not in _ABOUT_THE_FIT else ():
            short, full, kind = f"{path}.{file_name(name)}{key}", f"{full_path}.{name}{key}", type(item)
            if isinstance(item, Spec):
                yield from _walk(item, short, full)
            elif (number_kind(info.annotation) if item is None else kind) in (int, float):
                yield NumericField(short, full, unit_of(name), number_kind(info.annotation) is int, item)


def find_field(scenario: Scenario, path: str) -> NumericField:
    """The number at a path, whichever of its names the path is made of.

    Raises SpecError: no such number; the message has the nearest.
    """
    fields = numeric_fields(scenario)
    plain = ".".join(map(file_name, path.split(".")))
    if plain in fields:
        return fields[plain]
    # Whoever writes cluster.gpu.memory means cluster.node.gpu.memory: what a path ends in says most.
    last = plain.rpartition(".")[2]
    ending = [known for known in fields if known.rpartition(".")[2] == last]
    if 0 < len(ending) <= 5:
        raise SpecError(f"the scenario has no number {path!r}; did you mean {' or '.join(map(repr, ending))}?")
    if section := [known for known in fields if known.startswith(f"{plain}.")]:
        raise SpecError(f"{path!r} is a section; its numbers are {', '.join(section)}")
    hint = nearest(plain, fields)
    raise SpecError(
        f"the scenario has no number {path!r}{hint if len(hint) < 300 else '; flopcast fields lists them all'}"
    )


def with_numbers(scenario: Scenario, numbers: Mapping[str, float]) -> Scenario:
    """The scenario with other numbers, by full path; what followed from the old ones follows from the new.

    Raises SpecError: the numbers break a rule of the scenario.
    """
    data = scenario.model_dump(exclude_unset=True, exclude={"assumed"})
    # What the framework's rules set is among the data; they are not asked again.
    ruled_by = {name: data["stack"].pop(name) for name in ("framework", "version") if name in data["stack"]}
    found = build_scenario(data, [f"{path}={value!r}" for path, value in numbers.items()], scenario.name)
    return found.replace(assumed=scenario.assumed, stack=found.stack.replace(**ruled_by))


GEOMETRIC = 4.0
"""A range is cut into equal factors where its ends differ by more than this, into equal steps otherwise."""
POINTS = {True: 9, False: 5}
"""Points of a range in equal factors, and in equal steps, that does not say how many."""
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
_NETWORK = ("inter_node_bandwidth", "nic_bandwidth")
"""Bandwidths that are sold in bits a second."""


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
    values: tuple[float, ...] = ()
    spacing: str = "listed"

    def show(self, value: float) -> str:
        """A value as a person writes it."""
        if self.unit is None:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        in_bits = self.unit == "bytes_per_s" and self.path.endswith(_NETWORK)
        return show_bare(8 * value, "bits_per_s") if in_bits else show_bare(value, self.unit)


def parse_axis(text: str, scenario: Scenario) -> Axis:
    """What is swept: a path of the scenario, `=`, and values with their unit.

    `a..b` is a range. Where b is more than four times a it is cut into doublings if they lead there, else 9 equal
    factors; where it is less, into 5 equal steps. Whole numbers double from four times a on. `a..b:N` has N values,
    `a,b,c` are these. A unit after the last value counts for all.

    Raises SpecError: no such number, or values that cannot be read.
    """
    path, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not said:
        raise SpecError(f"--sweep {text!r} must look like cluster.inter_node_bandwidth=25..800Gbit/s")
    of_plan = path == SIZE or path.startswith("plan.")
    field = NumericField(path, "", None, True, None) if of_plan else find_field(scenario, path)
    if of_plan:
        _check_plan_field(path, scenario)
    match = _RANGE.match(said)
    parts = said.split(",") if match is None else [match["first"], match["last"]]
    _, trailing = number_and_unit(parts[-1]) or ("", "")
    read = [_read(part, trailing, field) for part in parts]
    values, spacing = (read, "listed") if match is None else _spread(read, match["count"], field, said)
    for value in values:
        if field.whole and not float(value).is_integer():
            raise SpecError(f"--sweep {field.path}: {significant(value)} must be a whole number")
        if values.count(value) > 1:
            raise SpecError(f"--sweep {field.path}: {value:g} stands there twice")
    least = 0 if path == "plan.zero_stage" else 1
    if of_plan and min(values) < least:
        raise SpecError(f"--sweep {path}: {min(values):g} must be {least} or more")
    return Axis(field.path, field.full_path, field.unit, tuple(map(int, values) if field.whole else values), spacing)


def _check_plan_field(path: str, scenario: Scenario) -> None:
    """Raise where a search does not vary a field of the plan by numbers."""
    name = path.removeprefix("plan.")
    if name == "ep" and not scenario.model.num_experts:
        raise SpecError(f"--sweep {path}: model {scenario.model.name!r} has no experts to deal")
    if name in ("schedule", *CHOICES) and name not in PLAN_NUMBERS:
        raise SpecError(f"{path} is a choice, not a number; --sensitivity shows what each of them costs")
    if path != SIZE and name not in PLAN_NUMBERS:
        raise SpecError(f"a search does not vary {path!r}{nearest(name, PLAN_NUMBERS)}")


def _read(text: str, trailing: str, field: NumericField) -> float:
    """One value in SI; one without a unit has the one that stands at the end."""
    pair = number_and_unit(text)
    if pair is None:
        example = f"a..b, a..b:N or a,b,c{f' with {EXAMPLES[field.unit]}' if field.unit else ''}"
        raise SpecError(f"--sweep {field.path}: {text.strip()!r} is not a number; write {example}")
    number, unit = pair[0], pair[1] or trailing
    if field.unit is not None:
        return parse(f"{number} {unit}", field.unit)
    factor = count_factor(unit, field.path)
    if factor is None:
        raise SpecError(f"--sweep {field.path}: {text.strip()!r} has a unit, but {field.path} is a pure number")
    value = float(number) * factor
    if abs(value) > LARGEST:
        raise SpecError(f"--sweep {field.path}: {text.strip()} is larger than any number here, {LARGEST:g}")
    return value


def _spread(ends: list[float], many: str | None, field: NumericField, said: str) -> tuple[list[float], str]:
    """The values of a range, and how they are spaced.

    many : how many there are, as it was written; None where it was not.
    """
    first, last = ends
    if first >= last:
        raise SpecError(f"--sweep {field.path}: {said!r} must go from a smaller to a larger value")
    if many is not None and not (many.strip().isdecimal() and int(many) > 1):
        raise SpecError(f"--sweep {field.path}: {many!r} values; after the colon stands a whole number of two or more")
    geometric, doublings = first > 0 and last / first > GEOMETRIC, log2(last / first) if first > 0 else 0.0
    count = POINTS[geometric] if many is None else int(many)
    wide = geometric or (field.whole and doublings > 1.5)
    if many is None and wide and abs(doublings - round(doublings)) < 1e-9 and doublings < DOUBLINGS + 0.5:
        geometric, count = True, round(doublings) + 1
    values = np.geomspace(first, last, count) if geometric else np.linspace(first, last, count)
    # Rounding of the spacing leaves 99.99999999999999 where 100 is meant.
    tidy = [float(f"{value:.12g}") for value in (np.unique(values.round()) if field.whole else values).tolist()]
    return tidy, "geometric" if geometric else "linear"
