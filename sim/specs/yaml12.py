"""YAML as people expect it: 1e9 is a number, `no` and `1:30` are text, a key given twice is a mistake.

PyYAML reads YAML 1.1; this loader takes the scalar rules of YAML 1.2's core schema on top of its safe constructor,
and the C parser where PyYAML was built with it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from sim.errors import SpecError
from sim.files import read_text

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

DEEPEST = 40
"""Levels of nesting; descriptions have six."""
_TOO_DEEP = f"nested more than {DEEPEST} levels deep; no description is"
MOST_VALUES = 200_000


class _Loader(_Base):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise SpecError(f"line {key_node.start_mark.line + 1}: a key must be a name, not {key!r}")
            if key in seen:
                raise SpecError(f"line {key_node.start_mark.line + 1}: the key {key!r} is given twice; keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


class _Dumper(yaml.SafeDumper):
    """Quotes text that this loader would take for a number, such as the hash 26205558e892."""


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))
    if _tag == "float":
        _Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"(?:{_pattern})$"), list(_first))
_Loader.yaml_implicit_resolvers.setdefault("", []).append(("tag:yaml.org,2002:null", re.compile("$")))


def parse_yaml(text: str, where: str) -> Any:
    """The data in `text`; mistakes are reported as in `where`.

    Raises SpecError: with the line and what is wrong there.
    """
    try:
        _check_size(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (f" line {mark.line + 1}", f", column {mark.column + 1}") if mark else ("", "")
        reason = error.problem or error.context or "broken YAML"
        if "nesting depth" in reason:  # the C parser's own limit, which it finds before it hands out a level
            raise SpecError(f"{where}:{line}: {_TOO_DEEP}") from None
        raise SpecError(f"{where}:{line}{column}: {reason}; check the indentation, colons and quotes there") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{where}: not readable as YAML: {error}") from None
    except (SpecError, ValueError) as error:  # Python's own: an integer of thousands of digits
        reason = " ".join(str(error).split())[:300]
        raise SpecError(f"{where}: {reason}") from None


def dump_yaml(data: Any, width: int = 120, default_flow_style: bool | None = False) -> str:
    """Return data as text that this module reads as the same data."""
    return str(
        yaml.dump(
            data,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=width,
            default_flow_style=default_flow_style,
        )
    )


def load_yaml(path: Path | str) -> Any:
    """The data in a YAML file; `-` is the standard input."""
    return parse_yaml(read_text(path), str(path))


def _check_size(text: str) -> None:
    """Refuse what would overflow the parser's stack, or grow without end as its aliases are followed.

    Raises SpecError: nested more than DEEPEST levels, or more than MOST_VALUES values with every alias written out.
    """
    open_at: list[tuple[str | None, int]] = []
    size_of: dict[str, int] = {}
    values = 0
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_at):
                raise SpecError(f"line {_line(event)}: *{event.anchor} stands inside what it names")
            values += size_of.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                size_of[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_at.append((event.anchor, values))
            values += 1
            if len(open_at) > DEEPEST:
                raise SpecError(f"line {_line(event)}: {_TOO_DEEP}")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_at.pop()
            if anchor is not None:
                size_of[anchor] = values - before
        if values > MOST_VALUES:
            raise SpecError(f"more than {MOST_VALUES:,} values, aliases written out; no description has so many")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0
