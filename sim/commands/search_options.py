"""The options of `flopcast search`, read and checked before any work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.commands.options import read_numbers
from sim.errors import FlopcastError, SpecError

if TYPE_CHECKING:
    from sim.specs import Scenario

OWN = "own"
"""In --why: the scenario's own plan, so that the fields beside it are changes of that and nothing is left free."""


GONE = {
    "save": "a whole search takes seconds, so ask again with --objective, --why or --pareto; in Python "
    "search(scenario).to_frame() is the table of all plans, which pandas writes as Parquet or CSV",
    "jobs": "one core prices a million plans a second; sim.parallel.map_over puts scenarios, seeds or the points of "
    "a sweep on any executor of concurrent.futures",
}
"""Options of earlier releases, and what to do instead."""


def refuse_gone(**given: str | None) -> None:
    """Refuse options of earlier releases.

    Raises
    ------
    SpecError
        Names one, and what to do instead.
    """
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"--{name} is gone: {GONE[name]}")


def read_limit(text: str) -> float:
    """Memory that a plan may use of a GPU. [bytes]"""
    from sim.units import parse

    limit = parse(text, "bytes")
    if limit <= 0:
        raise SpecError(f"--memory-limit {text!r} must be above zero, such as '72 GB'")
    return limit


def read_degrees(text: str, option: str, of: int = 0, what: str = "") -> tuple[int, ...]:
    """Degrees of `1,2,4`, each of which must divide a number of something, if that is given."""
    degrees = read_numbers(text, option)
    wrong = [each for each in degrees if of % each]
    if wrong:
        able = [each for each in range(1, min(of, 64) + 1) if of % each == 0]
        more = " …" if of > able[-1] or len(able) > 8 else ""
        raise SpecError(
            f"{option} {wrong[0]} must divide the {what}; degrees that do: {', '.join(map(str, able[:8]))}{more}"
        )
    return degrees


def read_ways(text: str) -> tuple[str, ...]:
    """Ways to make room for plans of `modules,block`; none of `none`."""
    from sim.search.room import check_ways

    names = [each.strip() for each in text.split(",") if each.strip()]
    if names == ["none"]:
        return ()
    if not names:
        raise SpecError("--room names no way; write --room modules,block,offload, or none")
    return check_ways(names)


def read_fields(words: Sequence[str]) -> tuple[bool, dict[str, Any]]:
    """(whether the scenario's own plan is meant, the plan's fields) that --why names."""
    from sim.specs.yaml12 import parse_yaml

    own, named = False, {}
    for field in (each for text in words for each in text.split()):
        if field == OWN:
            own = True
            continue
        path, equals, value = field.partition("=")
        if not equals or not value:
            raise SpecError(f"--why {field!r} must look like plan.tp=4, or be {OWN} for the scenario's own plan")
        name = path.removeprefix("plan.")
        if name in named:
            raise SpecError(f"--why names {path!r} twice; keep one")
        named[name] = parse_yaml(value, f"--why {field!r}")
    if words and not named and not own:
        raise SpecError(f"--why names no field; write --why plan.tp=4, or --why {OWN} for the scenario's own plan")
    return own, named


def check_numbers(**given: int | None) -> None:
    """Refuse counts below one.

    Raises
    ------
    SpecError
        Names the option, as it is typed, and its value.
    """
    for name, number in given.items():
        if number is not None and number < 1:
            raise SpecError(f"--{name.replace('_', '-')} {number} must be one or more")


def check_together(instead: str | None, asked: Mapping[str, bool], unused: Mapping[str, bool]) -> None:
    """Refuse options that have nothing to say beside --sweep or --fields.

    Parameters
    ----------
    instead : str, optional
        The option that asks another question than a search of its own.
    asked : mapping
        Other questions, and whether they are there.
    unused : mapping
        Options that only a search listens to, and whether they are there.

    Raises
    ------
    SpecError
        Names them.
    """
    if instead is None:
        return
    others = [word for word, on in asked.items() if on]
    if others:
        raise SpecError(f"{instead} asks another question than {' and '.join(others)}; ask them one after the other")
    idle = [word for word, on in unused.items() if on]
    if idle:
        raise SpecError(f"{' and '.join(idle)} would change nothing beside {instead}; leave out what does nothing")


def check_files(drawn: Mapping[str, bool], figure: Path | None, output: Path | None) -> None:
    """Refuse files that cannot be written.

    Parameters
    ----------
    drawn : mapping
        Options that --figure draws, and whether they are there.
    """
    if output is not None and not output.parent.is_dir():
        raise SpecError(f"cannot write {output}: there is no folder {output.parent}")
    if output is not None and output.is_dir():
        raise SpecError(f"cannot write {output}: it is a folder; give the name of a file in it, such as best.yaml")
    if figure is not None:
        from sim.report.figures import check_paths

        found = [word for word, on in drawn.items() if on]
        if len(found) != 1:
            there = " and ".join(found) if found else "none of them"
            raise SpecError(f"--figure draws one of --sweep, --sensitivity and --pareto, but there is {there}")
        check_paths([figure])


def load_with_fixed(
    path: Path, overrides: Sequence[str], fix: Sequence[str], profile: str | None
) -> tuple[Scenario, dict[str, Any]]:
    """The scenario with its file's own plan, and the fields of plans that --set and --fix keep.

    Raises
    ------
    SpecError
        A field that no plan has, or one that is set twice.
    """
    from sim.search.fixed import as_fixed
    from sim.specs import load_scenario

    of_plan = [each for each in overrides if each.startswith("plan.")]
    try:
        found = load_scenario(path, [each for each in overrides if each not in of_plan], profile)
    except FlopcastError:  # the file's own plan does not suit what else is set
        found = load_scenario(path, overrides, profile)
    return as_fixed(found, [*of_plan, *fix])
