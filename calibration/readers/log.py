"""What a reader of measurements is given, and what it hands back."""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopcast_calibration.measurement import Measurement
from sim.errors import ProfileError, SpecError
from sim.files import MEASUREMENTS, read_bytes


@dataclass(frozen=True, slots=True)
class Log:
    """What a file says.

    machine : facts of the machine that the file states: device, hosts …
    measurements : in the order of the file.
    notes : sentences about the file: what was assumed, and what was left out and why.
    """

    machine: dict[str, Any]
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text, and what the user says of it.

    operation : collective of a log that does not say it.
    ranks, nodes : of one group; they override what the file lists.
    """

    path: Path
    text: str
    operation: str | None = None
    ranks: int | None = None
    nodes: int | None = None

    def at(self, line: int) -> str:
        """A line, as errors and the measurements' sources name it."""
        return f"{self.path}: line {line}"


#: first bytes -> what such a file is, and what to do with it
_BINARY = {
    b"SQLite format 3": "an SQLite database (of Nsight Systems?); export the table you need as CSV",
    b"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save the sheet as CSV",
    b"\x89PNG": "a picture; give the log or table it was drawn from",
    b"%PDF": "a PDF; give the log or table it was made from",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first (zstd -d)",
    b"\xfd7zXZ": "compressed with xz; unpack it first (unxz)",
    b"BZh": "compressed with bzip2; unpack it first (bunzip2)",
}
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_source(path: Path, operation: str | None = None, ranks: int | None = None, nodes: int | None = None) -> Source:
    """Read a text file, plain or gzipped, without the colours a terminal was sent.

    A file that cannot be read, is cut off, empty, or not text is a ProfileError, and so are impossible ranks or nodes.
    """
    for name, value in (("ranks", ranks), ("nodes", nodes)):
        if value is not None and value < 1:
            raise ProfileError(f"--{name} {value} must be at least 1")
    if ranks is not None and nodes is not None and nodes > ranks:
        raise ProfileError(f"--nodes {nodes} is more than --ranks {ranks}; a node without a rank takes no part")
    return Source(path, _ESCAPES.sub("", _decoded(path)), operation, ranks, nodes)


def _decoded(path: Path) -> str:
    try:
        raw = read_bytes(path, MEASUREMENTS, "log")
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(raw)) as packed:
                raw = packed.read(MEASUREMENTS + 1)
    except SpecError as error:
        raise ProfileError(str(error)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ProfileError(f"{path} is not a whole gzip file: {error}; was it cut off?") from None
    if len(raw) > MEASUREMENTS:
        raise ProfileError(f"{path} unpacks to more than {MEASUREMENTS / 1e6:.0f} MB; no log is so long")
    for start, what in _BINARY.items():
        if raw.startswith(start):
            raise ProfileError(f"{path} is {what}")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell's > writes
        text = raw.decode("utf-16", errors="replace")
    elif b"\0" in raw[:65536]:
        raise ProfileError(f"{path} is not text; give the log as it was printed, or a table")
    else:
        text = raw.decode("utf-8-sig", errors="replace")  # one odd byte of a host's name spoils no table
    if not text.strip():
        raise ProfileError(f"{path} is empty")
    return text


def positive(where: str, name: str, text: Any) -> float:
    """A number above zero and finite, or the line that has none."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise ProfileError(f"{where}: {name} = {text!r} is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise ProfileError(f"{where}: {name} = {text} is not a positive number")
    return value


def listed(lines: list[int], most: int = 5) -> str:
    """Lines, named in a sentence."""
    shown = ", ".join(map(str, lines[:most])) + (" …" if len(lines) > most else "")
    return f"line{'s' if len(lines) > 1 else ''} {shown}"
