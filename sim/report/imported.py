"""The account of an import in a terminal: what was read, filled in and left out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sim.report.terminal import indented, title
from sim.specs.importers import KINDS, Imported, LedgerEntry
from sim.specs.importers.ledger import entry_lines


def imported_view(imported: Imported, width: int) -> Group:
    """Three lists; what was left out is together by reason."""
    ledger = imported.ledger
    parts: list[RenderableType] = [title(f"{imported.source}: {KINDS[imported.kind]}")]
    for heading, entries in (("Read", ledger.read), ("Filled in, because the file does not say", ledger.defaulted)):
        if entries:
            parts += ["", title(heading), indented(entry_table(entries))]
    if ledger.ignored:
        lines = Text("\n".join(entry_lines(ledger.ignored, by_note=True, width=max(30, width - 4))), style="dim")
        parts += ["", title("Left out"), indented(lines)]
    return Group(*parts)


def entry_table(entries: list[LedgerEntry]) -> Table:
    """Names, values and notes, each a column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(style="dim")
    for entry in entries:
        table.add_row(Text(entry.name), Text(entry.value), Text(entry.note))
    return table
