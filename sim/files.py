"""Files that people give, read with a bound: a device without end, or a disk image named by mistake, is refused."""

from __future__ import annotations

import sys
from pathlib import Path

from sim.errors import SpecError

DESCRIPTION = 4_000_000
"""Most bytes of a description; measured profiles, the largest, have a few kilobytes."""
MEASUREMENTS = 256_000_000
"""Most bytes of logs and tables."""


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
