"""rich's table, which becomes a list of records where a terminal is too narrow for its columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

FOLDED = 12
"""Characters that a column whose words may be broken is given at least."""


class Table(rich.table.Table):
    """A table whose numbers are never cut: side by side where there is room, else one below the other."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.show_header or self._needed(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text.from_markup(str(self.title), style="italic")
        rows = zip(*(column.cells for column in self.columns), strict=True)
        names = [_words(console, column.header) for column in self.columns]
        for cells in rows:
            shown = [_words(console, cell) for cell in cells]
            fields = [(name, cell) for name, cell in zip(names[1:], shown[1:], strict=True) if cell.plain.strip()]
            if not shown[0].plain.strip() and not fields:
                yield ""
                continue
            yield Text.assemble(names[0], " " if names[0].plain else "", (shown[0].plain or "–", "bold"))
            record = rich.table.Table.grid(padding=(0, 1))
            record.add_column(style="dim", overflow="fold")
            record.add_column(overflow="fold")
            for name, cell in fields:
                record.add_row(name, cell)
            yield Padding(record, (0, 0, 0, 2), expand=False)

    def _needed(self, console: Console, options: ConsoleOptions) -> int:
        """Characters that the columns take, where words and what must not be wrapped stay whole."""
        _, right, _, left = self.padding
        needed = (left + right) * (len(self.columns) - 1)
        for column in self.columns:
            sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
            breaks = column.overflow == "fold" and not column.no_wrap
            widest = (
                [min(FOLDED, size.minimum) for size in sizes]
                if breaks
                else [size.maximum if column.no_wrap else size.minimum for size in sizes]
            )
            needed += max(widest)
        return needed


def plain_table(*headings: str, left: Collection[str] | None = None, gap: int = 2, wrap: Collection[str] = ()) -> Table:
    """A table without lines.

    left : Of columns of words; the others are of numbers and stand to the right. The first one, if not given.
    gap : Places between columns.
    wrap : Of columns whose words may be broken into lines.
    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for heading in headings:
        words = heading in (headings[:1] if left is None else left)
        table.add_column(heading, justify="left" if words else "right", no_wrap=heading not in wrap)
    return table


def columns_table(columns: Mapping[str, Sequence[Any]], **look: Any) -> Table:
    """A table of whole columns by their headings; `look` as in `plain_table`."""
    return rows_table(columns, zip(*columns.values(), strict=True), **look)


def rows_table(headings: Iterable[str], rows: Iterable[Sequence[Any]], **look: Any) -> Table:
    """A table of rows; `look` as in `plain_table`."""
    table = plain_table(*headings, **look)
    for row in rows:
        table.add_row(*row)
    return table


def facts_table(rows: Iterable[Sequence[Any]]) -> rich.table.Table:
    """A grid of facts: name, value, note."""
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _words(console: Console, cell: object) -> Text:
    """A heading or a value on one line."""
    text = cell if isinstance(cell, Text) else console.render_str(str(cell))
    if "\n" in text.plain:
        text = Text(text.plain.replace("-\n", "").replace("\n", " "))
    return text
