"""What a reader of measurements is given, and what it gives back; and what launchers put before lines."""

from __future__ import annotations

import gzip
import io
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flopcast_calibration.measurement import Measurement
from flopcast_calibration.readers.names import FACTS
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


#: A prefix that names the task whose line it is, in its first group.
_TASKS = (
    re.compile(r"\s*(\d+):(?: |$)"),  # srun -l
    re.compile(r"\[([^\]\s]*\d+,\d+)\](?:\[[^\]]*\])?<std\w+>\s*:? ?"),  # mpirun --tag-output
    re.compile(r"\[(\d+)\] ?(?!NCCL)"),  # Hydra -prepend-rank
    re.compile(r"(?=\S*[A-Za-z])([\w./-]+) +\| ?"),  # docker compose, stern
    re.compile(r"\(([^()]*\bpid=\d+[^()]*)\) ?"),  # Ray, SkyPilot
)
#: mpirun puts its tag in the middle of a line that came in two pieces.
_TORN = re.compile(r"\[\d+,\d+\](?:\[[^\]]*\])?<std\w+>:? ?")
_TIMES = (
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:? ?"),
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:? "),
    re.compile(r"(?:- )?\[?(?:DEBUG|INFO|NOTICE|WARN(?:ING)?)\]?[: ] *(?!NCCL)(?:- )?"),
)


def without_prefix(line: str) -> tuple[str, str]:
    """A line's task ("" where nothing names it) and the line as the program printed it.

    >>> without_prefix(" 3: #  Rank  3 Pid  7")
    ('3', '#  Rank  3 Pid  7')
    >>> without_prefix("2024-05-01 12:00:00 [1,0]<stdout>:  1048576")
    ('1,0', ' 1048576')
    """
    tasks: list[str] = []
    while match := next((found for each in (*_TASKS, *_TIMES) if (found := each.match(line)) and found.end()), None):
        tasks += [match[1].strip()] if match.re in _TASKS else []
        line = line[match.end() :]
    return "/".join(tasks), _TORN.sub("", line) if tasks else line


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


@dataclass(slots=True)
class Reading:
    """What is read of a file so far.

    left : why rows are left out -> their lines.
    """

    source: Source
    items: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: dict[str, list[int]] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[int, str]]:
        """The lines of the text, numbered, without what launchers and collectors of logs put before them."""
        for number, line in enumerate(self.source.text.splitlines(), start=1):
            yield number, without_prefix(line)[1]

    def leave(self, why: str, number: int) -> None:
        """Leave out a row."""
        self.left.setdefault(why, []).append(number)

    def log(self, nothing: str, **machine: Any) -> Log:
        """What the file says; a ProfileError where it holds no measurement: that all were left out, or `nothing`."""
        out = [f"{listed(lines)}: left out, {why}" for why, lines in self.left.items()]
        if not self.items:
            raise ProfileError(f"{self.source.path}: {out[0]}" if out else f"{self.source.path} holds {nothing}")
        stated = {name: value for name, value in machine.items() if value}
        return Log(stated, tuple(self.items), tuple(dict.fromkeys((*out, *self.notes))))


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
    for start, what in FACTS["binary"].items():
        if raw.startswith(start.encode("latin-1")):
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
