"""Recipes by the rows of their kind's table: what its `settings` alone cannot say.

`checks` come first, `rows` when the settings are read, `after` when the scenario is. Conditions name fields as far as
they are told, else as a scenario has them (plan.tp), facts of the run (run.model, None where it says none), what rows
have learned, and: `told`, fields that are told; `top`, the file's first keys; `parts`, dotted names of its mappings;
`left`, first parts of keys that nobody took; `settings`, keys that were taken; `given` and `given_cluster`, the
caller's model and cluster. The verbs:

text, whole, needed, number, flag, any : take a value by one of its keys, under a name. peek : look at it.
list : all values of an argument. switches : fields of sections that switches set, as groups of the table list them.
words : take a word of a group of the table's, as NAME, and what it stands for, as NAME_ours.
inside : rows on the keys of a section. forget : keys that have no effect, and what their class has for them.
put, take, default, set : a field, unless it is told; whatever it is; filled in, with the reason; without a word.
ignore, mention : left out, with value and reason; the latter changes no step's time. tell, assume : read, filled in.
drop : fields that do not count after all. leave : note what nobody took of keys below these.
refuse : what is wrong. settings, read : another group of the table's, of settings or rows.
repeat : layers that run again, of so many `layers`. flush : after so many sequences of a replica a pipeline drains.
step : functions of `recipe.STEPS`, with their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cache, partialmethod
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign, Given
from sim.foreign.importers.keys import table
from sim.foreign.importers.ledger import Ledger, Section, short
from sim.foreign.importers.recipes.settings import RECORDS, parts_of, rules_of, said_by
from sim.foreign.rows import Rows

NONE: Mapping[str, Callable[..., None]] = MappingProxyType({})


class Facts(SimpleNamespace):
    """Facts of the run; None for what is not told."""

    def __getattr__(self, name: str) -> None:
        return None


class Recipe(Rows):
    """What a file says, while it is read.

    keys : the file's settings or arguments; kind, that of its table. steps : functions that rows may call, by name.
    model, plan, training, stack : the scenario's sections, as far as they are told.
    run : facts that a scenario's fields follow from, such as nodes, of which the file's account has no lines.
    known : what rows have learned, by name. scenario : its sections, once they are there.
    """

    def __init__(
        self, keys: Any, file: Foreign | None = None, steps: Mapping[str, Callable[..., None]] = NONE, **known: Any
    ) -> None:
        self.keys, self.kind, self.steps = keys, str(keys.kind), steps
        self.file = file or Foreign("", None, keys.ledger, Given())
        self.model, self.plan, self.training, self.stack = (Section(name, keys.ledger) for name in RECORDS)
        self.run = Section("run", Ledger(""))
        self.known = {"parts": {*parts_of(self.file.data)}, **known}
        self.scenario: dict[str, Any] = {}

    def beside(self, keys: Any, kind: str, **known: Any) -> Self:
        """Other keys that fill the same sections and facts, by the rows of another kind's table."""
        found = copy(self)
        found.keys, found.kind, found.known = keys, kind, {**known}
        return found

    @property
    def sections(self) -> dict[str, Section]:
        """Model, plan, training, stack and run by their names."""
        return {name: getattr(self, name) for name in (*RECORDS, "run")}

    def put(self, path: str, value: Any, source: str) -> None:
        """Set a field, or a fact of the run, by its dotted name, unless it is set or there is nothing to set."""
        section, _, name = path.partition(".")
        if value is not None and name not in self.sections[section]:
            self.sections[section].took(name, value, source)

    def default(self, path: str, value: Any, why: str) -> None:
        """Fill in a field, or a fact of the run, that is not set."""
        section, _, name = path.partition(".")
        if name not in self.sections[section]:
            self.sections[section].assume(name, value, why)

    def take_settings(self, rules: Mapping[str, Any]) -> None:
        """What a table's rules find in the keys.

        A rule is of a field, or a fact of the run, and names the keys that hold it; or is a mapping: `keys`; `words`
        from the file's values to ours (to null for what the framework decides, or to several fields at once; `*` fits
        any letters), `near`, words that stand for what only comes near, with the reason, and `else`, what messages say
        of others; `times` a field, for a ratio; `left`, values that only the run settles, each with its reason;
        `default` and `because`, what it is where the file does not say. Or it is a list of such mappings, of which the
        first that says anything counts. Raises SpecError: a value that is not what its field takes.
        """
        for path, rule in rules.items():
            for each in rules_of(rule):
                key, value = said_by(self.keys, path, each)
                if "times" in each and value is not None:
                    section, _, name = each["times"].partition(".")
                    other = self.sections[section].get(name)
                    value = None if other is None else round(value * other)
                several = value if isinstance(value, Mapping) else {path: value}
                for field_path, found in several.items():
                    self.put(field_path, found, f"{self.keys.label}{key}")
                if "default" in each:
                    self.default(path, each["default"], each["because"])

    def read(self, group: str) -> None:
        """Do what the rows of a group of the table say."""
        self.follow(table(self.kind)[group])

    @property
    def sources(self) -> dict[str, str]:
        """Where the facts of the run stand that the file says."""
        return {entry.name.removeprefix("run."): entry.note for entry in self.run.ledger.read}

    def refused(self, why: str) -> SpecError:
        """The error for what is wrong with the file."""
        return SpecError(f"{self.keys.ledger.where}{'' if why.startswith(' ') else ': '}{why}")

    def names(self) -> Mapping[str, Any]:
        """See the file's head."""
        given = self.file.given
        told = {f"{name}.{each}" for name, fields in self.sections.items() for each in fields}
        data = self.file.data if isinstance(self.file.data, Mapping) else {}
        return {
            "told": told,
            "top": tuple(data),
            "left": {name.partition(".")[0] for name in self.keys.rest()},
            "settings": self.keys.ledger.settings,
            "given": self.file.model is not None,
            "given_cluster": given.cluster is not None,
            "given_gpus": given.gpus,
            "source_of_model": self.sources.get("model"),
            "sources": self.sources,
            **self.known,
        }

    def fields(self) -> Any:
        """Fields as far as they are told, else a scenario's defaults."""
        told = {name: SimpleNamespace(**{**_defaults(name), **self.sections[name]}) for name in RECORDS}
        return SimpleNamespace(**told, run=Facts(**self.run))

    def words(self, text: Any) -> Any:
        """A text with {names} filled in."""
        if not isinstance(text, str) or "{" not in text:
            return text
        names = {name: short(value) if isinstance(value, str) or value is None else value
                 for name, value in self.names().items()}  # fmt: skip
        return text.format_map({**names, **vars(self.fields())})

    def _learn(self, reader: str, names: Mapping[str, Sequence[str]], of: Any) -> None:
        for name, keys in names.items():
            least: dict[str, int] = {"least": keys[0]} if isinstance(keys[0], int) else {}
            found = getattr(self.keys, reader)(*keys[len(least) :], **least)
            self.known[name] = found[1] if reader == "take" else found

    _text, _whole = partialmethod(_learn, "text"), partialmethod(_learn, "whole")
    _number, _flag = partialmethod(_learn, "number"), partialmethod(_learn, "flag")
    _needed, _any = partialmethod(_learn, "needed"), partialmethod(_learn, "take")

    def _words(self, names: Mapping[str, Sequence[str]], of: Any) -> None:
        for name, (group, key) in names.items():
            known, said = table(self.kind)[group], self.keys.text(key)
            said = None if said is None else said.rpartition(".")[2].lower()  # of AttnBackend.flash, torch.bfloat16
            if said is not None and said not in known:
                raise self.keys.wrong(key, said, f"must be one of {', '.join(known)}")
            self.known |= {name: said, f"{name}_ours": known.get(said)}

    def _peek(self, names: Mapping[str, str], of: Any) -> None:
        self.known |= {name: self.keys.first(key) for name, key in names.items()}

    def _list(self, names: Mapping[str, Sequence[str]], of: Any) -> None:
        self.known |= {name: self.keys.words(*arguments) for name, arguments in names.items()}

    def _switches(self, groups: Mapping[str, str], of: Any) -> None:
        for section, group in groups.items():
            for switch, fields in table(self.kind)[group].items():
                if self.keys.has(switch):
                    self._take({f"{section}.{field}": value for field, value in fields.items()}, f"--{switch}")

    def _inside(self, sections: Mapping[str, Sequence[Mapping[str, Any]]], of: Any) -> None:
        for name, rows in sections.items():
            outer, self.keys = self.keys, self.keys.section(name)
            self.follow(rows)
            self.keys.leave()
            self.keys = outer

    def _forget(self, names: Iterable[str], why: str | None) -> None:
        for name in names:
            self.keys.forget(name)
            value = self.keys.take(name)[1]
            if why is not None and value is not None:
                self.keys.ledger.ignore(f"{self.keys.label}{name}", value, why)

    def _put(self, values: Mapping[str, Any], of: str) -> None:
        for path, value in values.items():
            self.put(path, self.value(value), self.words(of))

    def _take(self, values: Mapping[str, Any], of: str) -> None:
        for path, value in values.items():
            section, _, field = path.partition(".")
            self.sections[section].took(field, self.value(value), self.words(of))

    def _default(self, values: Mapping[str, Sequence[Any]], of: Any) -> None:
        for path, (value, why) in values.items():
            self.default(path, self.value(value), self.words(why))

    def _set(self, values: Mapping[str, Any], of: str | None) -> None:
        for path, value in values.items():
            section, _, field = path.partition(".")
            self.sections[section][field] = self.value(value)
            if section == "run" and of is not None:
                self.run.took(field, self.run[field], self.words(of))

    def _drop(self, paths: Iterable[str], of: Any) -> None:
        for path in paths:
            section, dot, field = path.partition(".")
            self.sections[section].pop(field, None) if dot else self.sections[section].clear()

    def _leave(self, prefixes: Iterable[str], of: Any) -> None:
        for prefix in prefixes:
            self.keys.below(prefix).leave()

    def _left(self, matters: bool, notes: Mapping[str, Sequence[Any]], of: Any) -> None:
        for name, (value, why) in notes.items():
            self.keys.ledger.ignore(self.words(name), self.value(value), self.words(why), matters)

    _ignore, _mention = partialmethod(_left, True), partialmethod(_left, False)

    def _note(self, verb: str, values: Mapping[str, Sequence[Any]], of: Any) -> None:
        for name, (value, why) in values.items():
            getattr(self.keys.ledger, verb)(name, self.value(value), self.words(why))

    _tell, _assume = partialmethod(_note, "took"), partialmethod(_note, "assume")

    def _refuse(self, why: str, of: Any) -> None:
        raise self.refused(self.words(why))

    def _repeat(self, number: Any, of: str) -> None:
        number, layers, source = self.value(number), self.known["layers"], self.words(of)
        self.plan.took("recompute", "full" if number else "none", source)
        if number not in (0, layers):
            self.plan.took("recompute_method", "block", source)
            self.plan.took("recompute_num_layers", number, f"{source}, of {layers} layers")

    def _flush(self, local: Any, of: str) -> None:
        plan, local = self.plan, self.value(local)
        several = plan["pp"] > 1 and self.training["global_batch_size"] > local * plan["dp"]
        if several and local % plan["microbatch_size"] == 0:
            why = f"{self.words(of)} {local}: the pipeline drains after each of them"
            plan.took("microbatches_per_flush", local // plan["microbatch_size"], why)

    def _read(self, group: str, of: Any) -> None:
        self.read(group)

    def _settings(self, group: str, of: Any) -> None:
        self.take_settings(table(self.kind)[group])

    def _step(self, steps: Mapping[str, Sequence[Any]], of: Any) -> None:
        for name, arguments in steps.items():
            self.steps[name](self, *arguments)


@cache
def _defaults(section: str) -> dict[str, Any]:
    return {name: info.default for name, info in RECORDS[section].model_fields.items()}
