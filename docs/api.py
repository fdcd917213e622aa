"""The API reference: the public names of `sim` by their docstrings, as one page in Markdown.

python docs/api.py > api.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pdoc.docstrings import numpy
from pydantic import BaseModel

import sim

INTRODUCTION = """\
# Python API

These are the public names of `flopcast`, which are those of the package `sim`. Each is loaded when it is first asked
for. [From Python, a container, or a language model](integrating.md) shows how they are used.
"""
GROUPS = {
    "Ask": ("load_scenario", "build_scenario", "estimate", "search", "simulate"),
    "Answers": ("Estimate", "SearchResult", "Simulation"),
    "Describe": ("Scenario", "ModelSpec", "ClusterSpec", "NodeSpec", "GpuSpec", "ParallelPlan", "TrainingSpec",
                 "StackSpec", "Profile", "preset_names"),
    "Extend": ("schedule", "build_order", "schedule_names", "ENGINES"),
    "Errors": ("FlopcastError", "SpecError", "InfeasiblePlan", "ScheduleError", "ProfileError"),
}  # fmt: skip
"""Headings of the page, and the names below each."""
ENGINES = "A dictionary of the engines by name. Each plays a program, an order with seconds, and returns its timeline."
_FIELD = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*) : ", re.MULTILINE)
"""A line `name : meaning`, by which records say what their fields hold."""
_HEADING = re.compile(r"^[A-Z][A-Za-z ]+\n---+$", re.MULTILINE)
"""A heading of one of numpydoc's sections, which pdoc reads."""
WIDE = 80
"""Characters of a signature from which on it has a line a parameter."""
_REFERENCE = re.compile(r"^\.\. \[(\d+)\] ", re.MULTILINE)


class _Plain(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def api_page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for heading, names in GROUPS.items():
        parts += [f"## {heading}\n", *(text for name in names for text in _entry(name, getattr(sim, name)))]
    return "\n".join(parts)


def _entry(name: str, code: Any) -> Iterator[str]:
    yield f"### {name} {{#{name}}}\n"
    if not callable(code):
        yield f"{ENGINES}\n\n`{'`, `'.join(code)}`\n"
        return
    record = inspect.isclass(code) and issubclass(code, BaseModel)
    if not record:
        yield f"```python\n{name}{_signature(code)}\n```\n"
    yield f"{_markdown(inspect.getdoc(code) or '')}\n"
    if record:
        yield f"Its fields stand in [Fields of a scenario file](fields.md); in Python they are `{name}.model_fields`.\n"
    if inspect.isclass(code) and not issubclass(code, Exception):
        members = [(each, member) for each, member in vars(code).items() if _is_shown(each, member)]
        yield from (_member(each, member) for each, member in members)


def _is_shown(name: str, member: Any) -> bool:
    described = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
    return described and not name.startswith("_") and bool(inspect.getdoc(getattr(member, "__func__", member)))


def _member(name: str, member: Any) -> str:
    code = getattr(member, "__func__", member)
    shown = name if isinstance(member, property) else f"{name}{_signature(code)}"
    text = _markdown(inspect.getdoc(code) or "")
    return f"`{shown}`\n:   " + "\n    ".join(text.splitlines()) + "\n"


def _signature(code: Any) -> str:
    """Parameters without quotes around annotations, one a line where they are many; without the first of a method."""
    try:
        signature = inspect.signature(code)
    except ValueError:  # an exception's
        return "(message)"
    parameters = [
        each.replace(annotation=_plain(each.annotation))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    result = _plain(signature.return_annotation) if inspect.isfunction(code) else inspect.Signature.empty
    text = str(signature.replace(parameters=parameters, return_annotation=result))
    if len(text) < WIDE:
        return text
    end = f" -> {result}" if result is not inspect.Signature.empty else ""
    lines = [str(each) for each in parameters]
    keywords = [place for place, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY]
    if keywords:
        lines.insert(keywords[0], "*")
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f"){end}"


def _plain(annotation: Any) -> Any:
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _markdown(docstring: str) -> str:
    """The docstring in Markdown, with the fields of a record in a list and references as notes."""
    first = _HEADING.search(docstring)
    end = first.start() if first else len(docstring)
    text = numpy(_FIELD.sub(r"* **\1**: ", docstring[:end]) + docstring[end:])
    text = re.sub(r"^#{3,6} (.*)$", r"**\1**\n", text, flags=re.MULTILINE)  # headings would crowd the page's contents
    return _REFERENCE.sub(r"\n[\1] ", text).replace("]_", "]").rstrip()


if __name__ == "__main__":
    print(api_page())
