"""Files that ship go by the name they have in the repository, wherever one is: `scenarios/NAME.yaml`."""

from __future__ import annotations

import os
from pathlib import Path

_INSTALLED = Path(__file__).parent / "scenarios"
IS_CHECKOUT = not _INSTALLED.is_dir()
"""Whether this runs from the repository's folders and not from a wheel."""
SCENARIOS = Path(__file__).parents[1] / "scenarios" if IS_CHECKOUT else _INSTALLED
"""Folder of the scenarios that ship: within the installed package, or beside it in a checkout."""


def here_or_shipped(path: Path | str, name: str = "scenarios", folder: Path = SCENARIOS) -> Path:
    """The path itself, or where no such file is, the one that ships under it.

    Parameters
    ----------
    name : str
        What the folder of shipped files is called in the repository: paths that begin so are looked for there.
    folder : Path
        Where it is.
    """
    path = Path(path)
    if ".." in path.parts or not path.is_relative_to(name) or os.path.exists(path):
        return path
    shipped = folder / path.relative_to(name)
    return shipped if os.path.isfile(shipped) else path


def shipped_scenarios() -> dict[str, Path]:
    """The scenarios that ship, by the names that `here_or_shipped` knows."""
    files = sorted(SCENARIOS.rglob("*.yaml"))
    return {f"{SCENARIOS.name}/{path.relative_to(SCENARIOS).as_posix()}": path for path in files}
