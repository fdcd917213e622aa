"""The fields in which several scenarios differ, in words, for every report that puts them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.specs import Scenario
from sim.specs.base import file_name, unit_of
from sim.specs.differing import ABSENT, differing_fields

MOST_UNFOLDED = 4
"""Fields of a section of another name that are shown at once."""


def differing_rows(scenarios: Sequence[Scenario]) -> tuple[dict[str, list[str]], dict[str, dict[str, list[str]]]]:
    """Fields that differ between scenarios with the value of each, plan and training first; see `field_rows`."""
    return field_rows(differing_fields(scenarios))


def _short_path(path: str) -> str:
    """A path as files write it, where values carry the unit."""
    return ".".join(map(file_name, path.split(".")))


def field_rows(fields: Mapping[str, Sequence[Any]]) -> tuple[dict[str, list[str]], dict[str, dict[str, list[str]]]]:
    """Inputs that differ in words, section by section; and apart those of sections that have another name altogether.

    Whose model or cluster is another one knows so by its name: a hundred fields follow, for those who ask.
    """
    shown: dict[str, list[str]] = {}
    folded: dict[str, dict[str, list[str]]] = {}
    sections = dict.fromkeys(path.partition(".")[0] for path in fields)
    for section in sorted(sections, key=lambda name: name not in ("plan", "training")):
        here = {path: values for path, values in fields.items() if path.partition(".")[0] == section}
        rows = {_short_path(path): [field_words(path, value) for value in values] for path, values in here.items()}
        name = f"{section}.name"
        if name in rows and len(rows) > MOST_UNFOLDED:
            shown[name] = rows.pop(name)
            folded[section] = rows
        else:
            shown |= rows
    return shown, folded


def field_words(path: str, value: Any) -> str:
    """A field's value as a file would have it."""
    if value is ABSENT:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        from sim.search.axes import Axis

        return Axis(_short_path(path), path, unit_of(path.rpartition(".")[2]), (), "listed").show(value)
    return ", ".join(map(str, value)) or "–" if isinstance(value, list) else str(value)
