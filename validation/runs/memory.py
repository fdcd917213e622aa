"""Does it fit? Predicted against what was found by trying."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.from_runs import predict
from calibration.readers.training_runs import read_rows, read_run, reason
from sim.errors import FlopcastError

_REQUIRED = ("gpu", "num_gpus", "layers", "hidden", "heads", "seq_len", "outcome")
_RAN = re.compile(r"ok|fits?|yes|ran|success", re.IGNORECASE)
_FULL = re.compile(r"oom|out[ -]of[ -]memory|^no$|does(n't| not) fit", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One layout: what happened, what was predicted; the peak where one was measured. [bytes]"""

    row: int
    outcome: str
    predicted: str | None
    needed_bytes: float | None
    available_bytes: float | None
    skipped: str | None = None
    peak_bytes: float | None = None

    @property
    def ran(self) -> bool:
        """Whether the run fitted in memory."""
        return bool(_RAN.fullmatch(self.outcome))

    @property
    def right(self) -> bool | None:
        """Whether the prediction agrees; None where there is none."""
        return None if self.predicted is None else (self.predicted == "fits") == self.ran

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def score_memory(path: Path) -> list[Outcome]:
    """Predict whether every row of a CSV of layouts fits.

    Columns are those of a table of runs, with `outcome` ("ok" or "OOM", in these or other words) instead of the
    measurement, and optionally `kernel` (attention and norm) and `peak_gb`, the measured peak of the fullest GPU. [GB]
    """
    known: dict[Any, Any] = {}
    return [_outcome(number, row, known) for number, row in enumerate(read_rows(path, _REQUIRED), start=1)]


def _outcome(number: int, row: dict[str, str], known: dict[Any, Any]) -> Outcome:
    said = row.get("outcome") or ""
    kernel = row.get("kernel") or ""
    source = row.get("source") or ""
    filled = {
        **row,
        "measured_value": "1",
        "measured_unit": "iteration_s",
        "framework": row.get("framework") or ("Aleph Alpha" if "Aleph Alpha" in source else ""),
        "notes": f"{row.get('notes') or ''}; attention/norm kernel: {kernel}" if kernel else row.get("notes") or "",
    }
    if not _RAN.fullmatch(said) and not _FULL.search(said):
        return Outcome(number, said, None, None, None, f"outcome {said!r} is neither ok nor out of memory")
    run = read_run(filled, f"row {number}", known=known)
    if run.skipped:
        return Outcome(number, said, None, None, None, run.skipped)
    try:
        answer = predict(run)
    except (FlopcastError, ValueError, ArithmeticError, MemoryError) as error:
        return Outcome(number, said, None, None, None, reason(error))
    predicted, available = "fits" if answer.fits else "oom", answer.memory_available_bytes
    return Outcome(number, said, predicted, answer.largest.total, available, peak_bytes=_peak(row))


def _peak(row: dict[str, str]) -> float | None:
    """The measured peak; None where the cell is empty or no number. [bytes]"""
    try:
        return float(row["peak_gb"]) * 1e9 if row.get("peak_gb") else None
    except ValueError:
        return None


def summary(outcomes: list[Outcome]) -> dict[str, float | int | None]:
    """Accuracy, and the shares of false alarms (ran, but called out of memory) and misses (the reverse).

    Without a modelled row there is no accuracy: None. peak_error, peak_bias: mean of predicted over measured peaks − 1,
    as a size and as it is; the prediction includes the allowance for CUDA and libraries, which allocators leave out.
    """
    used = [item for item in outcomes if item.predicted is not None]
    alarms = sum(item.ran and item.predicted == "oom" for item in used)
    misses = sum(not item.ran and item.predicted == "fits" for item in used)
    count = max(len(used), 1)
    peaks = [item.needed_bytes / item.peak_bytes - 1 for item in used if item.peak_bytes and item.needed_bytes]
    return {
        "peaks": len(peaks),
        "peak_error": sum(map(abs, peaks)) / len(peaks) if peaks else None,
        "peak_bias": sum(peaks) / len(peaks) if peaks else None,
        "count": len(used),
        "skipped": len(outcomes) - len(used),
        "accuracy": 1.0 - (alarms + misses) / count if used else None,
        "false_oom": alarms / count,
        "false_oom_of_those_that_ran": alarms / max(sum(item.ran for item in used), 1),
        "missed_oom": misses / count,
    }
