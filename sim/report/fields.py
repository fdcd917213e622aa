"""The fields of a scenario file, as a list on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from rich.console import Group
from rich.text import Text

from sim.report.field_reference import SectionReference

NEWLINE = "\n"


def fields_view(sections: Iterable[SectionReference], width: int) -> Group:
    """Sections with their fields, each under its whole path; what an earlier section has told is not told again.

    Lines are cut here to `width` characters: rich would fill indented ones with blanks.
    """
    told: set[str] = set()
    parts: list[Text] = []
    for section in sections:
        told.add(section.path)
        parts += [Text("")] if parts else []
        name = section.path or "scenario"
        heading = _lines(f"{name}  {section.meaning.partition(NEWLINE)[0]}", 0, width)
        heading.stylize("bold", 0, len(name))
        parts.append(heading)
        if section.same_as in told:
            parts.append(_lines(f"the same fields as {section.same_as}", 2, width))
            continue
        if section.preset:
            words = f"a name in place of it, or preset: NAME and what differs; flopcast presets list {section.preset}"
            parts.append(_lines(words, 2, width, "dim"))
        for field in section.fields:
            default = field.default_words if field.required else f"default: {field.default_words}"
            facts = _lines(f"{field.path}  {field.type}; {default}", 2, width)
            facts.stylize("dim")
            facts.stylize("not dim bold", 2, 2 + len(field.path))
            parts += [facts, _lines(field.meaning, 6, width)]
    return Group(*parts)


def _lines(words: str, indent: int, width: int, style: str = "") -> Text:
    """Words in lines, all as far in; those after a field's first line further than what it means."""
    further = " " * (indent if indent != 2 else 10)
    cut = wrap(words, width, initial_indent=" " * indent, subsequent_indent=further, break_on_hyphens=False)
    return Text(NEWLINE.join(cut), style)
