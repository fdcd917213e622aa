"""A plain CSV of measurements: columns kind, time_s, and whatever names the shape (m, n, k, nbytes, num_ranks …)."""

from __future__ import annotations

import csv
from pathlib import Path

from calibration.measurement import KINDS, Measurement, Shape
from sim.errors import ProfileError, nearest

_REQUIRED = {
    "gemm": ("m", "n", "k"),
    "bmm": ("batch", "m", "n", "k"),
    "attention": ("heads", "length", "head_dim"),
    "memory": ("nbytes",),
    "launch": (),
    "copy": ("nbytes",),
    "collective": ("operation", "num_ranks", "nbytes"),
    "interference": (),
}


def read_table(path: Path) -> list[Measurement]:
    """Read a CSV of measurements.

    Raises
    ------
    ProfileError
        A column that is missing, or the line whose value is wrong.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("kind", "time_s") if name not in (reader.fieldnames or ())]
            if missing:
                raise ProfileError(f"{path} lacks the column {' and '.join(missing)}; it has {reader.fieldnames}")
            return [_row(f"{path}: line {reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _row(where: str, row: dict[str, str]) -> Measurement:
    kind = (row.pop("kind") or "").strip()
    if kind not in KINDS:
        raise ProfileError(f"{where}: unknown kind {kind!r}{nearest(kind, KINDS)}")
    try:
        time_s = float(row.pop("time_s"))
    except (TypeError, ValueError):
        raise ProfileError(f"{where}: time_s is not a number") from None
    if not 0 < time_s < float("inf"):
        raise ProfileError(f"{where}: time_s = {time_s} is not a positive time")
    shape: Shape = {name: _value(text) for name, text in row.items() if name and text not in (None, "")}
    absent = [name for name in _REQUIRED[kind] if name not in shape]
    if absent:
        raise ProfileError(f"{where}: a {kind} measurement needs {', '.join(absent)}")
    wrong = [
        name
        for name in _REQUIRED[kind]
        if name != "operation" and not (isinstance(shape[name], (int, float)) and shape[name] > 0)
    ]
    if wrong:
        raise ProfileError(f"{where}: {wrong[0]} = {shape[wrong[0]]!r} is not a positive number")
    return Measurement(kind, shape, time_s, source=where)


def _value(text: str) -> float | int | str:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
