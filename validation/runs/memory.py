"""Does it fit? Predicted against what was found by trying."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from flopcast_calibration.from_runs import predict
from flopcast_calibration.readers.cells import ABOUT_THE_RUN, FACTS, Row, named_in
from flopcast_calibration.readers.training_runs import read_rows, read_run, reason
from sim.arrays import Number
from sim.errors import FlopcastError
from sim.estimate import Estimate
from sim.report.terminal import grouped
from sim.work.memory import MemoryUse

_REQUIRED = ("gpu", "num_gpus", "layers", "hidden", "heads", "seq_len", "outcome")
_RAN = re.compile(r"ok|fits?|yes|ran|success", re.IGNORECASE)
_FULL = re.compile(r"oom|out[ -]of[ -]memory|^no$|does(n't| not) fit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One layout: what happened, what was predicted; the peak where one was measured. [bytes]

    comparable_bytes : the predicted peak, as the measured one counts. [bytes]
    """

    row: int
    outcome: str
    predicted: str | None
    needed_bytes: float | None
    available_bytes: float | None
    skipped: str | None = None
    peak_bytes: float | None = None
    comparable_bytes: float | None = None

    @property
    def ran(self) -> bool:
        """Whether the run fitted in memory."""
        return bool(_RAN.fullmatch(self.outcome))

    @property
    def right(self) -> bool | None:
        """Whether the prediction agrees; None where there is none."""
        return None if self.predicted is None else (self.predicted == "fits") == self.ran

    @property
    def peak_error(self) -> float | None:
        """Predicted over measured peak − 1; None where one is missing."""
        if not self.peak_bytes or not self.comparable_bytes:
            return None
        return self.comparable_bytes / self.peak_bytes - 1


def score_memory(path: Path, runs: Sequence[Path] = ()) -> list[Outcome]:
    """Predict whether every row of a CSV of layouts fits.

    Columns are those of a table of runs, with `outcome` ("ok" or "OOM", in these or other words) instead of the
    measurement, and optionally `kernel` (attention and norm) and `peak_gb`, the measured peak of the fullest GPU [GB];
    `peak_counts` (allocated or reserved, as PyTorch counts; else as the source's program does, or all that is in use)
    and `peak_rank` (last: of the last pipeline stage) say what that is.

    runs : CSVs of measured runs. What a row leaves out of a run that is in one of them is as there.
    """
    known: dict[Any, Any] = {}
    rows = with_their_runs(read_rows(path, _REQUIRED), [row for each in runs for row in read_rows(each, ())])
    return [_outcome(number, row, known) for number, row in enumerate(rows, start=1)]


_NOT_OF_A_LAYOUT = {"source", "outcome", "peak_gb", "peak_counts", "peak_rank", *FACTS["measurement"]}


def with_their_runs(rows: Sequence[Row], runs: Iterable[Row]) -> list[Row]:
    """Rows of layouts with what they leave out and the runs that they may be of agree on.

    Those are of the same `source_locator`, and have no other value in a cell that both fill in. Where as many layouts
    ran as there are such runs of them all, the tables list them in the same order.
    """
    at = grouped((str(run.get("source_locator", "")), run) for run in runs)
    at.pop("", None)
    alike = [_alike(row, at.get(str(row.get("source_locator", "")), [])) for row in rows]
    together: dict[tuple[int, ...], list[int]] = {}
    for place, (row, found) in enumerate(zip(rows, alike, strict=True)):
        if _RAN.fullmatch(str(row.get("outcome") or "")):
            together.setdefault(tuple(map(id, found)), []).append(place)
    for places in together.values():
        if len(places) == len(alike[places[0]]):
            for place, run in zip(places, alike[places[0]], strict=True):
                alike[place] = [run]
    return [_with_its_run(row, found) for row, found in zip(rows, alike, strict=True)]


def _alike(row: Row, runs: Sequence[Row]) -> list[Row]:
    said = {column: value for column, value in row.items() if value and column not in _NOT_OF_A_LAYOUT}
    return [run for run in runs if all(run.get(column) in (None, "", value) for column, value in said.items())]


def _with_its_run(row: Row, alike: Sequence[Row]) -> Row:
    columns = [each for each in (alike[0] if alike else ()) if each in ABOUT_THE_RUN - _NOT_OF_A_LAYOUT or "." in each]
    agreed = {each: alike[0][each] for each in columns if len({run.get(each) for run in alike}) == 1}
    return {**row, **{column: value for column, value in agreed.items() if not row.get(column)}}


def _outcome(number: int, row: Row, known: dict[Any, Any]) -> Outcome:
    said = str(row.get("outcome") or "")
    framework = row.get("framework") or row.get("source") or ""
    filled = {**row, "measured_value": "1", "measured_unit": "iteration_s", "framework": framework}
    if not _RAN.fullmatch(said) and not _FULL.search(said):
        return Outcome(number, said, None, None, None, f"outcome {said!r} is neither ok nor out of memory")
    run = read_run(filled, f"row {number}", known=known)
    if run.skipped:
        return Outcome(number, said, None, None, None, run.skipped)
    try:
        # Only a run that was measured says that what it leaves open fitted.
        answer = predict(run if _RAN.fullmatch(said) else replace(run, memory_savings=()))
    except (FlopcastError, ValueError, ArithmeticError, MemoryError) as error:
        return Outcome(number, said, None, None, None, reason(error))
    predicted, available = "fits" if answer.fits else "oom", answer.memory_available_bytes
    peak, comparable = _peak(row), _comparable(row, answer)
    return Outcome(number, said, predicted, answer.largest.total, available, None, peak, comparable)


_COUNTS: dict[str, Callable[[MemoryUse], Number]] = {
    "": lambda use: use.in_use,
    "allocated": lambda use: use.allocated,
    "reserved": lambda use: use.reserved,
}


def _comparable(row: Row, answer: Estimate) -> float:
    """The predicted peak as the row's measurement counts it, on the pipeline rank that it is of. [bytes]

    What the allocator keeps beyond what is needed has no more room than the GPU leaves.
    """
    use = answer.memory[-1] if row.get("peak_rank") == "last" else answer.largest
    source = str(row.get("source") or row.get("framework") or "")
    by_source = (counts for words, counts in FACTS["peaks"].items() if named_in(source, words))
    counted = _COUNTS[row.get("peak_counts") or next(by_source, "")](use)
    return float(min(counted, max(use.total, answer.memory_available_bytes)))


def _peak(row: Row) -> float | None:
    """The measured peak; None where the cell is empty or no number. [bytes]"""
    try:
        return float(row["peak_gb"]) * 1e9 if row.get("peak_gb") else None
    except ValueError:
        return None


def summary(outcomes: list[Outcome]) -> dict[str, float | int | None]:
    """Accuracy, and the shares of false alarms (ran, but called out of memory) and misses (the reverse).

    Without a modelled row there is no accuracy: None. Of predicted over measured peaks − 1, peak_error and peak_worst
    are the median and the largest size, peak_bias is the mean.
    """
    used = [item for item in outcomes if item.predicted is not None]
    alarms = sum(item.ran and item.predicted == "oom" for item in used)
    misses = sum(not item.ran and item.predicted == "fits" for item in used)
    count = max(len(used), 1)
    peaks = [error for item in used if (error := item.peak_error) is not None]
    return {
        "peaks": len(peaks),
        "peak_error": median(map(abs, peaks)) if peaks else None,
        "peak_worst": max(map(abs, peaks)) if peaks else None,
        "peak_bias": sum(peaks) / len(peaks) if peaks else None,
        "count": len(used),
        "skipped": len(outcomes) - len(used),
        "accuracy": 1.0 - (alarms + misses) / count if used else None,
        "false_oom": alarms / count,
        "false_oom_of_those_that_ran": alarms / max(sum(item.ran for item in used), 1),
        "missed_oom": misses / count,
    }


def report(found: dict[str, Any]) -> Iterator[str]:
    """A summary in words."""
    if not found["count"]:
        yield f"memory: none of {found['skipped']} rows could be modelled"
        return
    yield (
        f"memory: {found['accuracy']:.1%} of {found['count']} outcomes right; called out of memory though they ran "
        f"{found['false_oom']:.1%}, missed {found['missed_oom']:.1%}; {found['skipped']} rows not modelled"
    )
    if found["peaks"]:
        yield (
            f"measured peaks: {found['peaks']}; predicted over measured − 1 is {found['peak_error']:.1%} in size at "
            f"the median, {found['peak_worst']:.0%} at worst, {found['peak_bias']:+.1%} on average"
        )
