"""An export and its account: what was written, what the framework decides, what it cannot be told, what is left to do.

Every field of a scenario is accounted for: an exporter that forgets one says so. Options are written by the `rows` of
the framework's table, whose conditions are on fields of the plan by their names, on those of other sections
(training.precision), on the exporter's facts, and on options that are `said`. The verbs:

group : the heading under which options stand from here on.
say : options and their values; null is a switch. `of` names the fields that they say, else each says its value's.
tell : options and fields, said where the field is not off; a true one is a switch.
cover, decide, leave, refuse, ask : what becomes of fields, as the account's methods have it; {names} are filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partialmethod
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import SpecError
from sim.foreign.importers.ledger import LedgerEntry, short
from sim.foreign.rows import FIELD, Rows
from sim.specs.framework_plans import broken_rules, plan_rules
from sim.specs.frameworks import resolve_stack
from sim.specs.scenario import Scenario
from sim.specs.yaml12 import load_yaml

SECTIONS = ("model", "plan", "training", "stack")
"""Sections of a scenario that a framework's file can describe."""
_TABLES = Path(__file__).parents[2] / "presets" / "exporters"
_NAMES = ("name", "framework", "version", "fitted_families")
"""Fields that say what something is called, not what is done."""


@cache
def exporter_table(kind: str) -> dict[str, Any]:
    """What an exporter knows of its framework: names, what cannot be said and why, what is left to its user."""
    data: dict[str, Any] = load_yaml(_TABLES / f"{kind}.yaml")
    return {**exporter_table(data["like"]), **data} if "like" in data else data


class Option(NamedTuple):
    """An option by its name in the framework's file, its values, none for a switch, and the fields that it says."""

    name: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]


@dataclass
class Account(Rows):
    """What became of a scenario's fields.

    kind : of the framework's file.
    groups : the options under their headings; said, their names.
    written : names in the framework's file, their values, and the fields that they say.
    decided : fields that the framework settles by itself, and how.
    unsaid : fields that cannot be said there, and why.
    yours : what the file leaves to its user.
    refused : why the framework cannot run the plan, one reason an entry.
    """

    kind: str
    scenario: Scenario
    written: list[LedgerEntry] = field(default_factory=list)
    decided: list[LedgerEntry] = field(default_factory=list)
    unsaid: list[LedgerEntry] = field(default_factory=list)
    yours: list[LedgerEntry] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    groups: dict[str, list[Option]] = field(default_factory=lambda: {"": []})
    said: set[str] = field(default_factory=set)
    known: dict[str, Any] = field(default_factory=dict)
    _heading: str = ""
    _mentioned: set[str] = field(default_factory=set)

    def write(self, facts: Mapping[str, Any]) -> None:
        """Say the scenario in options, by the rows of the framework's table.

        facts : what conditions and values may name besides the scenario's fields.

        Raises SpecError: with every reason for which the framework cannot run the plan.
        """
        scenario = self.scenario
        sections = {name: getattr(scenario, name) for name in ("model", "training", "stack")}
        of_batch = {"num_microbatches": scenario.num_microbatches, "flushes": scenario.flushes}
        self.known = {**dict(scenario.plan), **sections, **of_batch, **facts, "said": self.said}
        self.follow(exporter_table(self.kind)["rows"])
        self.settle()

    def data(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The scenario as plain data; the last dot of an option parts section and key. Raises SpecError as `write`."""
        self.write(facts)
        data: dict[str, Any] = {}
        for option in self.groups[""]:
            section, dot, key = option.name.rpartition(".")
            (data.setdefault(section, {}) if dot else data)[key] = option.values[0]
            self.say(option.name, option.values[0], *option.fields)
        return data

    def names(self) -> Mapping[str, Any]:
        """The plan's fields, the exporter's facts, and the options that are said."""
        return self.known

    def fields(self) -> Any:
        """The scenario."""
        return self.scenario

    @property
    def title(self) -> str:
        """The framework's name."""
        return str(exporter_table(self.kind)["title"])

    def say(self, name: str, value: Any, *paths: str) -> None:
        """Note what was written, and which fields it says."""
        self._mentioned.update(paths)
        self.written.append(LedgerEntry(name, short(value), ", ".join(paths) or "what goes with it"))

    def cover(self, *paths: str) -> None:
        """Fields that are said by the silence of the file: the framework's defaults are their values."""
        self._mentioned.update(paths)

    def decide(self, path: str, how: str) -> None:
        """Note that the framework settles a field."""
        self._note(self.decided, path, how)

    def leave(self, path: str, why: str) -> None:
        """Note that a field cannot be said."""
        self._note(self.unsaid, path, why)

    def ask(self, name: str, why: str) -> None:
        """Note what the file's user has to give."""
        self.yours.append(LedgerEntry(name, "", why))

    def refuse(self, path: str, why: str, nearest: str) -> None:
        """Note why the framework cannot run the plan, and the nearest that it can."""
        self._mentioned.add(path)
        self.refused.append(f"{self.title} cannot run {path} = {_shown(self.value(path))}: {why}; nearest: {nearest}")

    def refuse_by_tables(self) -> None:
        """Note every reason that the framework's file has against the plan, and the exporter's table against values."""
        plan, table = dict(self.scenario.plan), exporter_table(self.kind)
        for rule in broken_rules(self.scenario, plan_rules(table["framework"])):
            self.refuse(rule.path, *rule.words(plan))
        for path, (values, why) in table.get("only", {}).items():
            if self.value(path) not in values:
                self.refuse(path, why, f"--set {path}={_shown(values[0])}")

    def settle(self) -> None:
        """Account for every field that was not mentioned: those at their defaults, or as the framework has them by
        itself, are silent, the others are unsaid, for the table's reason. Raises SpecError: every reason for which the
        framework cannot run the plan."""
        if self.refused:
            raise SpecError("\n".join(self.refused))
        scenario, table = self.scenario, exporter_table(self.kind)
        sections = {name: getattr(scenario, name).model_dump() for name in ("model", "cluster", "plan", "training")}
        found = resolve_stack({"framework": table["framework"]}, sections)
        own = type(scenario.stack).read(found.fields, "stack").model_dump()
        idle = (path for path, (other, value) in table.get("idle", {}).items() if self.value(other) == value)
        silent = (*table.get("silent", ()), *idle)
        for section in SECTIONS:
            record = getattr(self.scenario, section)
            for name, info in type(record).model_fields.items():
                path, value = f"{section}.{name}", getattr(record, name)
                if path in self._mentioned or name in _NAMES or _fits(path, silent):
                    continue
                default = own.get(name, info.default) if section == "stack" else info.default
                if value == default or (section != "stack" and name not in record.model_fields_set):
                    continue
                fitting = (why for why, patterns in table["unsaid"].items() if _fits(path, patterns))
                reason = str(next(fitting, "not known to the exporter"))
                if section == "stack" and not reason.startswith("measured"):
                    reason = f"{reason}: this estimate assumes {_shown(value)}, {self.title} uses {_shown(default)}"
                self._note(self.unsaid, path, reason)
        for name, why in table.get("yours", {}).items():
            self.ask(name, why)

    def _note(self, entries: list[LedgerEntry], path: str, why: str) -> None:
        self._mentioned.add(path)
        if all(entry.name != path for entry in entries):
            entries.append(LedgerEntry(path, _shown(self.value(path)), why))

    def _group(self, title: str, of: Any) -> None:
        self._heading = title
        self.groups.setdefault(title, [])

    def _say(self, options: Mapping[str, Any], of: Any) -> None:
        for name, text in options.items():
            value = self.value(text)
            own = [text] if isinstance(text, str) and FIELD.fullmatch(text) else []
            fields = tuple(own if of is None else [of] if isinstance(of, str) else of)
            values = () if text is None else value if isinstance(value, tuple) else (value,)
            self.groups[self._heading].append(Option(name, values, fields))
            self.said.add(name)
            self.cover(*fields)

    def _tell(self, options: Mapping[str, str], of: Any) -> None:
        for name, path in options.items():
            value = self.value(path)
            if value:
                self._say({name: None if value is True else path}, path)

    def _cover(self, paths: Iterable[str], of: Any) -> None:
        self.cover(*paths)

    def _noted(self, verb: str, notes: Mapping[str, Any], of: Any) -> None:
        for name, words in notes.items():
            told = [words] if isinstance(words, str) else words
            getattr(self, verb)(name, *(each.format_map(self.known) for each in told))

    _decide, _leave = partialmethod(_noted, "decide"), partialmethod(_noted, "leave")
    _refuse, _ask = partialmethod(_noted, "refuse"), partialmethod(_noted, "ask")


def _fits(path: str, patterns: Iterable[str]) -> bool:
    """Whether a field is one of these, which may end in `*`."""
    return any(path == each or (each.endswith("*") and path.startswith(each[:-1])) for each in patterns)


def _shown(value: Any) -> str:
    """A field's value as a scenario file has it."""
    return " ".join(str(each) for each in value) if isinstance(value, tuple) else short(value)


def launcher_lines(scenario: Scenario, program: str, behind: list[str]) -> list[str]:
    """torchrun's command for the plan's GPUs; what stands behind the program follows, one a line."""
    gpus, each = scenario.plan.num_gpus, scenario.cluster.node.gpus_per_node
    while gpus % each:
        each -= 1
    words = ["torchrun", f"--nnodes {gpus // each}", f"--nproc-per-node {each}"]
    if gpus > each:
        words += ['--node-rank "$NODE_RANK"', '--master-addr "$MASTER_ADDR"', '--master-port "$MASTER_PORT"']
    first = " ".join(words)
    return [f"{first} \\", f"    {program} \\", *(f"    {word} \\" for word in behind[:-1]), f"    {behind[-1]}"]


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The sections that have keys; long lists of lists have a line an entry."""
    parts = [
        "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())])
        for name, keys in sections.items()
        if keys
    ]
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    """JSON's spelling, which for text, numbers, booleans and lists of them is TOML's."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"    {_value(each)},\n" for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)
