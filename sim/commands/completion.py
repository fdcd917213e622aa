"""What the shell offers when Tab is pressed: scenario files, names of presets, fields to set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def _offer(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Words that go on as what is typed; they are made, and their modules loaded, when Tab is pressed."""

    def offered(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return offered


def scenario_files(incomplete: str) -> list[str]:
    """YAML files and folders that the path so far leads to."""
    folder = Path(incomplete).expanduser() if incomplete.endswith("/") else Path(incomplete).expanduser().parent
    shown = incomplete[: incomplete.rfind("/") + 1]
    try:
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
        names = [f"{path.name}/" if path.is_dir() else path.name for path in paths]
    except OSError:
        return []
    return [
        shown + name
        for name in names
        if name.endswith(("/", ".yaml", ".yml")) and (shown + name).startswith(incomplete)
    ]


def scenarios_with_overrides(incomplete: str) -> list[str]:
    """YAML files and folders; behind an @ the fields that a file's own overrides may set."""
    file, at, begun = incomplete.rpartition("@")
    return [f"{file}@{field}" for field in fields(begun)] if at else scenario_files(incomplete)


def preset(kind: str) -> Callable[[str], list[str]]:
    """Names of presets of one kind."""

    def names() -> list[str]:
        from sim.specs.presets import preset_names

        return preset_names(kind)

    return _offer(names)


def _any_preset() -> list[str]:
    from sim.shipped import shipped_scenarios
    from sim.specs.presets import KINDS, preset_names

    return sorted({name for kind in KINDS for name in preset_names(kind)}.union(shipped_scenarios()))


def _kinds() -> list[str]:
    from sim.specs.presets import KINDS

    return [*KINDS, "schedules", "scenarios"]


def _frameworks_to_export_to() -> Iterable[str]:
    from sim.foreign.exporters import FRAMEWORKS

    return FRAMEWORKS


def _engines() -> Iterable[str]:
    from sim.engines import ENGINES

    return ENGINES


def _schedules() -> list[str]:
    from sim.schedules import schedule_names

    return schedule_names()


def _values() -> list[str]:
    """Fields that hold a value rather than fields of their own."""
    from sim.report.field_reference import scenario_sections

    return [field.path for section in scenario_sections() for field in section.fields if not field.section]


def _sections(with_presets: bool) -> list[str]:
    from sim.report.field_reference import scenario_sections

    return [each.path for each in scenario_sections() if (each.preset if with_presets else each.path)]


any_preset, kinds, engines, schedules = map(_offer, (_any_preset, _kinds, _engines, _schedules))
frameworks_to_export_to = _offer(_frameworks_to_export_to)
fields = _offer(lambda: [f"{path}=" for path in (*_values(), *_sections(with_presets=True))])
"""`section.field=` of every field of a scenario file; whole sections by preset."""
field_paths = _offer(lambda: [*_sections(with_presets=False), *_values()])
"""Sections and fields of a scenario file."""
