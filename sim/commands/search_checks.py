"""What a search refuses before any work is done: words that do not go together, and files it could not write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sim.errors import SpecError


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
    beside = [word for word, on in asked.items() if on]
    if beside:
        raise SpecError(f"{instead} asks another question than {' and '.join(beside)}; ask them one after the other")
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
