"""One measurement, and the file that keeps them: JSON lines, appended as they are taken, so that nothing is lost.

The first line describes the machine; every other line is one measurement. All times are medians.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import ProfileError

KINDS = (
    "gemm",
    "bmm",
    "attention",
    "memory",
    "launch",
    "copy",
    "collective",
    "interference",
)
Shape = dict[str, float | int | str]

#: A spread above this says that something else ran meanwhile: measure again, if there is time.
UNSTEADY = 0.1


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was run, and how long it took.

    kind : one of KINDS.
    shape : what identifies it: m, n, k, dtype, layout; op, nbytes, num_ranks …
    time_s : median. [s]
    spread : (third − first quartile) / median.
    repeats : how often it was timed.
    source : the machine's own run, or the file and line it was read from.
    """

    kind: str
    shape: Shape
    time_s: float
    spread: float = 0.0
    repeats: int = 1
    source: str = ""
    extra: Shape = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identity, for resuming: the same kind and shape is the same measurement."""
        return self.kind + json.dumps(self.shape, sort_keys=True)

    def number(self, name: str) -> float:
        """A number of the shape."""
        return float(self.shape[name])


@dataclass(frozen=True, slots=True)
class MeasurementSet:
    """A machine and what was measured on it.

    cut_end : the file's last line was cut off while it was written (a killed run), and is left out.
    """

    machine: dict[str, Any]
    measurements: tuple[Measurement, ...]
    cut_end: bool = False

    def of(self, kind: str, **shape: float | str) -> list[Measurement]:
        """The measurements of a kind whose shape has these values."""
        return [
            item
            for item in self.measurements
            if item.kind == kind and all(item.shape.get(name) == value for name, value in shape.items())
        ]


class Journal:
    """The growing file of a calibration: opened on what is there already, one flushed line a measurement."""

    def __init__(self, path: Path, machine: dict[str, Any]) -> None:
        self.path = path
        if path.exists() and path.stat().st_size:
            known = read_journal(path)
            changed = [name for name in ("device", "torch") if known.machine.get(name) != machine.get(name)]
            if changed:
                raise ProfileError(
                    f"{path} was measured on another machine or library ({', '.join(changed)} differ: "
                    f"{[known.machine.get(name) for name in changed]}); give another output file"
                )
            _mend_end(path, known.cut_end)
        else:
            path.write_text(json.dumps({"machine": machine}) + "\n", encoding="utf-8")
        self.reload()

    def reload(self) -> None:
        """Take note of what other processes have added to the file."""
        items = read_journal(self.path).measurements
        self.done = {item.key: item for item in least_disturbed(items)}
        self._taken = Counter(item.key for item in items)

    def lacks(self, kind: str, shape: Shape, turn: int = 1) -> bool:
        """Whether to measure this now: in the first turn what is not there, in later ones what came out unsteady."""
        key = Measurement(kind, shape, 1.0).key
        if key not in self.done:
            return turn == 1
        return self._taken[key] < turn and self.done[key].spread > UNSTEADY

    def add(self, item: Measurement) -> None:
        """Keep one measurement, on disk before this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(item)) + "\n")
            file.flush()
        self._taken[item.key] += 1
        known = self.done.get(item.key, item)
        self.done[item.key] = min(known, item, key=_disturbed)


def read_journal(path: Path) -> MeasurementSet:
    """Read a file of measurements, all but a last line that was cut off while it was written (a killed calibration).

    Raises
    ------
    ProfileError
        Naming the line that is wrong.
    """
    cut_end = False
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    lines = text.split("\n")
    complete = lines[:-1] if lines and lines[-1] == "" else lines
    machine: dict[str, Any] = {}
    items = []
    for number, line in enumerate(complete, start=1):
        try:
            data = json.loads(line)
            if number == 1:
                machine = data["machine"]
            else:
                items.append(_check(Measurement(**data)))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(complete) > 1 and not text.endswith("\n"):
                cut_end = True
                break
            raise ProfileError(f"{path}: line {number} is not a measurement: {error}") from None
    if not machine:
        raise ProfileError(f"{path}: line 1 must describe the machine; was it written by flopcast calibrate run?")
    return MeasurementSet(machine, tuple(items), cut_end)


def least_disturbed(items: Iterable[Measurement]) -> list[Measurement]:
    """Each measurement once: of several passes over the same shape, the one with the least median.

    Neighbours, clocks and page faults only ever make a kernel slower.
    """
    best: dict[str, Measurement] = {}
    for item in items:
        kept = best.get(item.key)
        if kept is None or _disturbed(item) < _disturbed(kept):
            best[item.key] = item
    return list(best.values())


def _disturbed(item: Measurement) -> float:
    """What orders passes over one shape: the time; of a pair what its two parts take alone, or a pass would win whose
    parts were disturbed and the pair was not. [s]"""
    if "collective_s" not in item.extra:
        return item.time_s
    parts = {name: float(item.extra[name]) for name in ("gemm_s", "multiplies", "collective_s")}
    return parts["gemm_s"] / parts["multiplies"] + parts["collective_s"]


def _check(item: Measurement) -> Measurement:
    if item.kind not in KINDS:
        raise ValueError(f"unknown kind {item.kind!r}")
    if not (isinstance(item.time_s, (int, float)) and math.isfinite(item.time_s) and item.time_s > 0):
        raise ValueError(f"time_s = {item.time_s!r} is not a positive time")
    return item


def _mend_end(path: Path, cut_end: bool) -> None:
    """End the file with a whole line, so that the next one starts on its own."""
    text = path.read_text(encoding="utf-8")
    if cut_end:
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    elif not text.endswith("\n"):
        path.write_text(text + "\n", encoding="utf-8")


def write_journal(path: Path, machine: dict[str, Any], items: Iterable[Measurement]) -> None:
    """Write a whole file of measurements."""
    lines: Iterator[str] = (json.dumps(asdict(item)) for item in items)
    path.write_text("\n".join([json.dumps({"machine": machine}), *lines]) + "\n", encoding="utf-8")
