"""What every view in a terminal is made of: where it is printed, indented blocks, titles, notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from sim.errors import visible


class _Console(Console):
    """A terminal that names cannot steer: of text, but for rich's own styles, what is not printable is written out."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console() -> Console:
    """Where answers are printed: plain when it is not a terminal."""
    return _Console(highlight=False, soft_wrap=False)


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
