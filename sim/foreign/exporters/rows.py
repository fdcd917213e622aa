"""What a framework's table says of a scenario: its `rows`, written as options.

Conditions are on fields of the plan by their names, on those of other sections (training.precision), on the exporter's
facts, and on options that are `said`. The verbs:

group : the heading under which options stand from here on.
say : options and their values; null is a switch. `of` names the fields that they say, else each says its value's.
tell : options and fields, said where the field is not off; a true one is a switch.
cover, decide, leave, refuse, ask : what becomes of fields, as the account's methods have it; {names} are filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partialmethod
from typing import Any, NamedTuple

from sim.foreign.exporters.account import Account, exporter_table
from sim.foreign.rows import FIELD, Rows


class Option(NamedTuple):
    """An option by its name in the framework's file, its values, none for a switch, and the fields that it says."""

    name: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]


class Options(Rows):
    """Options under headings, as rows say them.

    facts : what conditions and values may name besides the scenario's fields.
    """

    def __init__(self, account: Account, facts: Mapping[str, Any]) -> None:
        scenario, self.account, self.said = account.scenario, account, set[str]()
        sections = {name: getattr(scenario, name) for name in ("model", "training", "stack")}
        of_batch = {"num_microbatches": scenario.num_microbatches, "flushes": scenario.flushes}
        self.known = {**dict(scenario.plan), **sections, **of_batch, **facts, "said": self.said}
        self.groups: dict[str, list[Option]] = {"": []}
        self._heading = self.groups[""]

    def names(self) -> Mapping[str, Any]:
        """The plan's fields, the exporter's facts, and the options that are said."""
        return self.known

    def fields(self) -> Any:
        """The scenario."""
        return self.account.scenario

    def _group(self, title: str, of: Any) -> None:
        self._heading = self.groups.setdefault(title, [])

    def _say(self, options: Mapping[str, Any], of: Any) -> None:
        for name, text in options.items():
            value = self.value(text)
            own = [text] if isinstance(text, str) and FIELD.fullmatch(text) else []
            fields = tuple(own if of is None else [of] if isinstance(of, str) else of)
            values = () if text is None else value if isinstance(value, tuple) else (value,)
            self._heading.append(Option(name, values, fields))
            self.said.add(name)
            self.account.cover(*fields)

    def _tell(self, options: Mapping[str, str], of: Any) -> None:
        for name, path in options.items():
            value = self.value(path)
            if value:
                self._say({name: None if value is True else path}, path)

    def _cover(self, paths: Iterable[str], of: Any) -> None:
        self.account.cover(*paths)

    def _note(self, verb: str, notes: Mapping[str, Any], of: Any) -> None:
        for name, words in notes.items():
            told = [words] if isinstance(words, str) else words
            getattr(self.account, verb)(name, *(each.format_map(self.known) for each in told))

    _decide, _leave = partialmethod(_note, "decide"), partialmethod(_note, "leave")
    _refuse, _ask = partialmethod(_note, "refuse"), partialmethod(_note, "ask")


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


def export_deepspeed(account: Account) -> tuple[str, dict[str, Any]]:
    """DeepSpeed's JSON, and what stands in it; the model stands in the training program. Raises SpecError: its JSON
    cannot say the plan."""
    plan = account.scenario.plan
    part = {"ratio": plan.optimizer_offload} if plan.optimizer_offload < 1 else {}
    data = data_of(account, {"offload": {"device": "cpu", "pin_memory": True, **part}})
    return json.dumps(data, indent=2) + "\n", data
