"""What a framework's table says of a scenario: its `rows`, one after the other, written as options.

A row may have `when`, a condition as the frameworks' rules of plans have it, on fields of the plan by their names, on
those of other sections (training.precision), on the exporter's facts, and on options that are `said`. Its other keys
are done in turn:

group : the heading under which options stand from here on.
say : options and their values; null is a switch. `of` names the fields that they say, else each says its value's.
tell : options and fields, said where the field is not off; a true one is a switch.
cover, decide, leave, refuse, ask : what becomes of fields, as the account's methods have it; {names} are filled in.
first : rows of which the first that applies is done. rows : more of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.foreign.exporters.account import Account, exporter_table
from sim.specs.framework_plans import value_of

_FIELD = re.compile(r"(model|plan|training|stack)\.\w+")


class Option(NamedTuple):
    """An option by its name in the framework's file, its values, none for a switch, and the fields that it says."""

    name: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]


@dataclass
class Options:
    """Options under headings, as rows say them.

    facts : what conditions and values may name besides the scenario's fields.
    """

    account: Account
    facts: Mapping[str, Any]
    groups: dict[str, list[Option]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scenario, self.said = self.account.scenario, set[str]()
        sections = {name: getattr(scenario, name) for name in ("model", "training", "stack")}
        self._names = {**dict(scenario.plan), **sections, **self.facts, "said": self.said}
        self._group = self.groups.setdefault("", [])

    def follow(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Do what rows of a table say."""
        for row in rows:
            self._applies(row)

    def write(self, name: str, values: tuple[Any, ...], fields: tuple[str, ...]) -> None:
        """Set an option."""
        self._group.append(Option(name, values, fields))
        self.said.add(name)
        self.account.cover(*fields)

    def value(self, text: Any) -> Any:
        """What a value of a table stands for: a field, a fact, `= ` and an expression, or itself."""
        if not isinstance(text, str):
            return text
        if text.startswith("= ") or _FIELD.fullmatch(text) or text in self.facts:
            return value_of(text.removeprefix("= "), self._names, self.account.scenario)
        return text

    def _applies(self, row: Mapping[str, Any]) -> bool:
        """Do what a row says, and whether its condition holds."""
        if not value_of(str(row.get("when", True)), self._names, self.account.scenario):
            return False
        for verb, what in row.items():
            if verb == "group":
                self._group = self.groups.setdefault(what, [])
            elif verb == "rows":
                self.follow(what)
            elif verb == "first":
                any(self._applies(each) for each in what)
            elif verb in ("say", "tell"):
                self._say(what, row.get("of"), always=verb == "say")
            elif verb == "cover":
                self.account.cover(*what)
            elif verb not in ("when", "of"):
                for name, words in what.items():
                    told = [words] if isinstance(words, str) else words
                    getattr(self.account, verb)(name, *(each.format_map(self._names) for each in told))
        return True

    def _say(self, options: Mapping[str, Any], of: Any, *, always: bool) -> None:
        """Set options to their values; unless `always`, those alone that are not off."""
        for name, text in options.items():
            value = self.value(text)
            own = [text] if isinstance(text, str) and _FIELD.fullmatch(text) else []
            fields = own if of is None or not always else [of] if isinstance(of, str) else of
            if always or value:
                switch = text is None or (not always and value is True)
                values = () if switch else value if isinstance(value, tuple) else (value,)
                self.write(name, values, tuple(fields))


def data_of(account: Account, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A framework's file as plain data, by the rows of its table; the last dot of an option parts section and key.
    Raises SpecError: the framework cannot run the plan."""
    options, data = Options(account, facts), dict[str, Any]()
    options.follow(exporter_table(account.kind)["rows"])
    account.settle()
    for option in options.groups[""]:
        section, dot, key = option.name.rpartition(".")
        (data.setdefault(section, {}) if dot else data)[key] = option.values[0]
        account.say(option.name, option.values[0], *option.fields)
    return data
