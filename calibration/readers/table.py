"""A plain table of measurements, CSV or TSV: with a column `kind`, or with columns that tell the kind (m, n, k …)."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flopcast_calibration.measurement import KINDS, Measurement, Shape
from flopcast_calibration.readers.dtypes import read_dtype
from flopcast_calibration.readers.log import Log, Source, read_source
from flopcast_calibration.readers.table_columns import (
    DEVICE_NAMES,
    DTYPE_NAMES,
    FLOP_RATES,
    REMARKS,
    SHAPES,
    TIMES,
    bandwidth,
    plain,
    statistic,
)
from flopcast_calibration.readers.table_rows import check_shape, row_time
from sim.errors import ProfileError, nearest


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where things stand in a row.

    shape : index -> our name. rates : index -> (quantity, unit or None where bits and bytes cannot be told apart).
    """

    names: tuple[str, ...]
    kind: int | None
    shape: dict[int, str]
    dtype: int | None
    device: int | None
    times: dict[int, float]
    rates: dict[int, tuple[str, float | None]]
    unread: tuple[int, ...]


def looks_like(text: str) -> bool:
    """Whether a text begins with a table's header that says what a row is."""
    lines = _lines(text)
    if not lines:
        return False
    names = {plain(name) for name in _cells(lines[0][1], _separator(lines[0][1]))}
    known = set(TIMES) | set(FLOP_RATES) | {name for shapes in SHAPES.values() for name in shapes} | {"kind"}
    return len(names) > 1 and len(names & known) >= 2


def _notes(source: Source, header: tuple[str, ...], columns: _Columns, items: list[Measurement]) -> list[str]:
    """Say what of a table is not read, or taken for granted."""
    notes = []
    unread = [] if columns.kind is not None else [*columns.unread]
    unread += [index for index, (_, unit) in columns.rates.items() if unit is None]
    unread = [index for index in unread if header[index].strip().lower() not in REMARKS]
    if unread:
        notes.append(f"columns that nothing reads: {', '.join(header[index] for index in unread)}")
    if columns.rates and not columns.times and any(item.shape.get("causal") for item in items):
        notes.append("rates of causal attention are taken to count half the square, as flash-attention does")
    says_nodes = any(SHAPES["collective"].get(plain(name)) == "num_nodes" for name in header) or source.nodes
    if not says_nodes and any(item.kind == "collective" for item in items):
        notes.append("no column says the number of nodes; one is assumed (a column nodes, or --nodes)")
    again = sum(count > 1 for count in Counter(item.key for item in items).values())
    if again:
        notes.append(f"{again} shapes occur more than once; the shortest time of each counts")
    return notes


def read(source: Source) -> Log:
    """Every row of a table."""
    lines = _lines(source.text)
    if not lines:
        raise ProfileError(f"{source.path} holds nothing but comments")
    separator = _separator(lines[0][1])
    header = tuple(_cells(lines[0][1], separator))
    kind = _kind(source, header)
    twice = [name for name, count in Counter(map(plain, header)).items() if count > 1 and name]
    if twice:
        raise ProfileError(f"{source.path}: the column {twice[0]} occurs twice; keep one, or name them apart")
    columns = _columns(source, header, kind)
    items = []
    devices = set()
    for number, line in lines[1:]:
        cells = _cells(line, separator)
        where = source.at(number)
        if all(re.fullmatch(r":?-*:?", cell) for cell in cells):
            continue  # the rule under a Markdown table's header
        while len(cells) > len(header) and not cells[-1]:
            cells.pop()
        if len(cells) != len(header):
            raise ProfileError(f"{where} has {len(cells)} cells, the header {len(header)}; was the file cut off?")
        items.append(_row(source, where, kind, columns, cells))
        if columns.device is not None and cells[columns.device]:
            devices.add(cells[columns.device])
    if not items:
        raise ProfileError(f"{source.path} holds a header and no rows")
    if len(devices) > 1:
        raise ProfileError(
            f"{source.path} was measured on several machines ({', '.join(sorted(devices))}); a profile is of one: "
            "split it"
        )
    return Log(
        {"device": devices.pop()} if devices else {}, tuple(items), tuple(_notes(source, header, columns, items))
    )


def read_each_device(path: Path) -> dict[str, Log]:
    """A table's rows by the device that they were measured on, as `read` reads those of one.

    A table without a column for the device has none; its errors are those of `read`.
    """
    source = read_source(path)
    lines = _lines(source.text)
    header = _cells(lines[0][1], _separator(lines[0][1])) if lines else []
    index = next((place for place, name in enumerate(header) if plain(name) in DEVICE_NAMES), None)
    if index is None:
        return {}
    of_device: dict[str, set[int]] = {}
    for number, line in lines[1:]:
        cells = _cells(line, _separator(lines[0][1]))
        of_device.setdefault(cells[index] if index < len(cells) else "", set()).add(number)
    found = {}
    for device, numbers in of_device.items():
        kept = numbers | {lines[0][0]}
        text = "\n".join(line * (number in kept) for number, line in enumerate(source.text.splitlines(), start=1))
        found[device] = read(replace(source, text=text))
    return found


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines that hold cells, numbered: no comments, no blank ones."""
    numbered = enumerate(text.splitlines(), start=1)
    return [(number, line) for number, line in numbered if line.strip() and not line.lstrip().startswith("#")]


def _separator(header: str) -> str:
    return max(",\t;|", key=header.count)


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        line = line.strip().removeprefix("|").removesuffix("|")
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:
        return [cell.strip() for cell in line.split(separator)]


def _kind(source: Source, header: tuple[str, ...]) -> str | None:
    """The kind of every row, by the columns; None where a column says it."""
    names = {plain(name) for name in header}
    if "kind" in names:
        return None

    def has(kind: str, *fields: str) -> bool:
        return set(fields) <= {ours for name, ours in SHAPES[kind].items() if name in names}

    if has("gemm", "m", "n", "k"):
        return "gemm"
    if has("attention", "heads", "length", "head_dim"):
        return "attention"
    if has("copy", "nbytes", "direction"):
        return "copy"
    if has("collective", "nbytes") and (has("collective", "operation") or source.operation):
        return "collective"
    training = "; runs of training are for flopcast calibrate from-runs" if names & {"tp", "pp", "dp"} else ""
    raise ProfileError(
        f"{source.path} lacks the column kind and time_s, or columns that say the kind (m, n, k; heads, length, "
        f"head_dim; operation, nbytes, num_ranks; nbytes, direction); it has {list(header)}{training}"
    )


def _columns(source: Source, header: tuple[str, ...], kind: str | None) -> _Columns:
    shapes = {}
    for name in ("gemm", "bmm") if kind == "gemm" else (kind,) if kind else ():
        shapes.update(SHAPES[name])
    found: dict[str, dict[int, Any]] = {"shape": {}, "times": {}, "rates": {}}
    single: dict[str, int] = {}
    unread = []
    ranks: dict[int, int] = {}
    for index, original in enumerate(header):
        name = plain(original)
        timed, rank = statistic(name)
        rate = bandwidth(original)
        if name == "kind":
            single["kind"] = index
        elif name in shapes:
            found["shape"][index] = shapes[name]
        elif timed in TIMES:
            found["times"][index] = TIMES[timed]
            ranks[index] = rank
        elif timed in FLOP_RATES:
            found["rates"][index] = ("flop", FLOP_RATES[timed])
            ranks[index] = rank
        elif rate:
            found["rates"][index] = rate
            ranks[index] = 1
        elif name in DTYPE_NAMES and "dtype" not in single:
            single["dtype"] = index
        elif name in DEVICE_NAMES and kind:
            single["device"] = index
        else:
            unread.append(index)
    for index, rank in ranks.items():  # a mean beside a median says less
        if rank > min(ranks.values()):
            found["times"].pop(index, None)
            found["rates"].pop(index, None)
            unread += [index] if kind else []
    kinds, dtypes, devices = (single.get(name) for name in ("kind", "dtype", "device"))
    columns = _Columns(header, kinds, found["shape"], dtypes, devices, found["times"], found["rates"], tuple(unread))
    _require_time(source, columns, kind)
    return columns


def _require_time(source: Source, columns: _Columns, kind: str | None) -> None:
    """A time or a rate must be there, and rates in a unit that is one."""
    if columns.times:
        return
    if any(unit for _, unit in columns.rates.values()):
        return
    unclear = [columns.names[index] for index in columns.rates]
    if unclear:
        raise ProfileError(
            f"{source.path}: the column {unclear[0]!r} may be bits or bytes; rename it (GB/s or GBps, B for bytes, "
            "after dividing bits by 8), or add a time (time_us)"
        )
    wanted = (
        "the column time_s" if kind is None else "a time (time_s, time_us …) or a rate (tflops; algbw; bandwidth_GBps)"
    )
    raise ProfileError(f"{source.path} lacks {wanted}; it has {list(columns.names)}")


def _row(source: Source, where: str, table_kind: str | None, columns: _Columns, cells: list[str]) -> Measurement:
    kind = cells[columns.kind] if columns.kind is not None else table_kind or ""
    if kind not in KINDS:
        raise ProfileError(f"{where}: unknown kind {kind!r}{nearest(kind, KINDS)}")
    shape: Shape = {}
    for index, name in columns.shape.items():
        if cells[index]:
            value = _value(cells[index])
            if shape.setdefault(name, value) != value:
                raise ProfileError(f"{where}: two columns mean {name}, and say {shape[name]} and {value}; keep one")
    if columns.kind is not None:  # in the long form every other column names the shape
        known = {**SHAPES[kind], **{ours: ours for ours in SHAPES[kind].values()}}
        for index in columns.unread:
            if cells[index]:
                original = columns.names[index]
                shape[known.get(plain(original), original)] = _value(cells[index])
    if columns.dtype is not None and cells[columns.dtype] and kind in ("gemm", "bmm", "attention"):
        shape["dtype"] = read_dtype(where, cells[columns.dtype])
    elif columns.dtype is not None and cells[columns.dtype] and columns.kind is not None:
        shape[columns.names[columns.dtype]] = cells[columns.dtype]
    if kind == "gemm" and "batch" in shape:
        batch = shape.pop("batch")
        kind, shape = ("gemm", shape) if batch == 1 else ("bmm", {"batch": batch, **shape})
    check_shape(source, where, kind, shape)
    times = [(columns.names[index], cells[index], unit) for index, unit in columns.times.items()]
    rates = [(columns.names[index], cells[index], *rate) for index, rate in columns.rates.items()]
    return Measurement(kind, shape, row_time(where, kind, shape, times, rates), source=where)


def _value(text: str) -> float | int | str:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
