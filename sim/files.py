"""Files that people give, read with a bound: a device without end, or a disk image named by mistake, is refused.

Files that ship go by the name they have in the repository, wherever one is: `scenarios/NAME.yaml`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sim.errors import SpecError

DESCRIPTION = 4_000_000
"""Most bytes of a description; measured profiles, the largest, have a few kilobytes."""
MEASUREMENTS = 256_000_000
"""Most bytes of logs and tables."""
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


def read_bytes(path: Path | str, most: int = DESCRIPTION, what: str = "description of a training job") -> bytes:
    """The content of a file, a pipe, or with `-` of the standard input.

    Parameters
    ----------
    most : int
        Bytes that it may have.
    what : str
        What it is said to be where it has more.

    Raises
    ------
    SpecError
        There is no such file, it is a folder, or it is larger than any such thing.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(most + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(most + 1)
    except IsADirectoryError:
        raise SpecError(f"{path} is a folder; give the name of a file in it") from None
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:  # a NUL byte in the name
        raise SpecError(f"{str(path)!r:.80} is not the name of a file") from None
    if len(data) > most:
        raise SpecError(f"{path} is larger than {most / 1e6:.0f} MB; no {what} is")
    return data


def read_text(path: Path | str, most: int = DESCRIPTION, what: str = "description of a training job") -> str:
    """The text of a file; as `read_bytes` otherwise.

    Raises
    ------
    SpecError
        As there, or it is not text in UTF-8.
    """
    try:
        return read_bytes(path, most, what).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text file in UTF-8; save it as plain text") from None
