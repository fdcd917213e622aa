"""The account of an export in a terminal: what was written, decided by the framework, left out, and is to be given."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sim.foreign.exporters import Exported
from sim.foreign.importers.ledger import entry_lines
from sim.report.imported import entry_table
from sim.report.terminal import indented, title


def exported_view(exported: Exported, width: int) -> Group:
    """Four lists; what was left out and what is to be given is together by reason."""
    account = exported.account
    parts: list[RenderableType] = [title(f"{account.scenario.name} for {account.title}")]
    for heading, entries in (("Written", account.written), (f"{account.title} decides itself", account.decided)):
        if entries:
            parts += ["", title(heading), indented(entry_table(entries))]
    for heading, entries in (("Left out", account.unsaid), ("To be given", account.yours)):
        if entries:
            lines = Text("\n".join(entry_lines(entries, by_note=True, width=max(30, width - 4))), style="dim")
            parts += ["", title(heading), indented(lines)]
    return Group(*parts)
