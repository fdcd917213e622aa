"""A preset's values with their sources, and what a framework comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.terminal import indented, title
from sim.specs import GpuSpec, presets
from sim.specs.base import file_name, unit_of
from sim.specs.framework_plans import plan_rules
from sim.specs.frameworks import ResolvedStack, resolve_stack, rules_of
from sim.specs.presets import preset_source, raw_preset, source_rows
from sim.specs.stack import StackSpec
from sim.table import Table, rows_table
from sim.units import show, show_time, value_words

Row = tuple[str, Any, str]
"""Field, value, source."""
HEADS = ("field", "value", "source")


def preset_view(kind: str, name: str) -> Table:
    """A preset's values as written, and the source of each."""
    return _table(preset_source(kind, name), f"{kind}/{name}")


def datasheet_view(gpu: GpuSpec) -> Group:
    """The profile that is made for a GPU from its datasheet, below the one source of its values."""
    rows = [(field, value_words(value)) for field, value, *_ in source_rows(presets.datasheet_profile(gpu))]
    source = Text(f"Values are {presets.shipped_table()['source']}.", style="dim")
    table = rows_table(HEADS[:2], rows, left=HEADS[:2], wrap=["value"])
    return Group(title(f"profile datasheet for {gpu.name}"), source, "", table)


def framework_view(framework: str, described: Mapping[str, Any]) -> Group:
    """What a framework does for one description: its stack with defaults, what else follows, and what would otherwise.

    described : sections of a scenario, presets resolved; `stack` as it is stated.
    """
    data, found = raw_preset("frameworks", framework), resolve_stack(described["stack"], described)
    rows, elsewhere = _resolved(found, described["stack"])
    habits, applied = data.get("layouts", {}), {source for _, _, source in found.consequences}
    unmet = [
        (_words(rule.get("when", {})), _words(rule["set"]), rule["source"])
        for rule in rules_of(framework)
        if rule["source"] not in applied
    ]
    asked = [(f"{rule.field}: {rule.must}", rule.why, rule.source) for rule in plan_rules(framework, found.version)]
    about = {
        "other names": ", ".join(data.get("aliases", ())) or "none",
        "stacks": ", ".join(f"{release['stack']} since {release['since']}" for release in data["releases"]),
        f"stack {found.release}": raw_preset("stacks", found.release).get("source", ""),
    }
    tables = (
        (rows, "stack", HEADS),
        (elsewhere, "where a scenario says nothing else", HEADS),
        (
            [(name, value, habits["source"]) for name, value in habits.items() if name != "source"],
            "layouts that a table of runs leaves open",
            HEADS,
        ),
        (unmet, "rules that do not apply here", ("when", "then", "source")),
        (asked, "what plans it can run", ("must hold", "as", "source")),
    )
    blocks: list[RenderableType] = [
        title(f"{data['title']} {found.version}", f"  {data['source']}"),
        indented(Text("\n".join(f"{name}: {words}" for name, words in about.items()), style="dim")),
    ]
    for body, name, heads in tables:
        blocks += ["", _table(body, name, heads)] if body else []
    return Group(*blocks)


def _resolved(found: ResolvedStack, stated: Mapping[str, Any]) -> tuple[list[Row], list[Row]]:
    """(every field of the stack with where its value comes from, what else follows elsewhere)."""
    said: dict[str, Row] = {}
    general = raw_preset("stacks", found.release).get("source")
    for path, value, source in preset_source("stacks", found.release):
        own = "" if source == general else f": {source}"
        said[file_name(path)] = (path, value, f"stack {found.release}{own}")
    elsewhere: list[Row] = []
    for path, value, source in found.consequences:
        section, _, field = path.partition(".")
        if section == "stack":
            said[field] = (field, value, source)
        else:
            elsewhere.append((path, value, source))
    for key, value in stated.items():
        if key not in ("framework", "preset", "version"):
            said[file_name(str(key))] = (str(key), value, "stated")
    record = StackSpec.read(found.fields, "stack")
    names = {name: file_name(name) for name in StackSpec.model_fields if name not in ("framework", "version")}
    rows = [
        said.get(short, (short, _quantity(name, getattr(record, name)), "default")) for name, short in names.items()
    ]
    return rows, elsewhere


def _words(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value_words(value)}" for name, value in fields.items())


def _quantity(name: str, value: Any) -> Any:
    unit = unit_of(name)
    if unit == "s":
        return show_time(value)
    return show(value, "B") if unit == "bytes" else value


def _table(rows: Iterable[Row], name: str, heads: tuple[str, ...] = HEADS) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, style="dim" if head == "source" else None, overflow="fold")
    for field, value, source in rows:
        table.add_row(field, value_words(value), source)
    return table
