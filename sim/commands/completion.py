"""What the shell offers when Tab is pressed: scenario files, names of presets, fields to set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.report.field_reference import FieldReference, SectionReference


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def scenario_files(incomplete: str) -> list[str]:
    """YAML files and folders that the path so far leads to."""
    folder = Path(incomplete).expanduser() if incomplete.endswith("/") else Path(incomplete).expanduser().parent
    shown = incomplete[: incomplete.rfind("/") + 1]
    found = []
    try:
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                found.append(f"{shown}{path.name}/")
            elif path.suffix in (".yaml", ".yml"):
                found.append(f"{shown}{path.name}")
    except OSError:
        return []
    return _matching(found, incomplete)


def scenarios_with_overrides(incomplete: str) -> list[str]:
    """The same; behind an @ the fields that a file's own overrides may set."""
    file, at, begun = incomplete.rpartition("@")
    if not at:
        return scenario_files(incomplete)
    return [f"{file}@{field}" for field in fields(begun)]


def preset(kind: str) -> Callable[[str], list[str]]:
    """Names of presets of one kind."""

    def names(incomplete: str) -> list[str]:
        from sim.specs.presets import preset_names

        return _matching(preset_names(kind), incomplete)

    return names


def any_preset(incomplete: str) -> list[str]:
    """Names of presets of every kind, and of the scenarios that ship."""
    from sim.shipped import shipped_scenarios
    from sim.specs.presets import KINDS, preset_names

    known = {name for kind in KINDS for name in preset_names(kind)}
    return _matching(sorted(known.union(shipped_scenarios())), incomplete)


def kinds(incomplete: str) -> list[str]:
    """Kinds of presets."""
    from sim.specs.presets import KINDS

    return _matching((*KINDS, "schedules", "scenarios"), incomplete)


def frameworks_to_export_to(incomplete: str) -> list[str]:
    """Frameworks that a scenario can be exported to."""
    from sim.foreign.exporters import FRAMEWORKS

    return _matching(FRAMEWORKS, incomplete)


def engines(incomplete: str) -> list[str]:
    """Names of engines."""
    from sim.engines import ENGINES

    return _matching(ENGINES, incomplete)


def schedules(incomplete: str) -> list[str]:
    """Names of schedules."""
    from sim.schedules import schedule_names

    return _matching(schedule_names(), incomplete)


def fields(incomplete: str) -> list[str]:
    """`section.field=` of every field of a scenario file; whole sections by preset."""
    from sim.report.field_reference import scenario_sections

    sections = scenario_sections()
    whole = [f"{section.path}=" for section in sections if section.preset]
    return _matching([*(f"{field.path}=" for field in _values(sections)), *whole], incomplete)


def field_paths(incomplete: str) -> list[str]:
    """Sections and fields of a scenario file."""
    from sim.report.field_reference import scenario_sections

    sections = scenario_sections()
    paths = [section.path for section in sections if section.path]
    return _matching([*paths, *(field.path for field in _values(sections))], incomplete)


def _values(sections: Iterable[SectionReference]) -> Iterable[FieldReference]:
    """Fields that hold a value rather than fields of their own."""
    return (field for section in sections for field in section.fields if not field.section)
