"""The account of an import: what of a foreign file was read, what was filled in, what was left out and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.errors import SpecError

SHOWN = 60
"""Letters of a value that a message repeats."""
_NAMED = 6
"""Settings that the line of confidence names."""


class LedgerEntry(NamedTuple):
    """One line of the account: a key of the file or a field of the scenario, its value, and where from or why.

    matters : of what was left out: it changes the time of a step, or may, and the estimate does not know it.
    """

    name: str
    value: str
    note: str
    matters: bool = False

    def plain(self) -> dict[str, str]:
        """Name, value and note."""
        return {"name": self.name, "value": self.value, "note": self.note}


@dataclass
class Ledger:
    """What was read, defaulted and ignored, in the order it happened.

    where : the file, for messages.
    settings : keys of the file that were read, and what stood there.
    defaults_of : the file's tool, and the release whose sources were read for its defaults.
    """

    where: str
    defaults_of: tuple[str, str] = ("", "")
    read: list[LedgerEntry] = field(default_factory=list)
    defaulted: list[LedgerEntry] = field(default_factory=list)
    ignored: list[LedgerEntry] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def took(self, name: str, value: Any, note: str) -> Any:
        """Note that a scenario's field came from the file, whatever filled it in before; its value."""
        self.forget(name)
        self.read.append(LedgerEntry(name, short(value), note))
        return value

    def assume(self, name: str, value: Any, why: str) -> Any:
        """Note that a scenario's field was filled in; its value."""
        self.forget(name)
        tool, release = self.defaults_of
        why = f"{why} ({release})" if release and f"{tool}'s default" in why else why
        self.defaulted.append(LedgerEntry(name, short(value), why))
        return value

    def told(self, name: str) -> str | None:
        """The value of what was read under a name."""
        return next((entry.value for entry in self.read if entry.name == name), None)

    def error(self, why: str) -> SpecError:
        """The error for what is wrong with the file."""
        return SpecError(f"{self.where}: {why}")

    def forget(self, name: str) -> None:
        """Take back that a scenario's field was filled in."""
        self.defaulted = [entry for entry in self.defaulted if entry.name != name]

    def ignore(self, name: str, value: Any, why: str, matters: bool = False) -> None:
        """Note that something in the file was left out, and whether a step may take another time for it."""
        self.ignored.append(LedgerEntry(name, short(value), why, matters))

    def add(self, other: Ledger, told: Callable[[str], str] = str) -> None:
        """Take over what another account has, with its names and notes told in other words."""
        for part in ("read", "defaulted", "ignored"):
            for entry in getattr(other, part):
                getattr(self, part).append(entry._replace(name=told(entry.name), note=told(entry.note)))

    def tell_rest(self) -> None:
        """Note what was read and stands in no line yet: it counts together with other settings, or not beside them."""
        entries = (*self.read, *self.defaulted, *self.ignored)
        told = _words(" ".join(f"{entry.name} {entry.note}" for entry in entries))
        for name, value in self.settings.items():
            plain = _plain(name)
            last = re.split(r"[. ]", plain)[-1]
            if plain not in told and not ("_" in last and last in told):
                shown = " ".join(map(str, value)) if isinstance(value, list) else value
                self.took(name, shown, "together with other settings, or without effect beside them")

    @property
    def unpriced(self) -> list[LedgerEntry]:
        """What was left out though a step may take another time for it."""
        return [entry for entry in self.ignored if entry.matters]

    @property
    def immaterial(self) -> list[LedgerEntry]:
        """What was left out and does not change a step's time."""
        return [entry for entry in self.ignored if not entry.matters]

    @property
    def confidence(self) -> str:
        """How much was read of what matters: `23 of 25 settings that matter for speed were read; not --x, --y`."""
        left = list(dict.fromkeys(entry.name for entry in self.unpriced))
        read = {_plain(name) for name in self.settings} - {_plain(entry.name) for entry in self.ignored}
        said = f"{len(read)} of {len(read) + len(left)} settings that matter for speed were read"
        names = ", ".join(short(name) for name in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        return f"{said}; not {names}{more}" if left else said


class Section(dict[str, Any]):
    """A section of the scenario while it is filled: each field is set and noted in one go.

    name : "plan", "model", ...
    """

    def __init__(self, name: str, ledger: Ledger, /, **fields: Any) -> None:
        super().__init__(fields)
        self._name, self.ledger = name, ledger

    def took(self, field: str, value: Any, note: str) -> Any:
        """Set a field that came from the file; its value."""
        self[field] = self.ledger.took(f"{self._name}.{field}", value, note)
        return value

    def assume(self, field: str, value: Any, why: str) -> Any:
        """Set a field that is filled in; its value."""
        self[field] = self.ledger.assume(f"{self._name}.{field}", value, why)
        return value

    def leave(self, field: str) -> None:
        """Leave a field that was filled in to the framework's habits after all."""
        if field in self:
            del self[field]
        self.ledger.forget(f"{self._name}.{field}")

    def settle(self, field: str, value: Any, note: str, default: Any, why: str) -> Any:
        """Set a field to the file's value, or to the default where that is None; its value."""
        return self.assume(field, default, why) if value is None else self.took(field, value, note)


HEADINGS = {
    "read": "Read",
    "defaulted": "Filled in, because the file does not say",
    "unpriced": "Left out, though it may change the time of a step",
    "immaterial": "Left out; does not change the time of a step, or follows from other settings",
}
"""Parts of the account, by what the ledger calls them. Of what was left out, entries stand together by their reason."""


def entry_lines(
    entries: Iterable[LedgerEntry], *, by_note: bool = False, names_first: bool = False, width: int = 116
) -> list[str]:
    """Lines of an account: one an entry, or with everything left out for the same reason together."""
    import textwrap

    if not by_note:
        named = [(short(item.name) + (f": {item.value}" if item.value else ""), item.note) for item in entries]
        return [f"{name}  ({short(note, 100)})" for name, note in named]
    groups: dict[str, list[str]] = {}
    for item in entries:
        groups.setdefault(item.note, []).append(f"{short(item.name)} {item.value}".strip())
    lines = []
    for note, names in groups.items():
        first, second = (", ".join(names), note) if names_first else (note, ", ".join(names))
        lines += textwrap.wrap(f"{first}: {second}", width, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def _words(text: str) -> set[str]:
    """Dotted names and options in a text, and the last part of each name."""
    names = {_plain(name.strip(".,:;")) for name in re.findall(r"[\w.\-\[\]()]+", text)}
    return names | {name.rpartition(".")[2] for name in names}


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def short(value: Any, most: int = SHOWN) -> str:
    """A value as messages show it: one line, and not too long. Vast integers are not turned into text."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {int(value.bit_length() * 0.30103)} digits"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (Mapping, list)) and len(value) > 20:
        return f"{'a mapping' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    text = " ".join(_safe_text(value).split())
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _safe_text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # a vast integer somewhere inside
        return "a value with a number too long to print"
