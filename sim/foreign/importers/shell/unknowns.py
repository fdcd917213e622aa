"""Values that only a run of the script would know, each with its origin, so that the caller can be asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.ledger import short

_FIRST = 0xF0000
_MOST = 60_000
MARK = re.compile(rf"{UNKNOWN}[\U000F0000-\U000FFFFD]?")
"""An unknown part of a text: the letter for all of them, and which it is."""
Kind = Literal["argument", "variable", "output", "condition", "loop", "input", "unread"]
_DECIDES = {
    "condition": "the condition",
    "loop": "the loop",
    "input": "the input read",
    "unread": "what is not readable",
}


class Unknown(NamedTuple):
    """Something that is not known: a positional argument or a variable of the environment, by name; a command's output;
    or a variable that a condition, a loop or an input sets, with what a condition asks for.
    """

    kind: Kind
    name: str
    line: int
    because: tuple[int, ...] = ()


@dataclass
class Unknowns:
    """All unknown values, in the order of their first use."""

    found: list[Unknown] = field(default_factory=list)
    used: dict[int, tuple[str, int]] = field(default_factory=dict)
    """number -> (variable that holds it, line)."""
    _places: dict[tuple[Kind, str, int], int] = field(default_factory=dict)

    def mark(self, kind: Kind, name: str, line: int, because: tuple[int, ...] = ()) -> str:
        """The letters that stand for it in a text."""
        key = (kind, name, 0 if kind in ("argument", "variable") else line)
        because = tuple(dict.fromkeys(self.origins(because)))
        number = self._places.get(key)
        if number is None:
            if len(self.found) >= _MOST:
                return UNKNOWN
            number = self._places[key] = len(self.found)
            self.found.append(Unknown(kind, name, line, because))
        return UNKNOWN + chr(_FIRST + number)

    def use(self, text: str, name: str, line: int) -> None:
        """Note which variable an unknown value was first given to."""
        if MARK.fullmatch(text):
            for number in self.numbers(text):
                self.used.setdefault(number, (name, line))

    def numbers(self, text: str) -> tuple[int, ...]:
        """Which ones a text holds. A mark that an edit of the text has cut apart says of none."""
        found = (ord(mark[1]) - _FIRST for mark in MARK.findall(text) if len(mark) > 1)
        return tuple(number for number in dict.fromkeys(found) if 0 <= number < len(self.found))

    def origins(self, numbers: Iterable[int]) -> Iterator[int]:
        """What these depend on: of conditions what they ask for, where that is known."""
        return (origin for number in numbers for origin in self.found[number].because or (number,))

    def roots(self, text: str) -> list[int]:
        """What a text depends on in the end, each once."""
        return list(dict.fromkeys(self.origins(self.numbers(text))))

    def words(self, number: int) -> str:
        """How messages call it."""
        item = self.found[number]
        held, line = self.used.get(number, ("", item.line))
        if item.kind == "argument":
            return f"argument {item.name} ({f'used as {held} ' * bool(held)}in line {line})"
        if item.kind == "variable":
            return f"the environment's {short(item.name)} (line {item.line})"
        if item.kind == "output":
            what = f"{held}, " * bool(held)
            return f"{what}what `{short(item.name, 40)}` gives (line {item.line})"
        return f"{item.name}, which {_DECIDES[item.kind]} in line {item.line} sets"

    def listed(self, numbers: Iterable[int], most: int = 6) -> str:
        """How messages call several, each once."""
        words = list(dict.fromkeys(map(self.words, numbers)))
        return ", ".join(words[:most]) + " …" * (len(words) > most)

    def reasons(self, text: str) -> str:
        """What an unknown value waits for, in words."""
        return self.listed(self.roots(text))

    def remedy(self, numbers: list[int]) -> str:
        """The options that would say it."""
        items = [self.found[number] for number in numbers]
        arguments = any(item.kind == "argument" for item in items)
        names = [item.name for item in items if item.kind not in ("argument", "output") and item.name.isidentifier()]
        names += [
            self.used[number][0] for number in numbers if self.found[number].kind == "output" and number in self.used
        ]
        options = ["the script's arguments in their order, --arg VALUE for each"] * arguments
        options += [", ".join(f"--env {name}=VALUE" for name in dict.fromkeys(names[:4]))] * bool(names)
        return f"give {', and '.join(options)}" if options else "write it out"
