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
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _num_values(node, [], {})
        return loader.construct_document(node)
    except RecursionError:  # of the parser that is written in Python
        raise SpecError(f"{where}: {_TOO_DEEP}") from None
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


def _num_values(node: yaml.Node, around: list[yaml.Node], known: dict[int, int]) -> int:
    """Count the values of a node with every alias written out; refuse what grows without end as aliases are followed.

    around : those in which it stands. known : the counts of others, by `id`.

    Raises SpecError: nested more than DEEPEST levels, or more than MOST_VALUES values.
    """
    line = node.start_mark.line + 1
    if any(node is each for each in around):
        raise SpecError(f"line {line}: what an anchor names there stands inside itself")
    if id(node) in known or isinstance(node, yaml.ScalarNode):
        return known.get(id(node), 1)
    if len(around) == DEEPEST:
        raise SpecError(f"line {line}: {_TOO_DEEP}")
    parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
    count = 1 + sum(_num_values(part, [*around, node], known) for part in parts)
    if count > MOST_VALUES:
        raise SpecError(f"more than {MOST_VALUES:,} values, aliases written out; no description has so many")
    known[id(node)] = count
    return count
