"""The fields of a scenario file as a page, docs/fields.md, made of the records of sim/specs.

python docs/fields.py > docs/fields.md
"""

from __future__ import annotations

from sim.report.fields import FieldReference, SectionReference, scenario_sections

INTRODUCTION = """\
# Fields of a scenario file

What may stand in a scenario, section by section. The records in `sim/specs` are the source: this page
is made of them (`make fields`), and on the command line the same answers come one at a time:

```bash
flopcast fields plan                 # a section, with those within it
flopcast fields plan.zero_stage      # a field
flopcast fields recompute            # whatever has that in its name
```

- A section that has presets may be the name of one (`model: gpt3-175b`), or `preset:` with fields that differ from it
  (`cluster: {preset: selene, num_nodes: 16}`).
- A quantity carries its unit: `memory: 80 GB`. Bare SI numbers are accepted under the name with the unit at its end,
  `memory_bytes: 80e9`.
- `--set plan.tp=4` and the axes of a search take the paths of this page.
- A default in words follows from other fields. *Not given* means that nothing is taken in its place.

An editor can check a scenario while it is typed, complete its names and show what they mean. Write the JSON Schema of
these fields, and name it in the file's first line, which the YAML extension of VS Code and every other editor with
yaml-language-server reads:

```bash
flopcast schema -o scenario.schema.json
```

```yaml
# yaml-language-server: $schema=scenario.schema.json
model: gpt3-175b
```

The path is relative to the scenario; those in `scenarios/` name the one beside them. The schema knows names, types and
units; how fields go together (which degrees divide what, how many GPUs there are) `flopcast estimate` says.
"""


def fields_page() -> str:
    """Return all sections as a page in Markdown."""
    return "\n".join([INTRODUCTION, *(_section_page(section) for section in scenario_sections())])


def _section_page(section: SectionReference) -> str:
    lines = [f"## {_name(section.path) if section.path else 'The file'}", ""]
    if section.same_as:
        return "\n".join([*lines, f"The same fields as {_name(section.same_as)}.", ""])
    for paragraph in section.meaning.splitlines():
        lines += [paragraph, ""]
    if section.preset:
        lines += [f"`flopcast presets list {section.preset}` names those that ship.", ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{field.name}` | {_type(field)} | {_default(field)} | {_cell(field.meaning)} |" for field in section.fields
    ]
    return "\n".join([*lines, ""])


def _name(path: str) -> str:
    return f"`{path}`"


def _type(field: FieldReference) -> str:
    """In words; fields of its own are a link to their section."""
    if not field.within:
        return _cell(field.type)
    words, _, last = field.type.rpartition("fields")
    section = field.within.replace(".", "").lower()
    return f"{_cell('a preset or ' if 'presets list' in words else words)}[fields](#{section}){last}"


def _default(field: FieldReference) -> str:
    plain = field.required or field.derived_default or field.default in (None, "", (), {})
    return _cell(field.default_words) if plain else f"`{field.default_words}`"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    print(fields_page(), end="")
