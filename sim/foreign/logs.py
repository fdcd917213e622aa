"""Step times in the logs of training frameworks, read line by line: a log may be of any size, and nothing is executed.

`presets/logs.yaml` has the forms of lines, and the code of the frameworks that prints them.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import chain, pairwise, takewhile
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TextIO

from sim.errors import SpecError
from sim.specs.scenario import Scenario
from sim.specs.yaml12 import load_yaml

LONGEST_LINE = 1 << 16
"""Characters of a line that are read at once; of longer ones, which only damaged logs have, the rest is another."""
MOST_ARGUMENTS = 5000
LARGEST = 1e12
"""Largest value that is believed, in any unit; its inverse is the smallest."""
ROUNDED = 5e-4
"""Most that a rate of Transformers differs by rounding."""
_TEXT: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "replace"}
_NUMBER = r"([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?|nan|-?inf)"
_STEP = re.compile(r"(?<![a-z_])(?:global_step|iteration|steps?)['\"]?[ :=]+(\d+\.?\d*)")
_RUNTIME = re.compile(r"train_runtime['\"]?: *'?(\d+\.?\d*)")
_BATCH = re.compile(r"global[ _]batch[ _]size[ :=]+(\d{1,12})")
_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{1,6})")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ARGUMENT = re.compile(r"(?<!\w)\w{1,99} \.{2,} ?.*$")


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = load_yaml(Path(__file__).parents[1] / "presets" / "logs.yaml")
    for form in table["forms"]:
        form["value"] = re.compile(form["value"].replace("NUMBER", _NUMBER))
    return table


class Row(NamedTuple):
    """What a line of a log says of a step.

    value : as measured, in the log's unit.
    line : its number in the file.
    step, clock, batch : the step's number, the time of day [s], the global batch; None where the line does not say.
    """

    value: float
    line: int
    step: float | None = None
    clock: float | None = None
    batch: int | None = None


@dataclass(slots=True)
class LoggedSteps:
    """What a log measured, line by line.

    source : the framework whose form the lines have.
    unit : of the rows' values: "s", or a rate: "samples/s" of the job, "tokens/s" of one GPU.
    tokens_per_gpu : tokens that a GPU takes a step, as far as rates and clock tell; None where they do not.
    arguments : lines of Megatron-LM's printed arguments, if there are any.
    notes : how the values were found, in sentences.
    """

    source: str
    unit: str = "s"
    rows: list[Row] = field(default_factory=list)
    tokens_per_gpu: float | None = None
    arguments: str = ""
    notes: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Keep a line, unless it is another rank's about the same step."""
        if row.step is None or not self.rows or row.step != self.rows[-1].step:
            self.rows.append(row)


def read_log(path: Path) -> LoggedSteps:
    """Read the step times of a log.

    Parameters
    ----------
    path : Path
        Of a log, plain or gzipped, `trainer_state.json` or a CSV; `-` is the standard input.

    Raises
    ------
    SpecError
        It cannot be read, holds no step times, or one that cannot be.
    """
    with _opened(path) as file:
        lines = _lines(file, path)
        first = next(lines, (1, ""))
        names = [name.strip().strip('"') for name in first[1].split(",")]
        if len(names) > 1 and any(name in _table()["clocks"] or _unit(name) for name in names):
            found, arguments = [_of_table(names, lines, path)], ""
        else:
            found, arguments = _of_text(chain([first], lines))
    best = next((each for each in found if each.rows), None)
    if best is None:
        raise SpecError(
            f"{path} holds no step times in a known form. Known are lines of Megatron-LM, Megatron-Bridge, NeMo, "
            "torchtitan or DeepSpeed, a trainer_state.json of a finished run, or W&B's CSV with _timestamp and _step. "
            "If you know the step time: flopcast check SCENARIO --measured '12.3 s'"
        )
    best.arguments = arguments
    _by_clock(best)
    _check(best, path)
    return best


def printed_arguments(path: Path) -> str:
    """Arguments that Megatron-LM printed into a log, a line each; nothing where it did not."""
    with _opened(path) as file:
        return _of_text(takewhile(lambda line: "end of arguments" not in line[1], _lines(file, path)))[1]


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        if str(path) == "-":
            yield sys.stdin
            return
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", **_TEXT) if packed else path.open(**_TEXT) as file:
            yield file
    except IsADirectoryError:
        raise SpecError(f"{path} is a folder; give the name of a log in it") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise SpecError(f"{path} is not a whole gzip file: {error}; was it cut off?") from None
    except csv.Error as error:
        raise SpecError(f"{path} is no table: {error}") from None
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:  # a NUL byte in the name
        raise SpecError(f"{str(path)!r:.80} is not the name of a file") from None


def _lines(file: TextIO, path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines, without a terminal's colours; a progress bar's returns end lines too."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if number == 1 and "\0" in line:
            raise SpecError(f"{path} is not text; give the log as it was printed")
        yield number, _ESCAPES.sub("", line) if "\x1b" in line else line


def _of_text(lines: Iterable[tuple[int, str]]) -> tuple[list[LoggedSteps], str]:
    """What each form of lines measured, and the arguments that were printed."""
    forms = _table()["forms"]
    found = [
        LoggedSteps(form["source"], form["unit"], notes=[form["note"]] if "note" in form else []) for form in forms
    ]
    arguments: list[str] = []
    inside, step, runtime = False, None, None
    for number, line in lines:
        if " arguments ----" in line:
            inside = "end of" not in line and not arguments
            continue
        argument = _ARGUMENT.search(line) if inside and len(arguments) < MOST_ARGUMENTS else None
        if argument:
            arguments.append(argument[0])
            continue
        if '"step"' in line:  # of a trainer_state.json, whose keys have a line each
            step = _step_of(line)
        if "train_runtime" in line:
            runtime = _RUNTIME.search(line)
        for form, kept in zip(forms, found, strict=True):
            match = form["value"].search(line) if form["mark"] in line else None
            if match:
                value = sum(float(text.replace(",", "")) for text in match.groups() if text)
                value = 1 / value if match.groupdict().get("rate") and value else value
                batch = _BATCH.search(line)
                own = step if kept.unit == "steps/s" else _step_of(line) if form.get("numbered", True) else None
                if kept.unit == "steps/s" and step and runtime and abs(step / float(runtime[1]) - value) <= ROUNDED:
                    value = step / float(runtime[1])  # which is not rounded
                clock = _clock_of(line) if form.get("clocked") else None
                kept.add(Row(value, number, own, clock, None if batch is None else int(batch[1])))
                break
    return found, "\n".join(arguments)


def _step_of(line: str) -> float | None:
    found = _STEP.search(line)
    return None if found is None else float(found[1])


def _clock_of(line: str) -> float | None:
    """Time of day that stands in a line. [s]"""
    found = _CLOCK.search(line)
    with suppress(ValueError):  # no such day
        return found and datetime.fromisoformat(f"{found[1]} {found[2]}.{found[3]:0<6}").timestamp()
    return None


def _unit(name: str) -> str | None:
    """Unit of a table's column by the end of its name, before which W&B may write the run's name and a group."""
    ends = _table()["columns"].items()
    return next((unit for end, unit in ends if re.search(rf"(?:^|[/ _-]){re.escape(end)}$", name)), None)


def _of_table(names: list[str], lines: Iterator[tuple[int, str]], path: Path) -> LoggedSteps:
    """Rows of a CSV: of the column that measures steps, or of a clock."""
    value = next((name for name in names if _unit(name)), None)
    clock = next((name for name in _table()["clocks"] if name in names), None) if value is None else None
    counter = next((name for name in _table()["counters"] if name in names), None)
    if value is None and counter is None:
        raise SpecError(f"{path} has the column {clock} and none that counts steps; export _step too")
    logged = LoggedSteps("W&B", _unit(value or "") or "clock")
    logged.notes.append(f"Step times are those of the column {value}." if value else f"{clock} is set over {counter}.")
    places = [None if name is None else names.index(name) for name in (value, counter, clock)]
    for number, row in enumerate(csv.reader(line for _, line in lines), start=2):
        measured, step, at = (_cell(row, place) for place in places)
        if measured is not None or at is not None:
            logged.add(Row(measured or 0.0, number, step, at))
    return logged


def _cell(row: list[str], place: int | None) -> float | None:
    """A number in a row; None where there is none, as in rows of other metrics."""
    try:
        found = float(row[place]) if place is not None else None
    except (IndexError, ValueError):
        return None
    return found if found is None or isfinite(found) else None


def _by_clock(logged: LoggedSteps) -> None:
    """Turn times of day and step numbers into seconds a step, where there are enough of them."""
    found, tokens = [], []
    for row, after in pairwise(logged.rows):
        if row.step is None or after.step is None or row.clock is None or after.clock is None:
            continue
        steps, seconds = after.step - row.step, after.clock - row.clock
        if steps > 0 and seconds > 0:  # not so where a job starts again
            found.append(after._replace(value=seconds / steps))
            tokens.append(after.value * seconds / steps)
    if len(found) >= 3 or logged.unit == "clock":
        if logged.unit == "tokens/s":
            logged.tokens_per_gpu = median(tokens)
            logged.notes.append("Step times are those between the times of day at which the lines were printed.")
        logged.rows, logged.unit = found, "s"


def _check(logged: LoggedSteps, path: Path) -> None:
    """Refuse times that cannot be, and turn what is a time or a rate of steps into seconds."""
    if not logged.rows:
        raise SpecError(f"{path} has fewer than two steps with a time, between which the time of one would lie")
    for row in logged.rows:
        if not 1 / LARGEST < row.value < LARGEST:
            raise SpecError(
                f"{path}: line {row.line} says {row.value:g} {logged.unit}, which no step can have: the log "
                "is damaged; take that line out"
            )
    if logged.unit in ("ms", "steps/s"):
        ms = logged.unit == "ms"
        logged.rows = [row._replace(value=row.value / 1e3 if ms else 1 / row.value) for row in logged.rows]
        logged.unit = "s"


def seconds_of(logged: LoggedSteps, scenario: Scenario, path: Path) -> list[float]:
    """Seconds that the logged steps took, of the batch that the scenario has. Raises SpecError: the log was made with
    another batch, or with other tokens a GPU."""
    training, gpus = scenario.training, scenario.plan.num_gpus
    batch, rows = training.global_batch_size, logged.rows
    rows = [row for row in rows if row.batch in (None, batch)]
    if not rows:
        said = logged.rows[-1].batch
        raise SpecError(
            f"{path} has steps of {said:,} sequences, and the scenario says {batch:,}; if the log is the run's, add -s "
            f"training.global_batch_size={said}"
        )
    if len(rows) < len(logged.rows):
        logged.notes.append(f"{len(logged.rows) - len(rows):,} values of another batch than {batch:,} are left out.")
    mine, theirs = training.tokens_per_step / gpus, logged.tokens_per_gpu
    if theirs is not None and not 0.9 < mine / theirs < 1.1:
        raise SpecError(
            f"{path}: its tps and its clock make {theirs:,.0f} tokens a step on each GPU, and the scenario says "
            f"{mine:,.0f} ({batch:,} sequences of {training.sequence_length:,} on {gpus:,} GPUs). Set "
            "training.global_batch_size, training.sequence_length or the plan's degrees as the run has them"
        )
    work = {"tokens/s": mine, "samples/s": float(batch)}.get(logged.unit)
    return [row.value if work is None else work / row.value for row in rows]
