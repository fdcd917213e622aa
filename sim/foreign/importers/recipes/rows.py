"""Recipes by the rows of their kind's table: what its `settings` alone cannot say.

`checks` come first, `rows` when the settings are read, `after` when the scenario is. Conditions name fields as far as
they are told, else as a scenario has them (plan.tp), facts of the run (run.model, None where it says none), what rows
have learned, and: `told`, fields that are told; `top`, the file's first keys; `left`, first parts of keys that nobody
took; `settings`, keys that were taken; `given` and `given_cluster`, the caller's model and cluster. The verbs:

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
from functools import cache, partialmethod
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign, Given
from sim.foreign.importers.keys import Keys, table
from sim.foreign.importers.ledger import Section, short
from sim.foreign.importers.pipeline_layouts import take_flushes, take_repeated
from sim.foreign.importers.recipes.settings import RECORDS, Recipe, take_settings
from sim.foreign.rows import Rows


class Facts(SimpleNamespace):
    """Facts of the run; None for what is not told."""

    def __getattr__(self, name: str) -> None:
        return None


class RecipeRows(Rows):
    """A recipe while it is read.

    steps : functions that rows may call, by name. known : what rows have learned, by name.
    sections : of the scenario, once there is one.
    """

    def __init__(self, keys: Any, recipe: Recipe, file: Foreign, steps: Mapping[str, Callable[..., None]]) -> None:
        self.keys, self.recipe, self.file, self.steps = keys, recipe, file, steps
        self.known: dict[str, Any] = {}
        self.sections: dict[str, Any] = {}

    @classmethod
    def on(
        cls,
        keys: Keys,
        sections: Mapping[str, Section],
        steps: Mapping[str, Callable[..., None]] = MappingProxyType({}),
        kind: str = "",
        **known: Any,
    ) -> Self:
        """Rows of a kind's table, the keys' own if none is named, that fill in sections, with what they know."""
        file = Foreign("", None, keys.ledger, Given())
        rows = cls(keys, Recipe(kind or keys.kind, dict(sections)), file, steps)
        rows.known |= known
        return rows

    def read(self, group: str) -> None:
        """Do what the rows of a group of the table say."""
        self.follow(table(self.recipe.kind)[group])

    @property
    def plan(self) -> Any:
        """The section `plan`."""
        return self.recipe.sections["plan"]

    def refused(self, why: str) -> SpecError:
        """The error for what is wrong with the file."""
        return SpecError(f"{self.file.ledger.where}{'' if why.startswith(' ') else ': '}{why}")

    def names(self) -> Mapping[str, Any]:
        """See the file's head."""
        recipe, given = self.recipe, self.file.given
        told = {f"{name}.{each}" for name, fields in recipe.sections.items() for each in fields}
        data = self.file.data if isinstance(self.file.data, Mapping) else {}
        return {
            "told": told,
            "top": tuple(data),
            "left": {name.partition(".")[0] for name in self.keys.names()},
            "settings": self.keys.ledger.settings,
            "given": self.file.model is not None,
            "given_cluster": given.cluster is not None,
            "given_gpus": given.gpus,
            "source_of_model": recipe.sources.get("model"),
            "sources": recipe.sources,
            **self.known,
        }

    def fields(self) -> Any:
        """Fields as far as they are told, else a scenario's defaults."""
        told = {name: {**_defaults(name), **fields} for name, fields in self.recipe.sections.items()}
        sections = {name: SimpleNamespace(**fields) for name, fields in told.items()}
        return SimpleNamespace(**sections, run=Facts(**self.recipe.run))

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
            known, said = table(self.recipe.kind)[group], self.keys.text(key)
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
            for switch, fields in table(self.recipe.kind)[group].items():
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
            self.recipe.put(path, self.value(value), self.words(of))

    def _take(self, values: Mapping[str, Any], of: str) -> None:
        for path, value in values.items():
            section, _, field = path.partition(".")
            self.recipe.sections[section].took(field, self.value(value), self.words(of))

    def _default(self, values: Mapping[str, Sequence[Any]], of: Any) -> None:
        for path, (value, why) in values.items():
            self.recipe.default(path, self.value(value), self.words(why))

    def _set(self, values: Mapping[str, Any], of: str | None) -> None:
        for path, value in values.items():
            section, _, field = path.partition(".")
            found = self.value(value)
            (self.recipe.run if section == "run" else self.recipe.sections[section])[field] = found
            if section == "run" and of is not None:
                self.recipe.sources[field] = self.words(of)

    def _drop(self, paths: Iterable[str], of: Any) -> None:
        for path in paths:
            section, dot, field = path.partition(".")
            found: dict[str, Any] = self.recipe.run if section == "run" else self.recipe.sections[section]
            found.pop(field, None) if dot else found.clear()

    def _leave(self, prefixes: Iterable[str], of: Any) -> None:
        for prefix in prefixes:
            self.keys.below(prefix).leave()

    def _left(self, matters: bool, notes: Mapping[str, Sequence[Any]], of: Any) -> None:
        for name, (value, why) in notes.items():
            self.file.ledger.ignore(self.words(name), self.value(value), self.words(why), matters)

    _ignore, _mention = partialmethod(_left, True), partialmethod(_left, False)

    def _note(self, verb: str, values: Mapping[str, Sequence[Any]], of: Any) -> None:
        for name, (value, why) in values.items():
            getattr(self.file.ledger, verb)(name, self.value(value), self.words(why))

    _tell, _assume = partialmethod(_note, "took"), partialmethod(_note, "assume")

    def _refuse(self, why: str, of: Any) -> None:
        raise self.refused(self.words(why))

    def _repeat(self, number: Any, of: str) -> None:
        take_repeated(self.plan, self.value(number), self.known["layers"], self.words(of))

    def _flush(self, local: Any, of: str) -> None:
        batch = self.recipe.sections["training"]["global_batch_size"]
        take_flushes(self.plan, self.words(of), self.value(local), batch)

    def _read(self, group: str, of: Any) -> None:
        self.read(group)

    def _settings(self, group: str, of: Any) -> None:
        take_settings(self.recipe, self.keys, table(self.recipe.kind)[group])

    def _step(self, steps: Mapping[str, Sequence[Any]], of: Any) -> None:
        for name, arguments in steps.items():
            self.steps[name](self, *arguments)


@cache
def _defaults(section: str) -> dict[str, Any]:
    return {name: info.default for name, info in RECORDS[section].model_fields.items()}
