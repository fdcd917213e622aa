"""Fields in which scenarios differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.specs.scenario import Scenario

_NOT_ASKED = {"name", "description", "assumed", "profile"}
"""What no answer depends on, and the profile, whose values are told where its name does not tell them."""
_VALUES_OF_PROFILE = {"residuals", "unseen", "provenance"}
"""Left out of a profile: how good it is."""
ABSENT = None
"""Stands in the place of a value that a scenario does not have."""


def differing_fields(scenarios: Sequence[Scenario]) -> dict[str, tuple[Any, ...]]:
    """Fields that are not the same in all scenarios, by path, with the value of each scenario.

    Returns
    -------
    dict
        Plain values in SI, under full names (`cluster.inter_node_bandwidth_bytes_per_s`); ABSENT where a scenario has
        none. Of profiles the names, or the values where the names are the same.
    """
    flat = [_flat(each.model_dump(mode="json", exclude=_NOT_ASKED)) for each in scenarios]
    names = [each.profile.name for each in scenarios]
    for one, scenario in zip(flat, scenarios, strict=True):
        if len(set(names)) > 1:
            one["profile"] = scenario.profile.name
        else:
            one |= _flat({"profile": scenario.profile.model_dump(mode="json", exclude=_VALUES_OF_PROFILE)})
    found = {path: tuple(each.get(path, ABSENT) for each in flat) for path in dict.fromkeys(p for f in flat for p in f)}
    return {path: values for path, values in found.items() if any(value != values[0] for value in values)}


def _flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values below mappings by dotted path."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        found |= _flat(value, here) if isinstance(value, Mapping) else {here: value}
    return found
