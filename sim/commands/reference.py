"""`flopcast fields`, `schema` and `doctor`: what a scenario file may hold, and what is installed where."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sim.commands.options import AsJson, Json, print_answer
from sim.errors import SpecError
from sim.files import IS_CHECKOUT, write_text
from sim.schedules import schedule_names
from sim.specs import Profile
from sim.specs.presets import load_preset, preset_names, split_profile
from sim.table import Table

if TYPE_CHECKING:
    from rich.console import Group


def fields(which: str | None = None, *, as_json: Json = False) -> None:
    """What a scenario file may hold: each field's type, default and meaning.

    which SECTION|FIELD : A section, a field, or a part of a name; all of them if not given.
    """
    from sim.report.field_reference import find_fields, scenario_sections
    from sim.report.fields import fields_view

    sections = scenario_sections() if which is None else find_fields(which)
    facts = [field.to_dict() for section in sections for field in section.fields]
    print_answer(as_json, lambda: facts, lambda: partial(fields_view, sections))


def schema(*, output: Path | None = None) -> None:
    """The JSON Schema of a scenario file, by which editors check and complete it.

    output --output -o FILE : Write it there.
    """
    from sim.report.fields import scenario_schema

    text = json.dumps(scenario_schema(schedule_names()), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        typer.echo(f"{output}: begin a scenario with '# yaml-language-server: $schema={output}'")


EXTRAS = {
    "torch": "measure this machine, and train a small model for real",
    "notebooks": "the notebooks, with their sliders",
}
"""Extras for users, and what they are for."""
_REQUIREMENT = re.compile(r"([\w.-]+)(.*?)(?:;\s*extra\s*==\s*['\"](\w+)['\"])?$")


def doctor(as_json: AsJson = False) -> None:
    """Versions of what flopcast runs on, extras that are missing, and what the profiles were measured on.

    Exit code 2 where something that flopcast needs is missing.
    """
    import platform

    import sim

    found: dict[str, Any] = {
        "flopcast": sim.__version__,
        "installed": {"from": "a checkout" if IS_CHECKOUT else "a wheel", "at": str(Path(sim.__file__).parents[1])},
        "python": platform.python_version(),
        "packages": _packages(),
        "profiles": [_profile(name) for name in preset_names("profiles")],
    }
    print_answer(as_json, lambda: found, lambda: _diagnosis(found))
    missing = [each["name"] for each in found["packages"] if each["extra"] is None and each["version"] is None]
    if missing:
        raise SpecError(f"flopcast needs {', '.join(missing)}; pip install {' '.join(missing)}")


def _packages() -> list[dict[str, Any]]:
    """Packages that flopcast and its extras ask for: name, what is asked, the version that is there, the extra."""
    from importlib.metadata import PackageNotFoundError, requires, version

    def there(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    try:
        asked = [match for text in requires("flopcast") or [] if (match := _REQUIREMENT.match(text))]
    except PackageNotFoundError:  # a checkout that was not installed
        return []
    return [
        {"name": name, "asked": words.strip(), "version": there(name), "extra": extra}
        for name, words, extra in (match.groups() for match in asked)
        if extra is None or extra in EXTRAS
    ]


def _profile(name: str) -> dict[str, Any]:
    """What a shipped profile rests on."""
    profile = Profile.read(split_profile(load_preset("profiles", name))[0], f"profile {name!r}")
    origin = profile.provenance
    facts = {"name": name, "gpu": profile.gpu, "date": origin.date, "method": origin.method}
    return {**facts, "not_measured": list(origin.not_measured)}


def _diagnosis(found: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.markup import escape

    from sim.report.terminal import indented, title

    installed = found["installed"]
    packages, profiles = (Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False) for _ in range(2))
    for each in found["packages"]:
        of = f"extra {each['extra']}: {EXTRAS[each['extra']]}" if each["extra"] else ""
        remedy = f"missing; pip install 'flopcast[{each['extra']}]'" if each["extra"] else "missing"
        packages.add_row(*map(escape, (each["name"], each["version"] or remedy, each["asked"], of)))
    for each in found["profiles"]:
        profiles.add_row(each["name"], each["date"], each["method"])
    return Group(
        title(f"flopcast {found['flopcast']}", f"  from {installed['from']}, {installed['at']}"),
        title(f"Python {found['python']}"),
        "",
        title("Packages"),
        indented(packages),
        "",
        title("Profiles that ship"),
        indented(profiles),
        "\nflopcast calibrate show NAME lists what a profile leaves unmeasured.",
    )
