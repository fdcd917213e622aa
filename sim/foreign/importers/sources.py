"""Foreign files as text and data: nothing in them is executed, nothing is looked up, and their size is bounded."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from sim.errors import SpecError
from sim.files import read_text

DEEPEST = 40
"""Levels of nesting. Configurations have four or five."""


def text_of(path: Path) -> str:
    """The text of a file. Raises SpecError: there is none, it is a folder, too large, or not text."""
    text = read_text(path)
    if "\0" in text:
        raise SpecError(f"{path} is not a text file: it holds NUL bytes")
    return text


def beside(name: str, folder: Path | None) -> Path | None:
    """A file that another one names, if it lies in that one's folder or below, whatever links lead there; None where
    there is none."""
    if folder is None or "\0" in name or len(name) > 500 or name.startswith(("/", "~")):
        return None
    try:
        path = (folder / name).resolve()
        return folder / name if path.is_relative_to(folder.resolve()) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(items)
    if len(data) != len(items):
        twice = next(key for key, _ in items if [name for name, _ in items].count(key) > 1)
        raise ValueError(f"the key {twice!r:.60} is given twice; keep one")
    return data


def parse_json(text: str, where: str) -> Any:
    """Data in JSON; also with Infinity and NaN as Python writes them, which no key that is read takes for a number.
    Raises SpecError: broken, too deeply nested, or with a number of thousands of digits."""
    try:
        data = json.loads(text, object_pairs_hook=_pairs)
    except RecursionError:
        raise _too_deep(where) from None
    except json.JSONDecodeError as error:
        raise SpecError(f"{where}: line {error.lineno}, column {error.colno}: {error.msg}; it is not JSON") from None
    except ValueError as error:
        raise SpecError(f"{where}: {_one_line(error)}") from None
    return _bounded(data, where, isinstance(data, (dict, list)))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Data in TOML; raises as `parse_json`."""
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:  # TOMLDecodeError, and integers of thousands of digits
        raise SpecError(f"{where}: {_one_line(error)}; it is not TOML") from None
    return dict(_bounded(data, where, 1))


def _bounded(data: Any, where: str, level: int = 0) -> Any:
    """The data, if it is not nested too deeply."""
    if level > DEEPEST:
        raise _too_deep(where)
    if isinstance(data, (dict, list)):
        for item in data.values() if isinstance(data, dict) else data:
            _bounded(item, where, level + isinstance(item, (dict, list)))
    return data


def _too_deep(where: str) -> SpecError:
    return SpecError(f"{where} is nested more than {DEEPEST} levels deep; no configuration is")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
