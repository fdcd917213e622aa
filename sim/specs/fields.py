"""The numbers of a scenario by their dotted paths, and the scenario again with other numbers in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sim.errors import SpecError, nearest
from sim.specs.base import Spec, file_name, number_kind, unit_of
from sim.specs.loading import build_scenario
from sim.specs.scenario import Scenario

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


def find_field(scenario: Scenario, path: str) -> NumericField:
    """The number at a path, whichever of its names the path is made of.

    Raises SpecError: no such number; the message has the nearest.
    """
    fields = numeric_fields(scenario)
    plain = ".".join(file_name(part) for part in path.split("."))
    if plain in fields:
        return fields[plain]
    # Whoever writes cluster.gpu.memory means cluster.node.gpu.memory: what a path ends in says most.
    last = plain.rpartition(".")[2]
    ending = [known for known in fields if known.rpartition(".")[2] == last]
    if 0 < len(ending) <= 5:
        raise SpecError(f"the scenario has no number {path!r}; did you mean {' or '.join(map(repr, ending))}?")
    section = [known for known in fields if known.startswith(f"{plain}.")]
    if section:
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
    overrides = [f"{path}={value!r}" for path, value in numbers.items()]
    found = build_scenario(data, overrides, scenario.name)
    return found.replace(assumed=scenario.assumed, stack=found.stack.replace(**ruled_by))


def _walk(spec: Spec, path: str, full_path: str) -> Iterator[NumericField]:
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        places = [(value, f"{path}.{file_name(name)}", f"{full_path}.{name}")]
        if isinstance(value, Mapping):
            places = [(item, f"{short}.{key}", f"{full}.{key}") for _, short, full in places
                      for key, item in value.items()]  # fmt: skip
        for item, short, full in places:
            if name in _ABOUT_THE_FIT:
                continue
            if isinstance(item, Spec):
                yield from _walk(item, short, full)
                continue
            kind = number_kind(info.annotation) if item is None else type(item)
            if kind in (int, float):
                whole = number_kind(info.annotation) is int
                yield NumericField(short, full, unit_of(name), whole, item)
