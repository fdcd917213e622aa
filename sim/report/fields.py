"""The fields of a scenario file: each with its name there, type, default and meaning, read from the records.

They are a list on the terminal, a page (docs/fields.py), and a JSON Schema for editors. What a value may be, pydantic
says of each record; here names lose their units, quantities become texts, and presets may stand for sections. What a
field means is the docstring below it. Those are read from the source when they are asked for: pydantic could keep them
in the records, but would read every source at each import.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from textwrap import wrap
from typing import Any, get_origin

from rich.console import Group
from rich.text import Text

from sim.errors import SpecError, nearest
from sim.specs.base import Spec, file_name, record_in, unit_of
from sim.specs.frameworks import framework_names
from sim.specs.loading import PRESET_AT
from sim.specs.presets import preset_names
from sim.specs.scenario import Scenario
from sim.units import COUNT, EXAMPLES, NOUNS, listed, pattern, show_bare

ANY_NAME = "NAME"
"""The part of a path that stands for a name of the reader's own, such as that of a level of switches."""
NOT_IN_FILES = {"assumed"}
"""Fields of a scenario that reading a file fills in."""
NEWLINE = "\n"
_DEFAULT = re.compile(r"\s*Default: (?P<words>.*?)\.(?=\s|$)", re.DOTALL)
_UNIT = re.compile(r"\s*\[[^]]+\]$")

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FieldReference:
    """A field as a scenario file writes it.

    path, long_path : with its sections (cluster.node.gpu.memory); the long one with the unit, where SI numbers stand.
    type, choices : what may be written there, in words; and the values, where there are few.
    unit : its dimension, as in `sim.units`; None for what has none.
    default, derived_default : what is taken where it is left out; or what that follows from, in words.
    meaning : the docstring below it in the record.
    within : path of the section that it holds, if any; under ANY_NAME those of some that it holds under names.
    schema : what pydantic says of its values.
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
    within: str
    schema: Schema

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("within", "schema")}

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
        return named and own[0] != ANY_NAME and len(own) >= len(parts) + bool(self.within)


@dataclass(frozen=True, slots=True)
class SectionReference:
    """A mapping of a scenario file.

    path : such as cluster.node; empty for the file itself.
    record : name of what it is read into.
    preset : the kind of preset whose name may stand in its place, or None.
    meaning : the record's docstring, paragraphs apart.
    fields : in the record's order.
    same_as : path of an earlier section with the same fields, or None.
    """

    path: str
    record: str
    preset: str | None
    meaning: str
    fields: tuple[FieldReference, ...]
    same_as: str | None


@cache
def scenario_sections() -> tuple[SectionReference, ...]:
    """All sections of a scenario file, each before those within it."""
    whole, found = Scenario.model_json_schema(), list[SectionReference]()
    schemas, first = {**whole["$defs"], Scenario.__name__: whole}, dict[str, str]()
    for path, record in _walk(Scenario, ""):
        name, schema = record.__name__, schemas[record.__name__]["properties"]
        meaning = NEWLINE.join(" ".join(each.split()) for each in inspect.cleandoc(record.__doc__ or "").split("\n\n"))
        fields = tuple(_field(record, each, path, schema[each]) for each in schema if each not in NOT_IN_FILES)
        found.append(SectionReference(path, name, PRESET_AT.get(path), meaning, fields, first.get(name)))
        first.setdefault(name, path)
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


@cache
def _docstrings(record: type[Spec]) -> dict[str, str]:
    """What stands below each field of a record, in one line."""
    found: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        for field, below in pairwise(_classes(cls.__module__).get(cls.__name__, ()) if issubclass(cls, Spec) else ()):
            match field, below:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                    found[name] = " ".join(words.split())
    return found


@cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """The statements of each class in a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _walk(record: type[Spec], path: str) -> Iterator[tuple[str, type[Spec]]]:
    yield path, record
    for name, info in record.model_fields.items():
        if inner := record_in(info.annotation):
            yield from _walk(inner, _within(path, name, info.annotation))


def _within(section: str, name: str, annotation: Any) -> str:
    """The path of the section that a field holds."""
    return _join(section, file_name(name), ANY_NAME if get_origin(annotation) is dict else "")


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _field(record: type[Spec], name: str, section: str, schema: Schema) -> FieldReference:
    info, unit, path = record.model_fields[name], unit_of(name), _join(section, file_name(name))
    meaning = _docstrings(record).get(name, "")
    if unit:
        meaning = _UNIT.sub("", meaning)
    derived = _DEFAULT.search(meaning)
    default = None if info.is_required() else info.get_default(call_default_factory=True)
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
        _within(section, name, info.annotation) if record_in(info.annotation) else "",
        schema,
    )


def _type_words(schema: Schema, unit: str | None, preset: str | None) -> str:
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


def _limit_words(schema: Schema) -> str:
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


def _choices(schema: Schema) -> tuple[Any, ...]:
    """The values of a field that has few, or nothing."""
    if "const" in schema:
        return (schema["const"],)
    return tuple(schema.get("enum", ())) or next(filter(None, map(_choices, schema.get("anyOf", ()))), ())


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


# On the terminal ------------------------------------------------------------------------------------------------------


def fields_view(sections: Iterable[SectionReference], width: int) -> Group:
    """Sections with their fields, each under its whole path; what an earlier section has told is not told again.

    Lines are cut here to `width` characters: rich would fill indented ones with blanks.
    """
    told: set[str] = set()
    parts: list[Text] = []
    for section in sections:
        told.add(section.path)
        parts += [Text("")] if parts else []
        name = section.path or "scenario"
        heading = _lines(f"{name}  {section.meaning.partition(NEWLINE)[0]}", 0, width)
        heading.stylize("bold", 0, len(name))
        parts.append(heading)
        if section.same_as in told:
            parts.append(_lines(f"the same fields as {section.same_as}", 2, width))
            continue
        if section.preset:
            words = f"a name in place of it, or preset: NAME and what differs; flopcast presets list {section.preset}"
            parts.append(_lines(words, 2, width, "dim"))
        for field in section.fields:
            default = field.default_words if field.required else f"default: {field.default_words}"
            facts = _lines(f"{field.path}  {field.type}; {default}", 2, width)
            facts.stylize("dim")
            facts.stylize("not dim bold", 2, 2 + len(field.path))
            parts += [facts, _lines(field.meaning, 6, width)]
    return Group(*parts)


def _lines(words: str, indent: int, width: int, style: str = "") -> Text:
    """Words in lines, all as far in; those after a field's first line further than what it means."""
    further = " " * (indent if indent != 2 else 10)
    cut = wrap(words, width, initial_indent=" " * indent, subsequent_indent=further, break_on_hyphens=False)
    return Text(NEWLINE.join(cut), style)


# For editors ----------------------------------------------------------------------------------------------------------

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILE = r"[/\\]|\.(ya?ml|txt|grid)$"
"""What a path has that no name has."""


def scenario_schema(schedules: Iterable[str]) -> Schema:
    """The schema of scenario files.

    schedules : That plan.schedule may have, beside the path of a grid.
    """
    sections = {section.path: section for section in scenario_sections()}
    defined = {section.record: _shape(section) for section in sections.values()}
    schedule = defined[sections["plan"].record]["properties"]["schedule"]
    schedule["anyOf"] = [{"enum": list(schedules)}, {"type": "string", "pattern": FILE}]
    root = defined.pop(sections[""].record)
    return {"$schema": DIALECT, "title": "flopcast scenario", **root, "$defs": defined}


def _shape(section: SectionReference) -> Schema:
    """Names and types of a section's fields, none of them required."""
    properties: Schema = {}
    if section.preset:
        about = {"description": "The preset from which the other fields here differ."}
        properties["preset"] = about | _preset(section.preset)
    for field in section.fields:
        value = _clean(field.schema, field.unit)
        taken = "Required" if field.required else f"Default: {field.default_words}"
        about = {"description": f"{field.meaning} {taken}."}
        if field.path == "stack.framework":
            value = {"enum": framework_names(titles=True)}
        if kind := PRESET_AT.get(field.path):
            value = {"anyOf": [_preset(kind), value]}
        if field.unit:
            properties[field.name] = {**about, **_clean(field.schema, field.unit, bare=False)}
        else:
            value = _counted(value)
        properties[field.long_path.rpartition(".")[2]] = {**about, **value}
    return {"description": section.meaning, "type": "object", "properties": properties, "additionalProperties": False}


def _preset(kind: str) -> Schema:
    names = list(preset_names(kind))
    if kind == "models":  # or as Hugging Face has it, or a file
        return {"anyOf": [{"enum": names}, {"type": "string", "pattern": "[/.]"}]}
    return {"enum": sorted({*names, *framework_names(titles=True)}) if kind == "stacks" else names}


def _clean(value: Any, unit: str | None = None, bare: bool = True) -> Any:
    """Pydantic's schema without titles and defaults, which descriptions tell.

    unit : what numbers are texts with; or beside these numbers, where they may be `bare`.
    """
    if isinstance(value, list):
        return [_clean(each, unit, bare) for each in value]
    if not isinstance(value, dict):
        return value
    rest = {
        key: _clean(each, unit, bare) for key, each in value.items() if key not in ("title", "default", "description")
    }
    if unit is None or value.get("type") != "number":
        return rest
    text = {"type": "string", "pattern": pattern(unit)}
    return {"anyOf": [text, rest]} if bare else text


def _counted(value: Schema) -> Schema:
    """A number, or a text such as 15T or 4k."""
    if value.get("type") in ("integer", "number"):
        return {"anyOf": [{"type": "string", "pattern": COUNT}, value]}
    return {**value, "anyOf": list(map(_counted, value["anyOf"]))} if "anyOf" in value else value
