"""What every view in a terminal is made of: where it is printed, indented blocks, titles, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sim.errors import visible
from sim.units import show_time

SHOWN = 5
"""Assumptions that are shown unasked, of those in the order in which they could change the answer."""
Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Values by what they have in common, such as schedules by the reason for which they were left out."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


class _Console(Console):
    """A terminal that names cannot steer: of text, but for rich's own styles, what is not printable is written out."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(**options: Any) -> Console:
    """Where answers are printed: plain when it is not a terminal."""
    return _Console(highlight=False, soft_wrap=False, **options)


def indented(block: RenderableType) -> Padding:
    """A block two places to the right."""
    return Padding(block, (0, 0, 0, 2), expand=False)


def remarks(lines: Mapping[str, str]) -> Padding:
    """Words behind their names, a remark a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True, min_width=10)
    table.add_column(overflow="fold")
    for name, words in lines.items():
        table.add_row(name, Text(words))
    return indented(table)


def sentence(words: str) -> str:
    """Words of an error or an assumption as a whole sentence."""
    return f"{words[:1].upper()}{words[1:]}."


def title(words: str, more: str = "", style: str = "not bold") -> Text:
    """What a block is about, and more of it that is not bold."""
    return Text(words, style="bold").append(more, style=style)


def assumptions(lines: Iterable[str], origin: str = "", verbose: bool | None = None) -> list[RenderableType]:
    """The last block of a view: what the answer takes for granted, the first few or all, and where the rest is.

    verbose : None for verbs without the option, whose rest is in their JSON.
    """
    told = list(dict.fromkeys(lines))
    shown = told if verbose or len(told) <= SHOWN + 1 else told[:SHOWN]
    if not told:
        return []
    table = Table.grid(padding=(0, 1))
    for line in shown:
        table.add_row("•", Text(line))
    more = len(told) - len(shown)
    note = [Text(f"{more} more: {'--json' if verbose is None else '--verbose'}", style="dim")] if more else []
    return ["", title("Assumptions", origin, "not bold dim"), indented(Group(table, *note))]


def shared_line(words: Sequence[str]) -> Text:
    """What all plans of a table have in common."""
    return title("All plans below: ", " · ".join(words)) if words else Text("")


def bars_table(rows: Sequence[tuple[str, float, float, str]], room: int) -> Table:
    """Names, seconds and shares of them, with a bar each where there is room: (name, seconds, share, style)."""
    longest = max(share for _, _, share, _ in rows)
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for name, seconds, share, style in rows:
        # A terminal too narrow for bars still gets the numbers.
        bar = "█" * max(1, round(share / longest * room)) if room >= 8 else ""
        table.add_row(name.replace("_", " "), show_time(seconds), f"{share:.1%}", Text(bar, style))
    return table


def block(heading: str, words: str, body: RenderableType) -> list[RenderableType]:
    """A block of a view: an empty line, its heading with a few pale words, and the body further in."""
    return ["", title(heading, words, "not bold dim"), indented(body)]
