"""The account of an import: what of a foreign file was read, what was filled in, what was left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.errors import SpecError

MOST = 10**15
"""Larger than any count or size in a training configuration."""
SHOWN = 60
"""Letters of a value that a message repeats."""
NO_EFFECT = "does not change the time of a step"


class Entry(NamedTuple):
    """One line of the account: a key of the file or a field of the scenario, its value, and where from or why."""

    name: str
    value: str
    note: str


@dataclass
class Ledger:
    """What was read, defaulted and ignored, in the order it happened.

    where : the file, for messages.
    """

    where: str
    read: list[Entry] = field(default_factory=list)
    defaulted: list[Entry] = field(default_factory=list)
    ignored: list[Entry] = field(default_factory=list)

    def took(self, name: str, value: Any, note: str) -> Any:
        """Note that a scenario's field came from the file; its value."""
        self.read.append(Entry(name, short(value), note))
        return value

    def assume(self, name: str, value: Any, why: str) -> Any:
        """Note that a scenario's field was filled in; its value."""
        self.defaulted.append(Entry(name, short(value), why))
        return value

    def ignore(self, name: str, value: Any, why: str) -> None:
        """Note that something in the file was left out."""
        self.ignored.append(Entry(name, short(value), why))


class Keys:
    """The keys of a mapping in a foreign file. Each is taken once; what nobody took is what was ignored.

    label : what stands before a key in messages and in the account, such as `training.`.
    """

    def __init__(self, data: Mapping[str, Any], ledger: Ledger, label: str = "") -> None:
        self._data = dict(data)
        self._ledger = ledger
        self.label = label

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def raw(self, key: str) -> Any:
        """A value as it stands, without taking it."""
        return self._data.get(key)

    def take(self, *names: str) -> tuple[str, Any]:
        """(key, value) of the first of several names for the same thing that is there and not null; all are taken."""
        found: tuple[str, Any] = (names[0], None)
        for name in reversed(names):
            value = self._data.pop(name, None)
            if value is not None:
                found = (name, value)
        return found

    def whole(self, *names: str, least: int = 1) -> int | None:
        """A whole number, or None where none of the keys is there.

        Raises
        ------
        SpecError
            Something else, or out of any reasonable range.
        """
        key, value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) <= MOST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise self.wrong(key, value, f"must be a whole number from {least} to {MOST:.0e}")
        return value

    def needed(self, *names: str, least: int = 1) -> int:
        """A whole number that the file must say.

        Raises
        ------
        SpecError
            It is not there, or not such a number.
        """
        value = self.whole(*names, least=least)
        if value is None:
            raise SpecError(f"{self._ledger.where}: {self.label}{names[0]} is missing; without it there is no model")
        return value

    def number(self, *names: str) -> float | None:
        """A finite number that is not negative, or None."""
        key, value = self.take(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e30:
            raise self.wrong(key, value, "must be a number, zero or more")
        return float(value)

    def flag(self, *names: str) -> bool | None:
        """true or false, or None."""
        key, value = self.take(*names)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(key, value, "must be true or false")

    def text(self, *names: str) -> str | None:
        """Text, or None."""
        key, value = self.take(*names)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(key, value, "must be text")

    def section(self, name: str) -> Keys:
        """The keys of a mapping inside; none where there is no such mapping."""
        value = self._data.pop(name, None)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "must hold keys of its own")
        return Keys({str(key): item for key, item in value.items()}, self._ledger, f"{self.label}{name}.")

    def wrong(self, key: str, value: Any, rule: str) -> SpecError:
        """The error for a value that breaks a rule."""
        return SpecError(f"{self._ledger.where}: {self.label}{key} = {short(value)} {rule}")

    def leave(self, reasons: Mapping[str, str], otherwise: str = "not known to flopcast") -> None:
        """Note everything that nobody took, each with its reason; a reason's key may end in `*`."""
        for key, value in flat(self._data):
            path = f"{self.label}{key}"
            self._ledger.ignore(path, value, match_name(path, reasons) or otherwise)
        self._data.clear()


def entry_lines(entries: Iterable[Entry], *, by_note: bool = False, width: int = 116) -> list[str]:
    """Lines of an account: one an entry, or with everything left out for the same reason together."""
    import textwrap

    if not by_note:
        return [f"{short(item.name)}: {item.value}  ({short(item.note, 100)})" for item in entries]
    groups: dict[str, list[str]] = {}
    for item in entries:
        groups.setdefault(item.note, []).append(f"{short(item.name)} {item.value}".strip())
    lines = []
    for note, names in groups.items():
        lines += textwrap.wrap(f"{note}: {', '.join(names)}", width, subsequent_indent="  ", break_on_hyphens=False)
    return lines


def match_name(name: str, reasons: Mapping[str, str]) -> str | None:
    """The reason for a name, by patterns that may end in `*`; None where none matches."""
    for pattern, reason in reasons.items():
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
            return reason
    return None


def flat(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """(dotted key, value) of everything in nested mappings, to a depth that a person would write."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value and depth < 3:
            yield from flat(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value


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
