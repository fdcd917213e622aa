"""Cells of a table of runs as numbers, and the refusal of a row."""

from __future__ import annotations

from collections.abc import Mapping

Row = Mapping[str, str]

LARGEST = 10**8
"""Whole numbers beyond it (parameters of a layer, tokens of a sequence) are slips of the pen."""
MOST = {"num_gpus": 10**6, "layers": 10**4}
"""Numbers that slip earlier: no machine and no model is near them."""


class Unmodelled(Exception):
    """Why a row has no scenario."""


def number(row: Row, key: str) -> float:
    try:
        value = float(row.get(key, ""))
    except ValueError:
        raise Unmodelled(f"{key} = {row.get(key, '')!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise Unmodelled(f"{key} = {value:g} is not a positive number")
    return value


def whole(row: Row, key: str, default: int | None = None) -> int:
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
    return (row.get("experts") or "0").strip() not in ("", "0", "1", "1.0", "0.0")
