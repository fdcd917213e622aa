"""Values of a table of runs as numbers, the refusal of a row, and the patterns of names that such tables use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sim.specs.yaml12 import load_yaml

Row = Mapping[str, str]

LARGEST = 10**8
"""Whole numbers beyond it (parameters of a layer, tokens of a sequence) are slips of the pen."""
MOST = {"num_gpus": 10**6, "layers": 10**4}
"""Numbers that slip earlier: no machine and no model is near them."""


_NAMES = Path(__file__).parents[1] / "facts" / "published-runs.yaml"


class Unmodelled(Exception):
    """Why a row has no scenario."""


def number(row: Row, key: str) -> float:
    """A positive number.

    Raises
    ------
    Unmodelled
        Something else.
    """
    try:
        value = float(row.get(key, ""))
    except ValueError:
        raise Unmodelled(f"{key} = {row.get(key, '')!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise Unmodelled(f"{key} = {value:g} is not a positive number")
    return value


def whole(row: Row, key: str, default: int | None = None) -> int:
    """A positive whole number; the default where the cell is empty.

    Raises
    ------
    Unmodelled
        Something else, too large to be meant, or empty without a default.
    """
    if not row.get(key):
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


def is_moe(row: Row) -> bool:
    """Whether the row is of a mixture of experts."""
    return (row.get("experts") or "0").strip() not in ("", "0", "1", "1.0", "0.0")


def settings_of(row: Row) -> dict[str, str]:
    """Settings that a row's notes give as name=value."""
    pairs = (word.partition("=") for word in row.get("notes", "").replace(";", " ").replace(",", " ").split())
    return {name: value for name, equals, value in pairs if equals}


def name_patterns(section: str) -> list[dict[str, Any]]:
    """What the names of GPUs, frameworks, models and sources stand for: a list of facts/published-runs.yaml."""
    patterns: list[dict[str, Any]] = _name_patterns()[section]
    return patterns


@cache
def _name_patterns() -> Any:
    return load_yaml(_NAMES)
