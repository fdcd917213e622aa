"""One measurement, and the file that keeps them: JSON lines, appended as they are taken, so that nothing is lost.

The first line describes the machine; every other line is one measurement, or one that was begun, or one that failed and
why: a run that goes on does not meet the same failure again. All times are medians. Every line ends with a checksum of
itself; lines without one, as people and other programs write them, are taken at their word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import ProfileError, SpecError
from sim.files import MEASUREMENTS, checksum, read_text, write_text

REQUIRED: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "bmm": ("batch", "m", "n", "k"),
    "attention": ("heads", "length", "head_dim"),
    "recurrent": ("heads", "head_dim", "state", "length"),
    "memory": ("nbytes",),
    "launch": (),
    "copy": ("nbytes",),
    "collective": ("operation", "num_ranks", "nbytes"),
    "interference": (),
    "grouped": (),
}
#: What can be measured, and what a measurement of the kind cannot do without.
KINDS = tuple(REQUIRED)
Shape = dict[str, float | int | str]

#: What ended a run (a collective that hung, memory that ran out) is tried once more, and then left out.
ATTEMPTS = 2
#: No measurement is so large.
MOST = 1e300
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
        return key_of(self.kind, self.shape)

    def number(self, name: str) -> float:
        """A number of the shape. A ProfileError says that there is none of that name, or that it is no number."""
        value = self.shape.get(name)
        if not is_number(value):
            said = "is missing" if value is None else f"= {str(value)[:40]} is no number"
            raise ProfileError(f"a measurement of {self.kind} ({_listed(self.shape)}): {name} {said}; measure it again")
        return float(value)


def _listed(shape: Shape) -> str:
    return ", ".join(f"{name} {value}" for name, value in shape.items())


def key_of(kind: str, shape: Shape) -> str:
    """Identity of what is to be measured."""
    return kind + json.dumps(shape, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be measured, and why."""

    kind: str
    shape: Shape
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} ({_listed(self.shape)}): {self.reason}"


@dataclass(frozen=True, slots=True)
class MeasurementSet:
    """A machine and what was measured on it.

    cut_end : the file's last line was cut off while it was written (a killed run), and is left out.
    failures : what was tried and could not be measured.
    """

    machine: dict[str, Any]
    measurements: tuple[Measurement, ...]
    cut_end: bool = False
    failures: tuple[Failure, ...] = ()

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
            write_text(path, _line({"machine": machine}))
        self.reload()

    def reload(self) -> None:
        """Take note of what other processes have added to the file."""
        known = read_journal(self.path)
        self.done = {item.key: item for item in least_disturbed(known.measurements)}
        self._taken = Counter(item.key for item in known.measurements)
        self.failed = {key_of(item.kind, item.shape) for item in known.failures}
        self.last_failure = known.failures[-1] if known.failures else None

    def lacks(self, kind: str, shape: Shape, turn: int = 1) -> bool:
        """Whether to measure this now: in the first turn what is not there, in later ones what came out unsteady.

        What failed is not tried again.
        """
        key = key_of(kind, shape)
        if key in self.failed:
            return False
        if key not in self.done:
            return turn == 1
        return self._taken[key] < turn and self.done[key].spread > UNSTEADY

    def begin(self, kind: str, shape: Shape) -> None:
        """Note that this is measured next: what ends the whole run is not met a third time."""
        self._append({"begun": {"kind": kind, "shape": shape}})

    def interrupted(self) -> None:
        """Note that the run was ended from outside: what was begun then is not to blame."""
        self._append({"interrupted": {}})

    def fail(self, kind: str, shape: Shape, reason: str) -> None:
        """Note that this could not be measured."""
        self.last_failure = Failure(kind, shape, reason)
        self._append({"failed": asdict(self.last_failure)})
        self.failed.add(key_of(kind, shape))

    def add(self, item: Measurement) -> None:
        """Keep one measurement, on disk before this returns."""
        self._append(asdict(item))
        self._taken[item.key] += 1
        known = self.done.get(item.key, item)
        self.done[item.key] = min(known, item, key=_disturbed)

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(line))
            file.flush()


def read_journal(path: Path) -> MeasurementSet:
    """Read a file of measurements, all but a last line that was cut off while it was written (a killed calibration).

    A ProfileError names the line that is wrong.
    """
    cut_end = False
    try:
        text = read_text(path, MEASUREMENTS, "file of measurements")
    except SpecError as error:
        raise ProfileError(str(error)) from None
    lines = text.split("\n")
    complete = lines[:-1] if lines and lines[-1] == "" else lines
    known = ("machine", "begun", "interrupted", "failed")
    machine: dict[str, Any] = {}
    items: list[Measurement] = []
    failures: list[Failure] = []
    begun: Counter[str] = Counter()
    for number, line in enumerate(complete, start=1):
        try:
            data = _read_line(line)
            if len(data) > 1 and any(name in data for name in known):
                raise ValueError(f"{', '.join(map(repr, data))} do not stand in one line")
            if number == 1:
                machine = data["machine"]
            elif "begun" in data:
                begun[key_of(data["begun"]["kind"], data["begun"]["shape"])] += 1
            elif "interrupted" in data:
                begun.clear()
            elif "failed" in data:
                failures.append(Failure(**data["failed"]))
            else:
                items.append(_check(Measurement(**data)))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(complete) > 1 and not text.endswith("\n"):
                cut_end = True
                break
            raise ProfileError(f"{path}: line {number} is not a measurement: {error}") from None
    if not machine:
        raise ProfileError(f"{path}: line 1 must describe the machine; was it written by flopcast calibrate run?")
    failures += _deadly(begun, items, failures)
    return MeasurementSet(machine, tuple(items), cut_end, tuple(failures))


def _deadly(begun: Counter[str], items: Iterable[Measurement], failures: Iterable[Failure]) -> list[Failure]:
    """What was begun as often as `ATTEMPTS` and ended the run each time: neither measured nor failed by itself."""
    over = {item.key for item in items} | {key_of(item.kind, item.shape) for item in failures}
    deadly = []
    for key, times in begun.items():
        if times >= ATTEMPTS and key not in over:
            kind = next(kind for kind in KINDS if key.startswith(kind + "{"))
            deadly.append(
                Failure(kind, json.loads(key[len(kind) :]), f"the run ended {times} times while it was measured")
            )
    return deadly


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
    if not isinstance(item.shape, dict) or not isinstance(item.extra, dict):
        raise ValueError("shape and extra must hold values by name")
    absent = [name for name in REQUIRED[item.kind] if name not in item.shape]
    if absent:
        raise ValueError(f"a {item.kind} measurement needs {', '.join(absent)}")
    for name, value in (*item.shape.items(), *item.extra.items()):
        if (isinstance(value, str) and name not in REQUIRED[item.kind]) or name == "operation":
            continue
        if not isinstance(value, bool) and not (is_number(value) and value >= 0):
            raise ValueError(f"{name} = {str(value)[:40]!r} is not a number, zero or more")
    if not (is_number(item.time_s) and item.time_s > 0):
        raise ValueError(f"time_s = {str(item.time_s)[:40]} is not a positive time")
    return item


def is_number(value: Any) -> bool:
    """Whether a value is a number that arithmetic does not overflow with."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MOST < value < MOST


def _mend_end(path: Path, cut_end: bool) -> None:
    """End the file with a whole line, so that the next one starts on its own."""
    text = path.read_text(encoding="utf-8")
    if cut_end:
        write_text(path, text[: text.rfind("\n") + 1])
    elif not text.endswith("\n"):
        write_text(path, text + "\n")


def write_journal(path: Path, machine: dict[str, Any], items: Iterable[Measurement]) -> None:
    """Write a whole file of measurements."""
    write_text(path, "".join(map(_line, ({"machine": machine}, *map(asdict, items)))))


def _line(data: dict[str, Any]) -> str:
    """Data as a line that ends with a checksum of what stands before it."""
    text = json.dumps(data)[:-1]
    return f'{text}, "checksum": "{checksum(text.encode())}"}}\n'


def _read_line(line: str) -> dict[str, Any]:
    """The data of a line. A ValueError says that it is not as it was written, or holds no data."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError(f"{line[:40]} is no JSON object")
    said = data.pop("checksum", None)
    if said is not None and checksum(line.rpartition(', "checksum"')[0].encode()) != said:
        raise ValueError("its checksum is another: it is not as it was written")
    return data
