"""The account of an import in a terminal: what was read, filled in and left out."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sim.foreign.importers import KINDS, Imported, LedgerEntry
from sim.foreign.importers.ledger import HEADINGS, entry_lines
from sim.report.terminal import indented, title


def imported_view(imported: Imported, width: int) -> Group:
    """How much of the file was read, and the parts of the account; what was left out is together by reason."""
    ledger = imported.ledger
    parts: list[RenderableType] = [title(f"{imported.source}: {KINDS[imported.kind]}"), Text(f"{ledger.confidence}.")]
    for part, heading in HEADINGS.items():
        entries = getattr(ledger, part)
        if entries and part in ("read", "defaulted"):
            parts += ["", title(heading), indented(entry_table(entries))]
        elif entries:
            lines = Text("\n".join(entry_lines(entries, by_note=True, width=max(30, width - 4))), style="dim")
            parts += ["", title(heading), indented(lines)]
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
