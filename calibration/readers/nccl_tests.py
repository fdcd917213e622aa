"""nccl-tests: the text table that all_reduce_perf and its kin print, and the JSON that `-J file` writes.

Formats: NVIDIA/nccl-tests:src/util.cu (writeResultHeader, writeBenchMarkBody). Times are in µs, bandwidths in GB/s.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from calibration.measurement import Measurement
from sim.errors import ProfileError, nearest

OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send",
}
#: bus bandwidth over algorithm bandwidth on n ranks (NVIDIA/nccl-tests:doc/PERFORMANCE.md)
BUS_FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "send": lambda n: 1.0,
}
_NAME = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|sendrecv)(?:_perf)?")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b")


def read_nccl_tests(path: Path, operation: str | None = None, num_ranks: int | None = None) -> list[Measurement]:
    """Read the output of an nccl-tests program.

    Parameters
    ----------
    path : Path
        Its standard output, or the file it wrote with -J.
    operation : str, optional
        all_reduce, all_gather, …; needed where neither file nor file name says it.
    num_ranks : int, optional
        Needed where the file does not list the ranks.

    Raises
    ------
    ProfileError
        Naming the line that is wrong: cut off, not a number, a failed check, or bandwidths that contradict the time.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if text.lstrip().startswith("{"):
        return _read_json(path, text, operation, num_ranks)
    return _read_text(path, text, operation, num_ranks)


def _operation(path: Path, text: str, asked: str | None) -> str:
    found = asked or next((match[1] for match in (_NAME.search(path.name), _NAME.search(text)) if match), None)
    if found is None:
        raise ProfileError(f"{path} does not say which collective it timed; name it (--operation all_reduce)")
    if found not in OPERATIONS:
        raise ProfileError(f"unknown collective {found!r}{nearest(found, OPERATIONS)}")
    return OPERATIONS[found]


def _read_text(path: Path, text: str, asked: str | None, asked_ranks: int | None) -> list[Measurement]:
    operation = _operation(path, text, asked)
    num_ranks = asked_ranks or len({int(match[1]) for match in _RANK.finditer(text)})
    if not num_ranks:
        raise ProfileError(f"{path} lists no ranks; give their number (--ranks 8)")
    columns: list[str] = []
    items = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.split()
        if cells[:3] == ["#", "size", "count"]:
            columns = cells[1:]
        if not cells or not cells[0].isdigit():
            continue
        where = f"{path}: line {number}"
        if not columns:
            raise ProfileError(f"{where} comes before the table's header (# size count type …); was the log cut off?")
        if len(cells) < len(columns):
            raise ProfileError(f"{where} has {len(cells)} of {len(columns)} columns; was the log cut off?")
        items += _row(where, operation, num_ranks, columns, cells)
    if not items:
        raise ProfileError(f"{path} holds no row of an nccl-tests table")
    return items


def _row(where: str, operation: str, num_ranks: int, columns: list[str], cells: list[str]) -> list[Measurement]:
    """One line of the table: out of place, then in place."""
    sides: dict[str, list[str]] = {}
    for name, cell in zip(columns, cells, strict=False):
        sides.setdefault(name, []).append(cell)
    wrong = set(sides.get("#wrong", [])) - {"0", "N/A"}
    if wrong:
        raise ProfileError(
            f"{where}: the test found wrong results (#wrong = {', '.join(sorted(wrong))}); do not use it"
        )
    try:
        times = [float(cell) for cell in sides.get("time", sides.get("cputime", []))]
        return _item(where, operation, num_ranks, int(sides["size"][0]), times, float(sides["busbw"][0]))
    except (KeyError, IndexError, ValueError) as error:
        raise ProfileError(f"{where}: not a row of the table: {error}") from None


def _read_json(path: Path, text: str, asked: str | None, asked_ranks: int | None) -> list[Measurement]:
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"{path} is not whole JSON: {error}; was the file cut off?") from None
    config = data.get("config", {})
    operation = _operation(path, json.dumps({name: value for name, value in data.items() if name != "results"}), asked)
    num_ranks = asked_ranks or len(config.get("devices", []))
    if not num_ranks:
        raise ProfileError(f"{path} lists no devices; give the number of ranks (--ranks 8)")
    items = []
    for number, row in enumerate(data.get("results", []), start=1):
        where = f"{path}: result {number}"
        try:
            sides = [row[name] for name in ("out_of_place", "in_place") if row.get(name)]
            if any(side.get("nwrong") for side in sides):
                raise ProfileError(f"{where}: the test found wrong results; do not use it")
            times = [float(side["time"] if "time" in side else side["cpu_time"]) for side in sides]
            items += _item(where, operation, num_ranks, int(row["size"]), times, float(sides[0]["bus_bw"]))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ProfileError(f"{where} lacks a value: {error!r}") from None
    if not items:
        raise ProfileError(f"{path} holds no results")
    return items


def _item(
    where: str, operation: str, num_ranks: int, nbytes: int, times_us: list[float], busbw_gbps: float
) -> list[Measurement]:
    """The faster of out of place and in place, checked against the bandwidth printed beside it; no empty message."""
    if nbytes == 0:
        return []
    if min(times_us) <= 0:
        raise ProfileError(f"{where}: time {min(times_us)} is not positive")
    expected = nbytes / (times_us[0] * 1e3) * BUS_FACTOR[operation](num_ranks)
    # Printed with two decimals of GB/s and few of the time: allow rounding, catch a wrong number of ranks.
    if abs(expected - busbw_gbps) > 0.01 * busbw_gbps + 0.02:
        raise ProfileError(
            f"{where}: the time gives a bus bandwidth of {expected:.2f} GB/s on {num_ranks} ranks, but "
            f"{busbw_gbps:.2f} is printed; is the number of ranks right?"
        )
    shape = {"operation": operation, "num_ranks": num_ranks, "nbytes": nbytes}
    return [Measurement("collective", dict(shape), min(times_us) * 1e-6, source=where)]
