"""The account of an import or an export in a terminal: what was taken over, filled in or decided, and left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from sim.foreign.exporters import Exported
from sim.foreign.importers import KINDS, Imported, LedgerEntry
from sim.foreign.importers.ledger import HEADINGS, entry_lines
from sim.report.terminal import indented, title
from sim.specs.base import unit_of
from sim.table import columns_table
from sim.units import show_bare


def imported_view(imported: Imported, width: int) -> Group:
    """How much of the file was read, and the parts of the account; what was left out is together by reason."""
    ledger = imported.ledger
    parts: list[Any] = [title(f"{imported.source}: {KINDS[imported.kind]}"), Text(f"{ledger.confidence}.")]
    for part, heading in HEADINGS.items():
        parts += _part(heading, getattr(ledger, part), None if part in ("read", "defaulted") else width)
    return Group(*parts)


def exported_view(exported: Exported, width: int) -> Group:
    """Four lists; what was left out and what is to be given is together by reason."""
    account = exported.account
    return Group(
        title(f"{account.scenario.name} for {account.title}"),
        *_part("Written", account.written, gap=1),
        *_part(f"{account.title} decides itself", account.decided),
        *_part("Left out", account.unsaid, width),
        *_part("To be given", account.yours, width, names_first=True),
    )


def _part(
    heading: str, entries: Sequence[LedgerEntry], width: int | None = None, names_first: bool = False, gap: int = 2
) -> list[Any]:
    """Entries below their heading: as a table of names, values and notes, or, given a width, together by reason."""
    if not entries:
        return []
    entries = [entry._replace(value=_as_written(entry.name, entry.value)) for entry in entries]
    body: Any
    if width is not None:
        lines = entry_lines(entries, by_note=True, names_first=names_first, width=max(30, width - 4))
        body = Text("\n".join(lines), style="dim")
    else:
        rows = [tuple(map(Text, (entry.name, entry.value, entry.note))) for entry in entries]
        body = columns_table(dict(zip(("name", "value", "note"), zip(*rows, strict=True), strict=True)), gap=gap)
        body.show_header = False
        note = body.columns[2]
        note.style, note.justify, note.no_wrap, note.overflow = "dim", "left", False, "fold"
    return ["", title(heading), indented(body)]


def _as_written(name: str, value: str) -> str:
    """A number as people write it: 128,256, or 50 µs if its name says seconds; any other value as it is."""
    try:
        number = float(value)
    except ValueError:
        return value
    unit = unit_of(name.rpartition(".")[2])
    if unit:
        return show_bare(number, unit)
    return f"{int(value):,}" if value.isdecimal() and len(value) > 4 else value
