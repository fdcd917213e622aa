"""The account of an import in a terminal: what was read, filled in and left out."""

from __future__ import annotations

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sim.specs.importers import KINDS, Imported, LedgerEntry
from sim.specs.importers.ledger import entry_lines


def imported_view(imported: Imported, width: int) -> Group:
    """Three lists; what was left out is together by reason."""
    ledger = imported.ledger
    parts: list[object] = [Text(f"{imported.source}: {KINDS[imported.kind]}", style="bold")]
    for title, entries in (("Read", ledger.read), ("Filled in, because the file does not say", ledger.defaulted)):
        if entries:
            parts += ["", Text(title, style="bold"), Padding(_table(entries), (0, 0, 0, 2), expand=False)]
    if ledger.ignored:
        lines = Text("\n".join(entry_lines(ledger.ignored, by_note=True, width=max(30, width - 4))), style="dim")
        parts += ["", Text("Left out", style="bold"), Padding(lines, (0, 0, 0, 2), expand=False)]
    return Group(*parts)  # type: ignore[arg-type]


def _table(entries: list[LedgerEntry]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(style="dim")
    for entry in entries:
        table.add_row(Text(entry.name), Text(entry.value), Text(entry.note))
    return table
