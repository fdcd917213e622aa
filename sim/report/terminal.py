"""What every view in a terminal is made of: where it is printed, indented blocks, titles, notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text


def console() -> Console:
    """Where answers are printed: plain when it is not a terminal."""
    return Console(highlight=False, soft_wrap=False)


def indented(block: RenderableType) -> Padding:
    """A block two places to the right."""
    return Padding(block, (0, 0, 0, 2), expand=False)


def title(words: str, more: str = "", style: str = "not bold") -> Text:
    """What a block is about, and more of it that is not bold."""
    return Text(words, style="bold").append(more, style=style)


def assumptions(lines: Iterable[str]) -> list[RenderableType]:
    """The last block of a view: what the answer takes for granted."""
    return ["", title("Assumptions"), indented(Text("\n".join(f"• {line}" for line in lines)))]


def shared_line(words: Sequence[str]) -> Text:
    """What all plans of a table have in common."""
    return title("All of them: ", " · ".join(words)) if words else Text("")
