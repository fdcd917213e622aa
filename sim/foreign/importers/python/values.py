"""What a Python text holds: objects that other files make, functions and classes of its own, and their settings."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.foreign.importers.keys import NotKnown

CALLED = "()"
"""The setting that holds which class or function made an object: `optimizer.()` of `optimizer=Muon(lr=1)`."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Something of another file, or of Python itself, by its dotted name: `torch.bfloat16`."""

    name: str

    @property
    def last(self) -> str:
        """What it is called without its module."""
        return self.name.rpartition(".")[2]


@dataclass(eq=False, slots=True)
class Made:
    """An object: what a call of something that stands in another file gives, or of a class of this one.

    name : who made it; empty where it is a part of an object that another file fills.
    line : where.
    args : arguments without a name.
    fields : arguments with a name, and what was set later.
    parent : the object of which it will be a part once something is set in it, and under which name.
    """

    name: str
    line: int
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    parent: tuple[Made, str] | None = None

    @property
    def last(self) -> str:
        """Who made it, without module, and without the `.Config` of a class inside a class."""
        outer, _, last = self.name.rpartition(".")
        above = outer.rpartition(".")[2]
        return above if last == "Config" and above[:1].isupper() else last

    @property
    def sure(self) -> bool:
        """Whether it is an object for certain: functions of other files may give anything."""
        return self.last[:1].isupper()

    @property
    def blank(self) -> bool:
        """Whether nothing at all is known of it."""
        return not self.name and not self.fields and not self.args

    def part(self, name: str, line: int) -> Any:
        """An attribute; where another file would say, a part in which later lines may set something."""
        if name in self.fields:
            return self.fields[name]
        return Made("", line, parent=(self, name))

    def put(self, name: str, value: Any) -> None:
        """Set an attribute."""
        self.fields[name] = value
        if self.parent is not None:
            (owner, own), self.parent = self.parent, None
            owner.put(own, self)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the file, and the names that it sees."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    names: Any

    @property
    def name(self) -> str:
        """What it is called."""
        return self.node.name


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the file, whose own fields are not followed."""

    name: str


class MadeBy(str):
    """The name of a function or class that made an object; the line, and the module it is of."""

    __slots__ = ("line", "module")
    line: int
    module: str


def settings_of(value: Any) -> Any:
    """A value as nested settings: objects as mappings, with `()` for who made them and 0, 1, ... for arguments without
    a name."""
    if isinstance(value, Made):
        if value.blank:
            return NotKnown("another file says it", value.line)
        made: dict[str, Any] = {}
        if value.name:
            made[CALLED] = MadeBy(value.last)
            made[CALLED].line, made[CALLED].module = value.line, value.name.rpartition(".")[0]
        made |= {str(at): settings_of(each) for at, each in enumerate(value.args)}
        return made | {key: settings_of(each) for key, each in value.fields.items()}
    if isinstance(value, dict):
        return {str(key): settings_of(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(settings_of, value))
    if isinstance(value, Imported):
        return value.last
    if isinstance(value, (Function, Class)):
        return value.name
    return value


def holds_object(value: Any) -> bool:
    """Whether a value is an object, or a list or mapping that holds one."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, Made) or any(map(holds_object, parts))


def copied(value: Any) -> Any:
    """A value that shares no object, list or mapping with the one it was copied from."""
    if isinstance(value, Made):
        return Made(value.name, value.line, copied(value.args), copied(value.fields))
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return list(map(copied, value)) if isinstance(value, list) else value


def nested(settings: Mapping[str, Any], line: int) -> dict[str, Any]:
    """Settings by dotted names as the fields of an object, with an object for each dot."""
    root = Made("", line)
    for path, value in settings.items():
        *parts, last = path.split(".")
        place = root
        for part in parts:
            if part not in place.fields:
                place.fields[part] = Made("", line)
            place = place.fields[part]
        place.fields[last] = copied(value)
    return root.fields
