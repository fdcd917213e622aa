"""What files of frameworks (presets/frameworks) say: names, aliases, releases, rules, and when a version was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sim.errors import SpecError, nearest
from sim.specs.presets import load_preset, preset_names, raw_preset

LATEST, NEVER = "latest", "never"
_NEVER = (9999, 0)
_DATE = re.compile(r"(20\d\d)(?:-(\d\d?)(?:-\d\d?)?)?$")
_MONTH = re.compile(r"v?([123]\d)\.(\d\d?)(?!\d)")
"""A date, and a release named by its year and month."""
Date = tuple[int, int]


def framework_names(titles: bool = False) -> list[str]:
    """Names and aliases of all frameworks, in lower case.

    titles : and as frameworks write themselves, where that is a name or an alias but for its case.
    """
    known = preset_names("frameworks")
    names = {*known, *(alias for name in known for alias in raw_preset("frameworks", name).get("aliases", ()))}
    written = (str(raw_preset("frameworks", name)["title"]) for name in known if titles)
    return sorted({*names, *(title for title in written if title.lower() in names)})


def find_framework(name: str) -> str | None:
    """The framework of this name or alias, or None."""
    known, wanted = preset_names("frameworks"), name.strip().lower()
    if wanted in known:
        return wanted
    return next((each for each in known if wanted in raw_preset("frameworks", each).get("aliases", ())), None)


def framework_named(name: str) -> str:
    """The framework of this name, alias, or stack preset.

    Raises
    ------
    SpecError
        There is none; the message has the nearest.
    """
    found, wanted = find_framework(name), name.strip().lower()
    if found is not None:
        return found
    if wanted in preset_names("stacks"):
        return str(load_preset("stacks", wanted).get("framework") or wanted)
    known = preset_names("frameworks")
    hint = nearest(wanted, framework_names())
    raise SpecError(
        f"unknown framework {name!r}{hint if len(hint) < 200 else ''}; known are {', '.join(known)}; for another one "
        "take framework: unknown, which is PyTorch's of its time with wide intervals, and set what differs (flopcast "
        "fields stack)"
    )


def rules_of(framework: str) -> list[dict[str, Any]]:
    """A framework's rules, and those of the one that it is like, in the order in which they are asked."""
    return list(_asked(framework)) if framework in preset_names("frameworks") else []


def layouts_of(framework: str) -> dict[str, Any]:
    """How a framework's recipes fill in a layout that a description leaves open and its authors tuned."""
    found: dict[str, Any] = raw_preset("frameworks", framework).get("layouts", {})
    return found


def halves_attention(framework: str, version: str) -> bool:
    """Whether the FLOP/s that a framework of a version prints count half of causal attention's scores and values."""
    data = raw_preset("frameworks", framework) if framework in preset_names("frameworks") else {}
    if "like" in data and "flops" not in data:
        return halves_attention(data["like"], version)
    since = data.get("flops", {}).get("attention_halved_since")
    return since not in (None, NEVER) and date_of(version, framework) >= date_of(str(since), framework)


def date_of(version: str, framework: str) -> Date:
    """Year and month of a version: a date, a release named by year and month, or a tag that the framework's file knows.

    Raises
    ------
    SpecError
        It is none of them.
    """
    if version in ("", LATEST):
        return _NEVER
    date = _DATE.match(version) or _MONTH.match(version)
    if date and 1 <= int(date[2] or 1) <= 12:
        year = int(date[1])
        return (year if year >= 2000 else 2000 + year), int(date[2] or 1)
    tags = _tags(framework)
    for tag, since in tags.items():
        if version.removeprefix("v").startswith(tag.removeprefix("v")):
            return date_of(since, framework)
    if not date and not _ages(framework):
        return _NEVER  # whichever it is, it is the same here
    known = f", a tag that begins with {', '.join(tags)}" if tags else ""
    raise SpecError(
        f"stack.version = {version!r} is no version of {framework}: write a date (2024-07), a release by year and "
        f"month (24.07){known}, or latest"
    )


def _tags(framework: str) -> dict[str, str]:
    """How versions of a framework, or of the one that it names or is like, begin, and a date of each."""
    data = raw_preset("frameworks", framework)
    own: dict[str, str] | str = data.get("tags", {})
    if isinstance(own, str):
        return _tags(own)
    return own if own or "like" not in data else _tags(data["like"])


def _ages(framework: str) -> bool:
    """Whether anything of a framework depends on its version."""
    conditions = {key for rule in _asked(framework) for key in rule.get("when", {})}
    return len(releases_of(framework)) > 1 or bool(conditions & {"since", "until"})


def releases_of(framework: str) -> list[dict[str, Any]]:
    """Which stack a framework had since when, in order."""
    found: list[dict[str, Any]] = raw_preset("frameworks", framework)["releases"]
    return found


def release_of(framework: str, version: str, preset: Any) -> dict[str, Any]:
    """The release that a version belongs to, or that a stack preset is of; without either the latest."""
    releases = releases_of(framework)
    of_preset = [release for release in releases if release["stack"] == preset]
    if version:
        date = date_of(version, framework)
        before = [release for release in releases if date_of(str(release["since"]), framework) <= date]
        return before[-1] if before else releases[0]
    return of_preset[-1] if of_preset else releases[-1]


def _asked(framework: str) -> Iterator[dict[str, Any]]:
    """A framework's rules, and after them those of the one that it is like."""
    data = raw_preset("frameworks", framework)
    for rule in data.get("rules", ()):
        if isinstance(rule, str):  # those that a framework shares, by its name and theirs
            owner, _, name = rule.partition(".")
            yield from raw_preset("frameworks", owner)["shared"][name]
        else:
            yield rule
    if "like" in data:
        yield from _asked(data["like"])
