"""How commands answer: JSON or a view on the terminal, figures and other files."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import typer


def print_json(data: Any) -> None:
    """Print plain data; numbers that JSON lacks as null."""
    import json

    typer.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def finite(data: Any) -> Any:
    """Plain data with null for numbers that JSON lacks."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def print_view(*parts: Any) -> None:
    """Print what rich can show, one below the other; what depends on the terminal's width is a function of it."""
    from sim.report.terminal import console

    out = console()
    out.print(*(part(out.width) if callable(part) else part for part in parts), sep="\n")


def print_answer(as_json: bool, data: Callable[[], Any], view: Callable[[], Any]) -> None:
    """Print an answer as JSON, or a view of it, or several, for eyes; what is not printed is not made."""
    if as_json:
        print_json(data())
    else:
        shown = view()
        print_view(*(shown if isinstance(shown, list) else [shown]))


def figure_paths(png: Path | None, svg: Path | None) -> list[Path]:
    """Where a figure goes, if anywhere.

    Raises
    ------
    SpecError
        A file that could not be written, before any work is done.
    """
    from sim.report.figures import check_paths

    given = {path: ending for path, ending in ((png, ".png"), (svg, ".svg")) if path is not None}
    for path, ending in given.items():
        check_paths([path], (ending,))
    return list(given)
