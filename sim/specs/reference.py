"""Every field that a scenario file may hold: its name there, type, default and meaning, read from the records.

What a field means is the docstring below it. Those are read from the source when they are asked for: pydantic could
keep them in the records, but would read every source at each import.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from sim.errors import SpecError, nearest
from sim.specs.base import Spec, file_name, unit_of
from sim.specs.loading import PRESET_AT
from sim.specs.scenario import Scenario
from sim.units import EXAMPLES, NOUNS, show, show_time

ANY_NAME = "NAME"
"""In paths, what stands for a name of the reader's own, such as that of a level of switches."""
NOT_IN_FILES = {"assumed"}
"""Fields of a scenario that reading a file fills in."""
_DEFAULT = re.compile(r"\s*Default: (?P<words>.*?)\.(?=\s|$)", re.DOTALL)
_UNIT = re.compile(r"\s*\[[^]]+\]$")
_ZEROS = re.compile(r"\.0+(?= )")
_UNIT_NAMES = {"bytes": "B", "bytes_per_s": "B/s", "flop_per_s": "FLOP/s", "flop": "FLOP", "w": "W", "s": "s"}


@dataclass(frozen=True, slots=True)
class FieldReference:
    """A field as a scenario file writes it.

    path : with its sections, without its unit: cluster.node.gpu.memory.
    long_path : with the unit in the name, where bare SI numbers are accepted.
    type : what may be written there, in words.
    choices : the values, where there are few.
    unit : its dimension, as in `sim.units`; None for what has none.
    required : it has no default.
    default : the value taken where it is left out; None where there is none, or where `derived` says it.
    derived : in words, what a default follows from.
    meaning : the docstring below it in the record.
    section : what is below it has fields of its own.
    under_names : it holds some of that under names.
    """

    path: str
    long_path: str
    type: str
    choices: tuple[Any, ...]
    unit: str | None
    required: bool
    default: Any
    derived: str | None
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

    @property
    def default_words(self) -> str:
        """'required', or what is taken where it is left out, as a file would say it."""
        if self.required:
            return "required"
        return self.derived or _value_words(self.default, self.unit)


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
                _paragraphs(record.__doc__ or ""),
                tuple(_field(record, name, path) for name in record.model_fields if name not in NOT_IN_FILES),
                first.get(record),
            )
        )
        first.setdefault(record, path)
    return tuple(found)


def find_fields(word: str) -> tuple[SectionReference, ...]:
    """The sections and fields that a word asks for; of a section where some fields are meant, only those.

    Parameters
    ----------
    word : str
        A section, which stands for those within it too, or `scenario` for what no section holds; a field's path by
        either of its names, or the last part of it; a part of a name; or else a word of what fields mean.

    Raises
    ------
    SpecError
        There is none; the message has the nearest.
    """
    sections = scenario_sections()
    plain = ".".join(file_name(part) for part in word.strip().strip(".").split(".")).lower()
    if plain == "scenario":
        return sections[:1]
    if not plain:
        raise SpecError(f"no field or section {word!r}; `flopcast fields` lists them all")
    for matches in (_is_at, _ends_in, _is_part_of):
        paths = (section.path for section in sections if matches is not _is_part_of)
        whole = {path for path in paths if matches(plain, path)}
        named = {field.path for section in sections for field in section.fields if matches(plain, field.path)}
        if whole or named:
            return _chosen(sections, whole, named - whole)
    meant = {field.path for section in sections for field in section.fields if plain in field.meaning.lower()}
    if meant:
        return _chosen(sections, set(), meant)
    raise SpecError(f"no field or section {word!r}{_nearest(word, sections)}")


def docstrings(record: type[Spec]) -> dict[str, str]:
    """What stands below each field of a record, in one line."""
    found: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        if issubclass(cls, Spec):
            found |= _docstrings_in(cls.__module__).get(cls.__name__, {})
    return found


def inner_record(annotation: Any) -> tuple[type[Spec] | None, bool]:
    """The record that a field of this annotation holds, if any, and whether it holds some of them under names."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return inner_record(get_args(annotation)[0])
    if origin in (Union, UnionType):
        found = [inner_record(each) for each in get_args(annotation)]
        return next((each for each in found if each[0]), (None, False))
    if origin is dict:
        return inner_record(get_args(annotation)[1])[0], True
    return (annotation, False) if isinstance(annotation, type) and issubclass(annotation, Spec) else (None, False)


@cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Of each class in a module, its fields' docstrings."""
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
        inner, under_names = inner_record(info.annotation)
        if inner is not None:
            yield from _walk(inner, _join(path, file_name(name), ANY_NAME if under_names else ""))


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _field(record: type[Spec], name: str, section: str) -> FieldReference:
    info, unit = record.model_fields[name], unit_of(name)
    path = _join(section, file_name(name))
    meaning = docstrings(record).get(name, "")
    if unit:
        meaning = _UNIT.sub("", meaning)
    derived = _DEFAULT.search(meaning)
    default = None if info.is_required() else info.get_default(call_default_factory=True)
    return FieldReference(
        path,
        _join(section, name),
        _type_words(info.annotation, info.metadata, unit, PRESET_AT.get(path)),
        _choices(info.annotation),
        unit,
        info.is_required() and derived is None,
        None if derived else default,
        derived["words"] if derived else None,
        _DEFAULT.sub("", meaning).strip(),
        *_holds(info.annotation),
    )


def _holds(annotation: Any) -> tuple[bool, bool]:
    """Whether a field holds fields of its own, and whether under names."""
    record, under_names = inner_record(annotation)
    return record is not None, under_names


def _type_words(annotation: Any, limits: Iterable[Any], unit: str | None, preset: str | None) -> str:
    """What may be written, in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    words: str
    if origin is Annotated:
        return _type_words(inside[0], [*limits, *inside[1:]], unit, preset)
    if origin in (Union, UnionType):
        kinds = [each for each in inside if each is not type(None)]
        return " or ".join(_type_words(each, limits, unit, preset) for each in kinds)
    if origin is Literal:
        words = _listed(inside)
    elif origin is dict:
        value = _type_words(inside[1], (), unit, None)
        names = f"each of {_listed(get_args(inside[0]), 'and')}" if get_args(inside[0]) else "names of your own"
        words = f"under {names}: {value}"
    elif origin is tuple:
        value = _type_words(inside[0], (), unit, None)
        words = f"list, each {value}" if inside[-1] is ... else f"list of {len(inside)}, each {value}"
    elif inner_record(annotation)[0] is not None:
        words = f"a name (flopcast presets list {preset}) or fields" if preset else "fields"
    elif unit:
        words = f"{NOUNS[unit]} such as {EXAMPLES[unit].partition(' or ')[0].strip(chr(39))}"
    elif annotation is bool:
        words = "true or false"
    elif annotation in (int, float):
        words = f"{'whole ' if annotation is int else ''}number{_limit_words(annotation, limits)}"
    else:
        words = "text" if annotation is str else str(annotation)
    return words


def _limit_words(kind: type, limits: Iterable[Any]) -> str:
    """What follows 'number': from 0 to 1, above 0."""
    bounds = {
        name: getattr(limit, name)
        for limit in limits
        for name in ("gt", "ge", "lt", "le")
        if getattr(limit, name, None) is not None
    }
    if kind is int and "gt" in bounds:
        bounds["ge"] = bounds.pop("gt") + 1
    most = " to" if "ge" in bounds else ", at most"
    says = {"gt": " above", "ge": " from", "le": most, "lt": ", below"}
    return "".join(f"{words} {bounds[name]:g}" for name, words in says.items() if name in bounds)


def _choices(annotation: Any) -> tuple[Any, ...]:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return inside
    if origin in (Annotated, Union, UnionType):
        return next((found for each in inside if (found := _choices(each))), ())
    return ()


def _listed(values: Iterable[Any], last: str = "or") -> str:
    *others, final = (repr(value) if str(value).isdigit() else str(value) for value in values)
    return f"{', '.join(others)} {last} {final}" if others else final


def _value_words(value: Any, unit: str | None) -> str:
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, tuple, Mapping)) and not value:
        return "empty"
    if isinstance(value, (int, float)):
        if unit == "s" and value:
            return _ZEROS.sub("", show_time(value))
        return _ZEROS.sub("", show(value, _UNIT_NAMES[unit])) if unit else f"{value:g}"
    return _listed([value])


def _paragraphs(docstring: str) -> str:
    """A docstring with a line for each paragraph."""
    blocks = inspect.cleandoc(docstring).split("\n\n")
    return "\n".join(" ".join(block.split()) for block in blocks)


def _is_at(word: str, path: str) -> bool:
    """Whether the word is this path, with any name where any may stand."""
    names, parts = word.split("."), path.split(".")
    return len(names) == len(parts) and all(
        part == ANY_NAME or part.lower() == name for name, part in zip(names, parts, strict=True)
    )


def _ends_in(word: str, path: str) -> bool:
    return path.lower().endswith(f".{word}")


def _is_part_of(word: str, path: str) -> bool:
    return word in (path if "." in word else path.rpartition(".")[2]).lower()


def _chosen(sections: Iterable[SectionReference], whole: Set[str], named: Set[str]) -> tuple[SectionReference, ...]:
    """Some sections whole, with those within them, and of the others the fields that are named, if any."""
    found = []
    for section in sections:
        if any(f"{section.path}.".startswith(f"{path}.") for path in whole):
            found.append(section)
        elif fields := tuple(field for field in section.fields if field.path in named):
            found.append(replace(section, fields=fields, preset=None, same_as=None))
    return tuple(found)


def _nearest(word: str, sections: Iterable[SectionReference]) -> str:
    """A hint with the nearest name, or path where one was given; all of them would be too many."""
    paths = {field.path for section in sections for field in section.fields}
    hint = nearest(word, paths if "." in word else {path.rpartition(".")[2] for path in paths})
    return hint if len(hint) < 200 else "; `flopcast fields` lists them all"
