"""`flopcast doctor`: what is installed where, what is missing and how to get it, what the shipped profiles rest on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sim.commands.options import AsJson, print_answer
from sim.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Group

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
    found = diagnosis()
    print_answer(as_json, lambda: found, lambda: _view(found))
    missing = [each["name"] for each in found["packages"] if each["extra"] is None and each["version"] is None]
    if missing:
        raise SpecError(f"flopcast needs {', '.join(missing)}; pip install {' '.join(missing)}")


def diagnosis() -> dict[str, Any]:
    """flopcast's and Python's versions, where it is installed, packages, profiles: plain data."""
    import platform
    from pathlib import Path

    import sim
    from sim.files import IS_CHECKOUT

    return {
        "flopcast": sim.__version__,
        "installed": {"from": "a checkout" if IS_CHECKOUT else "a wheel", "at": str(Path(sim.__file__).parents[1])},
        "python": platform.python_version(),
        "packages": _packages(),
        "profiles": [_profile(name) for name in _names()],
    }


def _packages() -> list[dict[str, Any]]:
    """Packages that flopcast and its extras ask for: name, what is asked, the version that is there, the extra."""
    from importlib.metadata import PackageNotFoundError, requires, version

    try:
        asked = requires("flopcast") or []
    except PackageNotFoundError:  # a checkout that was not installed
        return []
    rows = []
    for text in asked:
        match = _REQUIREMENT.match(text)
        if match is None or (match[3] is not None and match[3] not in EXTRAS):
            continue
        try:
            there = version(match[1])
        except PackageNotFoundError:
            there = None
        rows.append({"name": match[1], "asked": match[2].strip(), "version": there, "extra": match[3]})
    return rows


def _names() -> list[str]:
    from sim.specs.presets import preset_names

    return preset_names("profiles")


def _profile(name: str) -> dict[str, Any]:
    """What a shipped profile rests on."""
    from sim.specs import Profile
    from sim.specs.presets import load_preset, split_profile

    profile = Profile.read(split_profile(load_preset("profiles", name))[0], f"profile {name!r}")
    return {
        "name": name,
        "gpu": profile.gpu,
        "date": profile.provenance.date,
        "method": profile.provenance.method,
        "not_measured": list(profile.provenance.not_measured),
    }


def _view(found: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.markup import escape

    from sim.report.terminal import indented, title
    from sim.table import Table

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
