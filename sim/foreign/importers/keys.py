"""What a foreign file says, key by key: each is taken once and checked, and what nobody took was ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from sim.errors import SpecError
from sim.foreign.importers.ledger import Ledger, short
from sim.specs.yaml12 import load_yaml

MOST = 10**15
"""Larger than any count or size in a training configuration."""
UNKNOWN = "\0"
"""A part of a value that only a running script would know. Files with this letter in them are refused."""
UNKNOWN_KEY = "not known to flopcast"
NOT_RUN = "only the running script knows; flopcast runs nothing"


@dataclass(frozen=True, slots=True)
class NotKnown:
    """A value that stands in no text, and why; of Python, on which line."""

    why: str
    line: int


TABLES = Path(__file__).parents[2] / "presets" / "importers"


@cache
def table(kind: str) -> dict[str, Any]:
    """What an importer knows of its kind of file: keys, names, architectures, and what is left out and why.

    A table that is `like` another has all that stands in it and not in itself, mapping by mapping.
    """
    data: dict[str, Any] = load_yaml(TABLES / f"{kind}.yaml")
    base = table(data["like"]) if "like" in data else {}
    return base | {
        name: {**base[name], **value} if isinstance(base.get(name), Mapping) and isinstance(value, Mapping) else value
        for name, value in data.items()
    }


def by_name(groups: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """What each name stands for, of a table that lists the names of each thing."""
    return {name: meant for meant, names in groups.items() for name in names}


def row(columns: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """A table's row: what stands in its columns, null for nothing, and in a mapping behind them, whatever it is."""
    found = {name: value for name, value in zip(columns, values, strict=False) if value is not None}
    return {**found, **(values[-1] if len(values) > len(columns) else {})}


def reason_to_ignore(kind: str, name: str, known: Iterable[str] = ()) -> tuple[str, bool]:
    """Why a key of a kind of file is left out, and whether it matters for speed.

    Of the table's patterns, which may end in `*`, the longest that fits counts: `unpriced` has what changes the time of
    a step, or may, `ignored` what does not, or is said elsewhere.

    known : keys that the reader would have taken; a key that nobody knows may be one of them misspelt.
    """
    fits = (
        (len(pattern) + (name == pattern), str(reason), group == "unpriced")
        for group in ("unpriced", "ignored")
        for reason, patterns in table(kind).get(group, {}).items()
        for pattern in patterns
        if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
    )
    best = max(fits, key=lambda fit: fit[0], default=None)
    if best is not None:
        return best[1], best[2]
    near = get_close_matches(name, known, n=1, cutoff=0.85)
    return f"{UNKNOWN_KEY}; perhaps {near[0]} was meant" if near else UNKNOWN_KEY, True


class Keys:
    """The keys of a mapping in a foreign file.

    kind : which table names what is left out.
    label : what stands before a key in messages and in the account, such as `training.`.
    """

    _missing: ClassVar = "is missing; without it there is no model"

    def __init__(self, data: Mapping[str, Any], ledger: Ledger, kind: str, label: str = "") -> None:
        self._data = {str(key): value for key, value in data.items()}
        self.ledger, self.kind, self.label = ledger, kind, label
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.raw(key) is not None

    def raw(self, key: str) -> Any:
        """A value as it stands, without taking it."""
        return self._data.get(key)

    def first(self, key: str) -> Any:
        """A value as it stands, of several the first, without taking it."""
        return self.raw(key)

    def replace(self, key: str, value: Any) -> None:
        """Let a key hold another value, or one that stands elsewhere in the file."""
        self._data[key] = value

    def says(self, key: str) -> bool:
        """Whether the file itself says a key, be it null."""
        return key in self._data

    def spelled(self, name: str) -> str:
        """A key as the file has it."""
        return f"{self.label}{name}"

    def _told(self, name: str) -> Any:
        """The value of a key, which is taken; None where it is not there, or nobody knows it."""
        return self._pop(name)

    def _pop(self, name: str) -> Any:
        """What a key holds, which is taken; None where it is not there."""
        self._asked.add(f"{self.label}{name}")
        value = self._data.pop(name, None)
        if isinstance(value, NotKnown):
            raise SpecError(
                f"{self.ledger.where}, line {value.line}: {self.label}{name} is known only to running code "
                f"({value.why}); write its value there, or give it by --recipe 'NAME(argument=value)'"
            )
        if value is not None:
            self.ledger.settings[f"{self.label}{name}"] = value
        return value

    def take(self, *names: str) -> tuple[str, Any]:
        """(key, value) of the first of several names for the same thing that is there and not null; all are taken."""
        found: tuple[str, Any] = names[0], None
        for name in names:
            value = self._told(name)
            if found[1] is None and value is not None:
                found = name, value
            elif value not in (None, found[1]):
                why = f"{self.label}{found[0]} says it otherwise, and counts"
                self.ledger.ignore(self.spelled(name), value, why)
        return found

    def whole(self, *names: str, least: int = 1) -> int | None:
        """A whole number, or None where none of the keys is there. Raises SpecError: something else, or out of any
        reasonable range."""
        key, value = self.take(*names)
        if value is None:
            return None
        number = self._whole(value)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MOST:
            raise self.wrong(key, value, f"must be a whole number from {least} to {MOST:.0e}")
        return number

    def needed(self, *names: str, least: int = 1) -> int:
        """A whole number that the file must say. Raises SpecError: it is not there, or not such a number."""
        value = self.whole(*names, least=least)
        if value is None:
            raise self.ledger.error(f"{self.label}{names[0]} {self._missing}")
        return value

    def number(self, *names: str) -> float | None:
        """A finite number that is not negative, or None."""
        key, value = self.take(*names)
        if value is None:
            return None
        number = self._number(value)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1e30:
            raise self.wrong(key, value, "must be a number, zero or more")
        return float(number)

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

    def below(self, prefix: str) -> Self:
        """The keys below a prefix, which are taken from here."""
        inside = {name: value for name, value in self._data.items() if name.startswith(f"{prefix}.")}
        for name in inside:
            del self._data[name]
        shorter = {name.removeprefix(f"{prefix}."): value for name, value in inside.items()}
        found = type(self)(shorter, self.ledger, self.kind, f"{self.label}{prefix}.")
        found._asked = self._asked
        return found

    def wrong(self, key: str, value: Any, rule: str) -> SpecError:
        """The error for a value that breaks a rule."""
        return self.ledger.error(f"{self.label}{key} = {short(value)} {rule}")

    def leave(self) -> None:
        """Note everything that nobody took, each with its reason."""
        for key, value in flat(self._data):
            value = f"?, line {value.line}" if isinstance(value, NotKnown) else value
            self.ledger.ignore(self.spelled(key), value, *self.reason(key, value))
        self._data.clear()

    def rest(self) -> dict[str, Any]:
        """What nobody has taken."""
        return dict(self._data)

    def reason(self, key: str, value: Any = None) -> tuple[str, bool]:
        """Why a key is left out, and whether it matters for speed; before a label's colon stands the file's name."""
        return reason_to_ignore(self.kind, f"{self.label}{key}".rpartition(": ")[2], self._asked)

    def _whole(self, value: Any) -> Any:
        """A value as a whole number, where it can be taken for one."""
        whole = isinstance(value, float) and value.is_integer() and abs(value) <= MOST
        return int(value) if whole else value

    def _number(self, value: Any) -> Any:
        return value


class Arguments(Keys):
    """Command-line arguments as argparse would read them: `--name value value`, dashes and underscores alike."""

    _missing: ClassVar = "is missing or only known when the script runs; write it out"

    def __init__(self, words: Iterable[str], ledger: Ledger, kind: str = "megatron") -> None:
        super().__init__({}, ledger, kind, "--")
        self._spelled: dict[str, str] = {}
        self.doubtful: list[str] = []
        """Words that may be arguments, or none: what they are is not known."""
        name, dtypes = None, table(kind)["dtypes"]
        for word in words:
            if word.startswith(f"--{UNKNOWN}"):
                self.doubtful.append(word)
                name = None
            elif word.startswith(UNKNOWN) and len(word) < 3 and (name is None or self._data[name]):
                if "data" not in (name or ""):  # else one more of its files
                    self.doubtful.append(word)
            elif word.startswith("--") or re.fullmatch(r"-[A-Za-z]\w*", word):
                spelled, equals, value = word.partition("=")
                name = spelled.lstrip("-").replace("_", "-")
                self._data[name] = [value] if equals else []
                self._spelled[name] = spelled
            elif name is not None:
                self._data[name].append(dtypes.get(word, word))

    def first(self, key: str) -> Any:
        """The first value of an argument, without taking it."""
        return (self.raw(key) or [None])[0]

    def has(self, *names: str) -> bool:
        """Whether one of these switches is set; all are taken."""
        taken = [self._pop(name) for name in names]
        return any(values is not None for values in taken)

    flag = has

    def spelled(self, name: str) -> str:
        """An argument as the command has it, with dashes or underscores."""
        return self._spelled.get(name, f"--{name}")

    def _told(self, name: str) -> str | None:
        """The first value of an argument, which is taken; None where only the running script knows it."""
        values = self._pop(name)
        if values and UNKNOWN in values[0]:
            self._waits(name)
            return None
        return None if values is None else "".join(values[:1])

    def _waits(self, name: str) -> None:
        """Note that only the running script knows an argument's value."""
        self.ledger.ignore(self.spelled(name), "?", f"its value {NOT_RUN}", matters=True)

    def words(self, *names: str) -> list[str]:
        """All values of the first of these that is set, of which one may hold several between commas; none if none."""
        name, values = next(((name, values) for name in names if (values := self._pop(name)) is not None), ("", ()))
        known = [value for value in values if UNKNOWN not in value]
        if values and not known:
            self._waits(name)
        return [word for value in known for word in re.split(r"[\s,\[\]'\"]+", value) if word]

    def joined(self, name: str) -> str | None:
        """All words of an argument as one text: a list or a pair may be written with spaces."""
        values = self._data.get(name)
        if values is not None:
            self._data[name] = ["".join(values)]
        return self.text(name)

    def wrong(self, key: str, value: Any, rule: str) -> SpecError:
        """The error for a value that breaks a rule."""
        return self.ledger.error(f"{self.spelled(key)} {short(value)!r} {rule}")

    def leave(self) -> None:
        """Note everything that nobody took, each with its reason."""
        for name, values in self._data.items():
            self._data[name] = " ".join("?" if UNKNOWN in value else value for value in values)
        super().leave()

    def reason(self, key: str, value: Any = None) -> tuple[str, bool]:
        """Why an argument is left out, and whether it matters for speed."""
        return reason_to_ignore(self.kind, key, (asked[2:] for asked in self._asked))

    def _whole(self, value: str) -> Any:
        # argparse's int reads 220_000_000 too.
        return int(value) if len(value) < 24 and re.fullmatch(r"\+?\d{1,16}(_\d{1,16})*", value) else value

    def _number(self, value: str) -> Any:
        try:
            return float(value)
        except ValueError:
            return value


def flat(data: Mapping[str, Any], deepest: int = 3, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in nested mappings, to a depth that a person would write."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value and deepest:
            yield from flat(value, deepest - 1, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def put_at(data: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Set a value below nested names."""
    for part in parts[:-1]:
        below = data.get(part)
        data[part] = dict(below) if isinstance(below, dict) else {}
        data = data[part]
    data[parts[-1]] = value
