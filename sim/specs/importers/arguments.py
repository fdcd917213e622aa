"""Command-line arguments of a training program, as argparse would read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sim.errors import SpecError
from sim.specs.importers.ledger import MOST, Ledger, match_name, short
from sim.specs.importers.shell import NOT_RUN
from sim.specs.importers.shell_words import UNKNOWN

_WHOLE = re.compile(r"\+?\d{1,16}")


class Arguments:
    """`--name value value` by name, dashes and underscores alike; each is taken once."""

    def __init__(self, words: Iterable[str], ledger: Ledger) -> None:
        self._ledger = ledger
        self._values: dict[str, list[str]] = {}
        self._spelled: dict[str, str] = {}
        name = None
        for word in words:
            if word.startswith("--") or re.fullmatch(r"-[A-Za-z]\w*", word):
                spelled, equals, value = word.partition("=")
                name = spelled.lstrip("-").replace("_", "-")
                self._values[name] = [value] if equals else []
                self._spelled[name] = spelled
            elif name is not None:
                self._values[name].append(word)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def has(self, *names: str) -> bool:
        """Whether one of these switches is set; all are taken."""
        taken = [self._values.pop(name, None) for name in names]
        return any(values is not None for values in taken)

    def text(self, *names: str) -> str | None:
        """The value of the first of these that is set; None where none is, or only the running script knows it."""
        found = None
        for name in names:
            values = self._values.pop(name, None)
            if values is None or found is not None:
                continue
            value = values[0] if values else ""
            if UNKNOWN in value:
                self._ledger.ignore(self._spelled[name], "?", f"its value {NOT_RUN}")
            else:
                found = value
        return found

    def whole(self, *names: str, least: int = 1) -> int | None:
        """The same as a whole number.

        Raises
        ------
        SpecError
            Something else, or out of any reasonable range.
        """
        spelled = next((self._spelled[name] for name in names if name in self._values), f"--{names[0]}")
        value = self.text(*names)
        if value is None:
            return None
        number = int(value) if _WHOLE.fullmatch(value) else -1
        if not least <= number <= MOST:
            raise SpecError(
                f"{self._ledger.where}: {spelled} {short(value)!r} must be a whole number from {least} to {MOST:.0e}"
            )
        return number

    def number(self, *names: str) -> float | None:
        """The same as a number, zero or more."""
        spelled = next((self._spelled[name] for name in names if name in self._values), f"--{names[0]}")
        value = self.text(*names)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1e30:
            raise SpecError(f"{self._ledger.where}: {spelled} {short(value)!r} must be a number, zero or more")
        return number

    def leave(self, reasons: Mapping[str, str]) -> None:
        """Note what nobody took, each with its reason."""
        for name, values in self._values.items():
            why = match_name(name, reasons) or "not known to flopcast"
            shown = " ".join("?" if UNKNOWN in value else value for value in values)
            self._ledger.ignore(self._spelled[name], shown, why)
        self._values.clear()
