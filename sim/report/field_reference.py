"""Every field that a scenario file may hold: its name there, type, default and meaning, read from the records.

What a field means is the docstring below it. Those are read from the source when they are asked for: pydantic could
keep them in the records, but would read every source at each import.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin

from sim.errors import SpecError, nearest
from sim.specs.base import Spec, file_name, unit_of
from sim.specs.loading import PRESET_AT
from sim.specs.scenario import Scenario
from sim.units import EXAMPLES, NOUNS, listed, show_bare

ANY_NAME = "NAME"
"""The part of a path that stands for a name of the reader's own, such as that of a level of switches."""
NOT_IN_FILES = {"assumed"}
"""Fields of a scenario that reading a file fills in."""
_DEFAULT = re.compile(r"\s*Default: (?P<words>.*?)\.(?=\s|$)", re.DOTALL)
_UNIT = re.compile(r"\s*\[[^]]+\]$")


@dataclass(frozen=True, slots=True)
class FieldReference:
    """A field as a scenario file writes it.

    path, long_path : with its sections (cluster.node.gpu.memory); the long one with the unit, where SI numbers stand.
    type, choices : what may be written there, in words; and the values, where there are few.
    unit : its dimension, as in `sim.units`; None for what has none.
    default, derived_default : what is taken where it is left out; or what that follows from, in words.
    meaning : the docstring below it in the record.
    section, under_names : what is below it has fields of its own, and it holds some of that under names.
    """

    path: str
    long_path: str
    type: str
    choices: tuple[Any, ...]
    unit: str | None
    required: bool
    default: Any
    derived_default: str | None
    meaning: str
    section: bool
    under_names: bool

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def long_name(self) -> str:
        """The last part of its long path."""
        return self.long_path.rpartition(".")[2]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("section", "under_names")}

    @property
    def default_words(self) -> str:
        """'required', or what is taken where it is left out, as a file would say it."""
        if self.required:
            return "required"
        return self.derived_default or _value_words(self.default, self.unit)

    def stands_at(self, parts: Sequence[str], place: int) -> bool:
        """Whether its path has these parts from a place on, with any name where any may stand.

        What has fields of its own is meant by them.
        """
        own = self.path.split(".")[place:]
        named = all(each == ANY_NAME or each.lower() == part for each, part in zip(own, parts, strict=False))
        return named and own[0] != ANY_NAME and len(own) >= len(parts) + self.section


@dataclass(frozen=True, slots=True)
class SectionReference:
    """A mapping of a scenario file.

    path : such as cluster.node; empty for the file itself.
    record : what it is read into.
    preset : the kind of preset whose name may stand in its place, or None.
    meaning : the record's docstring, paragraphs apart.
    fields : in the record's order.
    same_as : path of an earlier section with the same fields, or None.
    """

    path: str
    record: type[Spec]
    preset: str | None
    meaning: str
    fields: tuple[FieldReference, ...]
    same_as: str | None


@cache
def scenario_sections() -> tuple[SectionReference, ...]:
    """All sections of a scenario file, each before those within it."""
    found: list[SectionReference] = []
    first: dict[type[Spec], str] = {}
    for path, record in _walk(Scenario, ""):
        found.append(
            SectionReference(
                path,
                record,
                PRESET_AT.get(path),
                "\n".join(" ".join(each.split()) for each in inspect.cleandoc(record.__doc__ or "").split("\n\n")),
                tuple(_field(record, name, path) for name in record.model_fields if name not in NOT_IN_FILES),
                first.get(record),
            )
        )
        first.setdefault(record, path)
    return tuple(found)


def find_fields(word: str) -> tuple[SectionReference, ...]:
    """The sections and fields that a word asks for; of a section where some fields are meant, only those.

    word : A section, which stands for those within it too, or `scenario` for what no section holds; a field's path by
        either of its names, or some parts of it; a part of a name; or else a word of what fields mean.
    """
    sections = scenario_sections()
    plain = ".".join(file_name(part) for part in word.strip().strip(".").split(".")).lower()
    if plain == "scenario":
        return sections[:1]
    parts = plain.split(".")
    finders: tuple[Callable[[FieldReference], bool], ...] = (
        lambda field: field.stands_at(parts, 0),
        lambda field: any(field.stands_at(parts, place) for place in range(1, field.path.count(".") + 1)),
        lambda field: plain in (field.path if "." in plain else field.name).lower(),
        lambda field: plain in field.meaning.lower(),
    )
    for is_meant in finders if plain else ():
        if found := tuple(filter(None, (_narrowed(section, is_meant) for section in sections))):
            return found
    names = {field.path if "." in word else field.name for section in sections for field in section.fields}
    hint = nearest(word, names) if plain else ""
    hint = hint if 0 < len(hint) < 200 else "; `flopcast fields` lists them all"  # all of them would be too many
    raise SpecError(f"no field or section {word!r}{hint}")


def _narrowed(section: SectionReference, is_meant: Callable[[FieldReference], bool]) -> SectionReference | None:
    """A section with the fields that are meant, if any."""
    fields = tuple(filter(is_meant, section.fields))
    if len(fields) == len(section.fields):
        return section
    return replace(section, fields=fields, preset=None, same_as=None) if fields else None


def docstrings(record: type[Spec]) -> dict[str, str]:
    """What stands below each field of a record, in one line."""
    found: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        if issubclass(cls, Spec):
            found |= _docstrings_in(cls.__module__).get(cls.__name__, {})
    return found


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Docstrings of the fields of each class in a module, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found: dict[str, dict[str, str]] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        fields = found[cls.name] = {}
        for field, below in zip(cls.body, cls.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                fields[field.target.id] = " ".join(str(below.value.value).split())
    return found


def _walk(record: type[Spec], path: str) -> Iterator[tuple[str, type[Spec]]]:
    yield path, record
    for name, info in record.model_fields.items():
        inner, under_names = _inner(info.annotation)
        if inner:
            yield from _walk(inner, _join(path, file_name(name), ANY_NAME if under_names else ""))


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


@cache
def json_schemas() -> dict[str, dict[str, Any]]:
    """What pydantic says of each record's fields: record -> field -> JSON Schema."""
    whole = Scenario.model_json_schema()
    records = {**whole["$defs"], Scenario.__name__: whole}
    return {name: each["properties"] for name, each in records.items()}


def _inner(annotation: Any) -> tuple[type[Spec] | None, bool]:
    """The record that a field holds, if any, and whether it holds some of them under names of the reader's own."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return annotation, False
    parts = () if get_origin(annotation) is tuple else get_args(annotation)
    if get_origin(annotation) is dict:
        return _inner(parts[1])[0], True
    return next((found for part in parts if (found := _inner(part))[0]), (None, False))


def _field(record: type[Spec], name: str, section: str) -> FieldReference:
    info, unit, schema = record.model_fields[name], unit_of(name), json_schemas()[record.__name__][name]
    path = _join(section, file_name(name))
    meaning = docstrings(record).get(name, "")
    if unit:
        meaning = _UNIT.sub("", meaning)
    derived = _DEFAULT.search(meaning)
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    inner, under_names = _inner(info.annotation)
    return FieldReference(
        path,
        _join(section, name),
        _type_words(schema, unit, PRESET_AT.get(path)),
        _choices(schema),
        unit,
        info.is_required() and derived is None,
        None if derived else default,
        derived["words"] if derived else None,
        _DEFAULT.sub("", meaning).strip(),
        bool(inner),
        under_names,
    )


def _type_words(schema: Mapping[str, Any], unit: str | None, preset: str | None) -> str:
    """What may be written for a value of this JSON Schema, in words."""
    kind, values = schema.get("type"), _choices(schema)
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(_type_words(each, unit, preset) for each in kinds)
    if values:
        return listed(map(_quoted, values))
    if "$ref" in schema:
        return f"a name (flopcast presets list {preset}) or fields" if preset else "fields"
    if kind == "object":
        keys = schema.get("propertyNames", {}).get("enum")
        names = f"each of {listed(map(_quoted, keys), 'and')}" if keys else "names of your own"
        return f"under {names}: {_type_words(schema['additionalProperties'], unit, None)}"
    if kind == "array":
        length = f"list of {schema['maxItems']}" if "maxItems" in schema else "list"
        each = schema.get("items") or schema["prefixItems"][0]
        return f"{length}, each {_type_words(each, unit, None)}"
    if unit:
        return f"{NOUNS[unit]} such as {EXAMPLES[unit].partition(' or ')[0].strip(chr(39))}"
    if kind in ("integer", "number"):
        return f"{'whole ' if kind == 'integer' else ''}number{_limit_words(schema)}"
    return "true or false" if kind == "boolean" else "text"


def _limit_words(schema: Mapping[str, Any]) -> str:
    """What follows 'number': from 0 to 1, above 0."""
    bounds = dict(schema)
    if schema["type"] == "integer" and "exclusiveMinimum" in bounds:
        bounds["minimum"] = bounds.pop("exclusiveMinimum") + 1
    words = {
        "exclusiveMinimum": " above",
        "minimum": " from",
        "maximum": " to" if "minimum" in bounds else ", at most",
        "exclusiveMaximum": ", below",
    }
    return "".join(f"{word} {bounds[name]:g}" for name, word in words.items() if name in bounds)


def _choices(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a field that has few, or nothing."""
    if "const" in schema:
        return (schema["const"],)
    return tuple(schema.get("enum", ())) or next(
        (found for each in schema.get("anyOf", ()) if (found := _choices(each))), ()
    )


def _quoted(value: Any) -> str:
    return repr(value) if str(value).isdigit() else str(value)


def _value_words(value: Any, unit: str | None) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, tuple, Mapping)) and not value:
        return "empty"
    if isinstance(value, (int, float)):
        return show_bare(value, unit) if unit else f"{value:g}"
    return _quoted(value)
