"""Does it fit? Predicted against what was found by trying."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.from_runs import predict
from calibration.readers.training_runs import read_run
from sim.errors import FlopcastError, SpecError

_REQUIRED = ("gpu", "num_gpus", "layers", "hidden", "heads", "seq_len", "outcome")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One layout: what happened, what was predicted. [bytes]"""

    row: int
    outcome: str
    predicted: str | None
    needed_bytes: float | None
    available_bytes: float | None
    skipped: str | None = None

    @property
    def ran(self) -> bool:
        """Whether the run fitted in memory."""
        return self.outcome.strip().lower() in ("ok", "fits", "yes", "success")

    @property
    def right(self) -> bool | None:
        """Whether the prediction agrees; None where there is none."""
        return None if self.predicted is None else (self.predicted == "fits") == self.ran

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def score_memory(path: Path) -> list[Outcome]:
    """Predict whether every row of a CSV of layouts fits.

    Columns are those of a table of runs, with `outcome` ("ok", or anything else for out of memory) instead of the
    measurement, and optionally `kernel` (attention and norm).
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
            if missing:
                raise SpecError(f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
            return [_outcome(number, row) for number, row in enumerate(reader, start=1)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"cannot read {path}: {error}") from None


def _outcome(number: int, row: dict[str, str]) -> Outcome:
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
    run = read_run(filled, f"row {number}")
    if run.skipped:
        return Outcome(number, said, None, None, None, run.skipped)
    try:
        answer = predict(run)
    except (FlopcastError, ValueError, OverflowError) as error:
        return Outcome(number, said, None, None, None, " ".join(str(error).split()))
    return Outcome(number, said, "fits" if answer.fits else "oom", answer.largest.total, answer.memory_available_bytes)


def summary(outcomes: list[Outcome]) -> dict[str, float | int]:
    """Accuracy, and the shares of false alarms (ran, but called out of memory) and misses (the reverse)."""
    used = [item for item in outcomes if item.predicted is not None]
    alarms = sum(item.ran and item.predicted == "oom" for item in used)
    misses = sum(not item.ran and item.predicted == "fits" for item in used)
    count = max(len(used), 1)
    return {
        "count": len(used),
        "skipped": len(outcomes) - len(used),
        "accuracy": 1.0 - (alarms + misses) / count,
        "false_oom": alarms / count,
        "false_oom_of_those_that_ran": alarms / max(sum(item.ran for item in used), 1),
        "missed_oom": misses / count,
    }
