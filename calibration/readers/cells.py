"""Cells of a table of runs: which columns are read, their values as numbers, and the names that such tables use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs.base import file_name
from sim.specs.loading import SECTIONS
from sim.specs.yaml12 import load_yaml, parse_yaml

Row = Mapping[str, Any]
"""Cells by column: text, or a value as YAML has it."""

FACTS: dict[str, Any] = load_yaml(Path(__file__).parents[1] / "facts" / "published-runs.yaml")
"""What tables of runs call columns, GPUs, links, frameworks, kernels and sources."""
ALIASES: dict[str, str] = FACTS["columns"]
"""Short columns, and the fields of a scenario that they are."""
ABOUT_THE_RUN = {*FACTS["about_the_run"], *FACTS["measurement"], *ALIASES}
"""Columns that are read beside fields of a scenario."""
LARGEST = 10**8
"""Whole numbers beyond it (parameters of a layer, tokens of a sequence) are slips of the pen."""
MOST = {"num_gpus": 10**6, "layers": 10**4, "gpus_per_node": 1024}
"""Numbers that slip earlier: no machine and no model is near them."""
_WHOLE: dict[str, int] = {path: 1 for short, path in ALIASES.items() if short not in FACTS["words"]} | FACTS["least"]
"""Fields that rules reckon with, and the least that they can be."""
_TEXTS = ("stack.version", "stack.flash_version")
"""Fields that hold text which looks like a number."""


class Unmodelled(Exception):
    """Why a row has no scenario."""


def number(row: Row, key: str) -> float:
    """A positive number. Anything else is Unmodelled."""
    try:
        value = float(row.get(key, ""))
    except (TypeError, ValueError):
        raise Unmodelled(f"{key} = {row.get(key, '')!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise Unmodelled(f"{key} = {value:g} is not a positive number")
    return value


def whole(row: Row, key: str, default: int | None = None) -> int:
    """A positive whole number; the default where the cell is empty.

    Anything else, a number too large to be meant, and an empty cell without a default are Unmodelled.
    """
    if row.get(key) in (None, ""):
        if default is None:
            raise Unmodelled(f"{key} is empty")
        return default
    value = number(row, key)
    most = MOST.get(key, LARGEST)
    if value > most:
        raise Unmodelled(f"{key} = {value:g} is too large to be meant; at most {most:,}")
    if value != int(value):
        raise Unmodelled(f"{key} = {row[key]} is not a whole number")
    return int(value)


def named_in(text: str, words: str) -> bool:
    """Whether a name holds all of these words, whatever their case and what stands between them."""
    looked_for, there = (set(re.split(r"[\W_]+", each.lower())) for each in (words, text))
    return looked_for <= there


def check_columns(columns: Iterable[str]) -> list[str]:
    """The columns that nothing reads, each with the name that it may have meant.

    A column that is a path, but of no field of a scenario, is a SpecError.
    """
    unread = []
    for column in columns:
        section, dot, field = column.partition(".")
        if not dot:
            if column not in ABOUT_THE_RUN:
                meant = nearest(column, ABOUT_THE_RUN)
                unread.append(f"{column}{meant if 'did you mean' in meant else ''}")
            continue
        if section not in SECTIONS:
            raise SpecError(f"column {column!r}: no section {section!r} of a scenario{nearest(section, SECTIONS)}")
        known = {name for each in SECTIONS[section].model_fields for name in (each, file_name(each))} | {"preset"}
        if field.partition(".")[0] not in known:
            raise SpecError(f"column {column!r}: {section} has no field {field!r}{nearest(field, known)}")
    return unread


def override_cells(overrides: Iterable[str]) -> dict[str, str]:
    """Cells that stand for overrides such as "plan.tp=4", to be laid over every row.

    One that is not field=value, or is of no field, is a SpecError.
    """
    cells: dict[str, str] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or "." not in path or not text.strip():
            raise SpecError(f"override {override!r} must look like stack.attention=math (field=value)")
        cells[path.strip()] = text.strip()
    check_columns(cells)
    return {**{short: "" for short, path in ALIASES.items() if path in cells}, **cells}  # the row's own cell gives way


def nested(row: Row) -> dict[str, Any]:
    """The row's sections, with the columns that are fields of a scenario laid over them.

    A cell that is not YAML is a SpecError.
    """
    found: dict[str, Any] = {name: row[name] for name in SECTIONS if isinstance(row.get(name), Mapping)}
    for column, value in row.items():
        if "." not in column or value in (None, ""):
            continue
        if isinstance(value, str) and column not in _TEXTS:
            value = parse_yaml(value, f"column {column}")
        if column in _WHOLE and (type(value) is not int or value < _WHOLE[column]):
            raise SpecError(f"{column} = {value} is not a whole number from {_WHOLE[column]}")
        for part in reversed(column.split(".")):
            value = {part: value}
        found = with_fields(found, value)
    return found


def with_fields(data: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's data with fields laid over it; a preset's name becomes a section that differs from the preset."""
    merged = dict(data)
    for name, value in fields.items():
        below = merged.get(name)
        if isinstance(value, Mapping):
            below = {"preset": below} if isinstance(below, str) else below if isinstance(below, Mapping) else {}
            value = with_fields(below, value)
        merged[name] = value
    return merged
