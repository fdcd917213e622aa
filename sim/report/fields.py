"""The fields of a scenario file: as a list on the terminal, and as a JSON schema for editors.

What a value may be, pydantic says of each record; here names lose their units, quantities become texts, and presets may
stand for sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

from rich.console import Group
from rich.text import Text

from sim.report.field_reference import ANY_NAME, SectionReference, json_schemas, scenario_sections
from sim.specs.frameworks import framework_names
from sim.specs.presets import preset_names
from sim.units import COUNT, pattern

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILE = r"[/\\]|\.(ya?ml|txt|grid)$"
"""What a path has that no name has."""

Schema = dict[str, Any]


def scenario_schema(schedules: Iterable[str] = ()) -> Schema:
    """The schema of scenario files.

    schedules : That plan.schedule may have, beside the path of a grid; any if not given.
    """
    sections = {section.path: section for section in scenario_sections()}
    values = json_schemas()
    defined = {_title(section): _shape(section, sections, values) for section in sections.values()}
    names = list(schedules)
    if names:
        plan = defined[_title(sections["plan"])]["properties"]
        plan["schedule"] = {**plan["schedule"], "anyOf": [{"enum": names}, {"type": "string", "pattern": FILE}]}
    root = defined.pop(_title(sections[""]))
    rules = _completeness(sections[""], sections)
    return {"$schema": DIALECT, "title": "flopcast scenario", **root, "allOf": [rules], "$defs": defined}


def _title(section: SectionReference) -> str:
    return section.record.__name__


def _shape(section: SectionReference, sections: Mapping[str, SectionReference], values: Mapping[str, Schema]) -> Schema:
    """Names and types of a section's fields, none of them required."""
    properties: Schema = {}
    if section.preset:
        properties["preset"] = {
            "description": "The preset from which the other fields here differ.",
            **_preset(section.preset),
        }
    for field in section.fields:
        value = _clean(values[_title(section)][field.long_name])
        taken = "Required" if field.required else f"Default: {field.default_words}"
        about = {"description": f"{field.meaning} {taken}."}
        if field.path == "stack.framework":
            value = {"enum": framework_names(titles=True)}
        if field.section and (within := sections.get(field.path)) and within.preset:
            value = {"anyOf": [_preset(within.preset), value]}
        if not field.unit:
            value = _counted(value)
        else:
            properties[field.name] = {**about, **_quantity(value, field.unit, bare=False)}
            value = _quantity(value, field.unit, bare=True)
        properties[field.long_name] = {**about, **value}
    return {"description": section.meaning, "type": "object", "properties": properties, "additionalProperties": False}


def _preset(kind: str) -> Schema:
    names = preset_names(kind)
    if kind == "models":  # or as Hugging Face has it, or a file
        return {"anyOf": [{"enum": names}, {"type": "string", "pattern": "[/.]"}]}
    return {"enum": sorted({*names, *framework_names(titles=True)}) if kind == "stacks" else names}


def _clean(value: Any) -> Any:
    """Pydantic's schema without titles and defaults, which descriptions tell."""
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _clean(each) for key, each in value.items() if key not in ("title", "default", "description")}


def _counted(value: Schema) -> Schema:
    """A number, or a text such as 15T or 4k."""
    if value.get("type") in ("integer", "number"):
        return {"anyOf": [{"type": "string", "pattern": COUNT}, value]}
    return {**value, "anyOf": list(map(_counted, value["anyOf"]))} if "anyOf" in value else value


def _quantity(value: Any, unit: str, bare: bool) -> Any:
    """Texts with a unit in place of numbers, or beside them under the name that has the unit."""
    if isinstance(value, list):
        return [_quantity(each, unit, bare) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "number":
        text = {"type": "string", "pattern": pattern(unit)}
        return {"anyOf": [text, value]} if bare else text
    return {key: _quantity(each, unit, bare) for key, each in value.items()}


def _completeness(section: SectionReference, sections: Mapping[str, SectionReference]) -> Schema:
    """What must be given, here and within, unless a preset gives it."""
    required = [field for field in section.fields if field.required]
    plain = [field.name for field in required if not field.unit]
    quantities = [{"anyOf": [{"required": [field.name]}, {"required": [field.long_name]}]} for field in required
                  if field.unit]  # fmt: skip
    inner: Schema = {}
    for field in section.fields:
        one, some = sections.get(field.path), sections.get(f"{field.path}.{ANY_NAME}")
        if one and (within := _completeness(one, sections)):
            inner[field.name] = within
        if some and (within := _completeness(some, sections)):
            inner[field.name] = {"additionalProperties": within}
    everything = {"required": plain, "allOf": quantities, "properties": inner}
    rules = {key: value for key, value in everything.items() if value}
    if section.path == "stack":
        return {}  # what is not given comes from a framework
    if rules and section.preset:
        return {"if": {"type": "object", "not": {"required": ["preset"]}}, "then": rules}
    return rules


NEWLINE = "\n"


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
