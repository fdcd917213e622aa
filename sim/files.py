"""Files that people give and files that they are given, and those that ship.

Read with a bound: a device without end, or a disk image named by mistake, is refused. Written so that a name never
stands for half a file, whenever the writer is killed.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from sim.errors import SpecError

DESCRIPTION = 4_000_000
"""Most bytes of a description; measured profiles, the largest, have a few kilobytes."""
MEASUREMENTS = 256_000_000
"""Most bytes of logs and tables."""
UNFINISHED = "_unfinished-"
"""What the names of files begin with that are still being written."""


def read_bytes(path: Path | str, most: int = DESCRIPTION, what: str = "description of a training job") -> bytes:
    """The content of a file, a pipe, or with `-` of the standard input.

    most : Bytes that it may have.
    what : What it is said to be where it has more.
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
    """The text of a file; as `read_bytes` otherwise."""
    try:
        return read_bytes(path, most, what).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text file in UTF-8; save it as plain text") from None


def checksum(*parts: bytes | memoryview) -> str:
    """CRC-32 of bytes, in eight hexadecimal digits: tells an accident, not an intent."""
    total = 0
    for part in parts:
        total = zlib.crc32(part, total)
    return f"{total:08x}"


def write_text(path: Path, text: str, remedy: str = "") -> None:
    """Write a text in UTF-8; as `write_file` otherwise."""
    write_file(path, lambda place: place.write_text(text, encoding="utf-8"), remedy)


def write_file(path: Path, write: Callable[[Path], object], remedy: str = "") -> None:
    """Write a file that gets its name when it is whole: whoever is killed leaves the old one, or none.

    What is written to is beside it meanwhile, `_unfinished-PROCESS-NAME`. What is no file (a device, a pipe) is written
    to as it is, and a link is followed.

    write : Given the name to write to.
    remedy : Said where it cannot be written.
    """
    try:
        real = Path(os.path.realpath(path))
        there = real.stat() if real.exists() else None
        if there is not None and not os.access(real, os.W_OK):
            raise PermissionError(13, "Permission denied", str(path))
        if there is not None and (not stat.S_ISREG(there.st_mode) or not os.access(real.parent, os.W_OK)):
            write(real)  # a device, a pipe, or a file in a folder that takes no other
            return
        unfinished = real.with_name(f"{UNFINISHED}{os.getpid()}-{real.name[-50:]}")  # a name may have 255 bytes
        try:
            write(unfinished)
            if there is not None:
                unfinished.chmod(stat.S_IMODE(there.st_mode))
            unfinished.replace(real)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SpecError(f"cannot write {path}: {reason(error)}{remedy}") from None
    except ValueError:  # a NUL byte in the name
        raise SpecError(f"{str(path)!r:.80} is not the name of a file") from None


def reason(error: OSError) -> str:
    """Why a file cannot be written."""
    return os.strerror(error.errno) if error.errno else str(error).splitlines()[0]


_INSTALLED = Path(__file__).parent / "scenarios"
IS_CHECKOUT = not _INSTALLED.is_dir()
"""Whether this runs from the repository's folders and not from a wheel."""
SCENARIOS = Path(__file__).parents[1] / "scenarios" if IS_CHECKOUT else _INSTALLED
"""Folder of the scenarios that ship: within the installed package, or beside it in a checkout."""


def here_or_shipped(path: Path | str, name: str = "scenarios", folder: Path = SCENARIOS) -> Path:
    """The path itself, or where no such file is, the one that ships under it.

    name : What the folder of shipped files is called in the repository: paths that begin so are looked for there.
    folder : Where it is.
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
