"""Write a Scenario as a file: presets by their names, and what differs from them.

A scenario whose parts have no preset's name, or that a short file would not give back, is written out whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.errors import FlopcastError
from sim.specs.base import Spec, file_name, flat, unit_of
from sim.specs.frameworks import resolve_stack
from sim.specs.loading import PRESET_AT, SECTIONS, build_scenario, profile_of_gpu, resolve
from sim.specs.presets import preset_names
from sim.specs.scenario import Scenario
from sim.specs.yaml12 import dump_yaml, parse_yaml
from sim.units import parse, show_bare

_NOT_ASKED = {"name", "description", "assumed", "profile"}
"""What no answer depends on, and the profile, whose values are told where its name does not tell them."""
_VALUES_OF_PROFILE = {"residuals", "unseen", "provenance"}
"""Left out of a profile: how good it is."""
ABSENT = None
"""Stands in the place of a value that a scenario does not have."""


def overridden(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    """The scenario as its file and overrides make it: what followed from the old values follows from the new.

    Raises SpecError: the overrides break a rule.
    """
    found = build_scenario(parse_yaml(scenario_yaml(scenario), scenario.name), overrides, scenario.name)
    return found.replace(assumed=scenario.assumed)


def differing_fields(scenarios: Sequence[Scenario]) -> dict[str, tuple[Any, ...]]:
    """Fields that are not the same in all scenarios, by path, with the value of each scenario.

    Returns plain values in SI, under full names (`cluster.inter_node_bandwidth_bytes_per_s`); ABSENT where a scenario
    has none. Of profiles the names, or the values where the names are the same.
    """
    told = [flat(each.model_dump(mode="json", exclude=_NOT_ASKED)) for each in scenarios]
    names = [each.profile.name for each in scenarios]
    for one, scenario in zip(told, scenarios, strict=True):
        if len(set(names)) > 1:
            one["profile"] = scenario.profile.name
        else:
            one |= flat({"profile": scenario.profile.model_dump(mode="json", exclude=_VALUES_OF_PROFILE)})
    found = {path: tuple(each.get(path, ABSENT) for each in told) for path in dict.fromkeys(p for f in told for p in f)}
    return {path: values for path, values in found.items() if any(value != values[0] for value in values)}


def scenario_yaml(scenario: Scenario) -> str:
    """The scenario as YAML; reading it gives an equal scenario, but for what was assumed and now is said."""
    try:
        text = dump_yaml(_with_units(_brief(scenario)), width=100)
        again = build_scenario(parse_yaml(text, "scenario"))
        same = again.model_copy(update={"assumed": scenario.assumed}) == scenario
    except FlopcastError:
        same = False
    return text if same else whole_yaml(scenario)


def whole_yaml(scenario: Scenario) -> str:
    """The scenario as YAML with every preset written out, so that it says the same tomorrow."""
    return dump_yaml(_with_units(scenario.model_dump(mode="json", exclude={"assumed"}, exclude_none=True)), width=100)


def _with_units(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """The data with quantities as people write them: `memory: 192 GB` for `memory_bytes: 192e9`."""
    written: dict[Any, Any] = {}
    for key, value in data.items():
        unit = unit_of(str(key))
        said = None if unit is None else _quantity(value, unit)
        rest = _with_units(value) if isinstance(value, Mapping) else value
        written |= {key: rest} if said is None else {file_name(key): said}
    return written


def _quantity(value: Any, unit: str) -> Any:
    """A number, or a mapping of numbers, with units; None where its words would not be read as the same number."""
    if isinstance(value, Mapping):
        words = {key: _quantity(each, unit) for key, each in value.items()}
        return None if None in words.values() else words
    text = show_bare(value, unit, digits=9) if isinstance(value, float) else ""
    return text if text and parse(text, unit) == value else None


def _brief(scenario: Scenario) -> dict[str, Any]:
    """Sections by their presets' names, with what differs."""
    sections = {name: getattr(scenario, name) for name in SECTIONS}
    plain = {name: sections[name].model_dump() for name in ("model", "cluster", "plan", "training")}
    found = resolve_stack(_stack_words(scenario), plain)
    ruled = [item.path.split(".", 1) for item in found.consequences]
    data: dict[str, Any] = {"name": scenario.name, "description": scenario.description}
    data |= {name: _from_preset(sections[name], name) for name in ("model", "cluster")}
    for name in ("plan", "training"):
        record, named = sections[name], {field for section, field in ruled if section == name}
        usual = {field: info.default for field, info in type(record).model_fields.items() if field not in named}
        data[name] = {
            field: value
            for field, value in record.model_dump(mode="json").items()
            if field in named or getattr(record, field) != usual[field]
        }
    base = type(scenario.stack).read(found.fields, "stack")
    data["stack"] = {**_stack_words(scenario), **_written(scenario.stack, "", base)}
    if scenario.profile != profile_of_gpu(scenario.cluster.gpu):
        data["profile"] = _from_preset(scenario.profile, "profile")
    return data


def _stack_words(scenario: Scenario) -> dict[str, Any]:
    """How a file names the stack."""
    stack = scenario.stack
    return {"framework": stack.framework, "version": stack.version} if stack.framework else {"preset": stack.name}


def _from_preset(record: Spec, place: str) -> Any:
    """A section as the preset of its name and what differs from that; whole, where there is none."""
    name, kind = getattr(record, "name", ""), PRESET_AT[place]
    if name not in preset_names(kind):
        return _written(record, place)
    base = type(record).read(resolve(name, place), place)
    differing = _written(record, place, base)
    return {"preset": name, **differing} if differing else name


def _written(record: Spec, place: str, base: Spec | None = None) -> dict[str, Any]:
    """A record's fields as a file says them, of which parts go by their presets' names where they have one; beside
    another record only those in which they differ."""
    left: dict[str, Any] = {} if base is not None else {"exclude_none": True, "exclude_defaults": True}
    return {
        field: _from_preset(getattr(record, field), f"{place}.{field}") if f"{place}.{field}" in PRESET_AT else value
        for field, value in record.model_dump(mode="json", **left).items()
        if base is None or getattr(record, field) != getattr(base, field)
    }
