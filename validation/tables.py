"""Records as tables: in a terminal, in Markdown, and as plain data.

A column is a heading, and how a record's value is shown: a field's name and a format ("error:+.1%"), or a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sim.table import Table, rows_table

Columns = Mapping[str, str | Callable[[Any], str]]


def cell(record: Any, how: str | Callable[[Any], str]) -> str:
    """Return what a column shows of a record: nothing where the value is None or no number."""
    if not isinstance(how, str):
        return how(record)
    name, _, form = how.partition(":")
    value = getattr(record, name)
    return "" if value is None or value != value else format(value, form)


def cells(columns: Columns, records: Iterable[Any]) -> list[tuple[str, ...]]:
    """Return a row of cells for every record."""
    return [tuple(cell(record, how) for how in columns.values()) for record in records]


def table_of(columns: Columns, records: Iterable[Any], **look: Any) -> Table:
    """Return a table for a terminal; `look` as in `sim.table.plain_table`."""
    return rows_table(columns, cells(columns, records), **look)


def markdown(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells in Markdown."""
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |").replace("  ", " ") for row in (tuple(headings), *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(tuple(headings))}", *lines[1:]])
