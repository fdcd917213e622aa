"""A plain table of measurements of one kind, CSV or TSV, whose columns tell the kind (m, n, k …)."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.log import Log, Reading, Source, read_source
from flopcast_calibration.readers.names import (
    DEVICE_NAMES,
    DTYPE_NAMES,
    FLOP_RATES,
    REMARKS,
    SHAPES,
    TIMES,
    bandwidth,
    plain,
    read_dtype,
    statistic,
)
from flopcast_calibration.readers.table_rows import check_shape, row_time
from sim.errors import ProfileError


class Column(NamedTuple):
    """A column: its heading, and what its cells are.

    role : shape, time, rate, dtype, device, or unread.
    of : of a shape our name; of a time its unit; of a rate (quantity, unit or None where bits and bytes cannot be told
        apart).
    """

    name: str
    role: str
    of: Any = None


def looks_like(text: str) -> bool:
    """Whether a text begins with a table's header that says what a row is."""
    lines = _lines(text)
    names = {plain(name) for name in _cells(lines[0][1], _separator(lines[0][1]))} if lines else set()
    known = {*TIMES, *FLOP_RATES, *(name for shapes in SHAPES.values() for name in shapes)}
    return len(names & known) >= 2


def read(source: Source) -> Log:
    """Every row of a table."""
    lines = _lines(source.text)
    if not lines:
        raise ProfileError(f"{source.path} holds nothing but comments")
    separator = _separator(lines[0][1])
    header = _cells(lines[0][1], separator)
    kind = _kind(source, header)
    twice = [name for name, count in Counter(map(plain, header)).items() if count > 1 and name]
    if twice:
        raise ProfileError(f"{source.path}: the column {twice[0]} occurs twice; keep one, or name them apart")
    columns, reading, devices = _columns(header, kind), Reading(source), set[str]()
    _require_time(source, columns)
    for number, line in lines[1:]:
        cells, where = _cells(line, separator), source.at(number)
        if all(re.fullmatch(r":?-*:?", cell) for cell in cells):
            continue  # the rule under a Markdown table's header
        while len(cells) > len(header) and not cells[-1]:
            cells.pop()
        if len(cells) != len(header):
            raise ProfileError(f"{where} has {len(cells)} cells, the header {len(header)}; was the file cut off?")
        filled = [(column, cell) for column, cell in zip(columns, cells, strict=True) if cell]
        reading.items.append(_row(source, where, kind, filled))
        devices |= {cell for column, cell in filled if column.role == "device"}
    if len(devices) > 1:
        raise ProfileError(
            f"{source.path} was measured on several machines ({', '.join(sorted(devices))}); a profile is of one: "
            "split it"
        )
    reading.notes = list(_notes(source, columns, reading.items))
    return reading.log("a header and no rows", device="".join(devices))


def read_each_device(path: Path) -> dict[str, Log]:
    """A table's rows by the device that they were measured on, as `read` reads those of one.

    A table without a column for the device has none; its errors are those of `read`.
    """
    source = read_source(path)
    (first, head), *lines = _lines(source.text) or [(0, "")]
    header = _cells(head, _separator(head))
    index = next((place for place, name in enumerate(header) if plain(name) in DEVICE_NAMES), None)
    if index is None:
        return {}
    of_device: dict[str, set[int]] = {}
    for number, line in lines:
        cells = _cells(line, _separator(head))
        of_device.setdefault(cells[index] if index < len(cells) else "", {first}).add(number)
    numbered = list(enumerate(source.text.splitlines(), start=1))
    texts = {device: "\n".join(line * (at in kept) for at, line in numbered) for device, kept in of_device.items()}
    return {device: read(replace(source, text=text)) for device, text in texts.items()}


def _notes(source: Source, columns: list[Column], items: list[Measurement]) -> Iterator[str]:
    """Say what of a table is not read, or taken for granted."""
    unread = [column.name for column in columns if column.role == "unread"]
    unread += [column.name for column in columns if column.role == "rate" and column.of[1] is None]
    unread = [name for name in unread if name.strip().lower() not in REMARKS]
    if unread:
        yield f"columns that nothing reads: {', '.join(unread)}"
    roles = {column.role for column in columns}
    if "rate" in roles and "time" not in roles and any(item.shape.get("causal") for item in items):
        yield "rates of causal attention are taken to count half the square, as flash-attention does"
    names = (SHAPES["collective"].get(plain(column.name)) for column in columns)
    if not source.nodes and "num_nodes" not in names and any(item.kind == "collective" for item in items):
        yield "no column says the number of nodes; one is assumed (a column nodes, or --nodes)"
    again = sum(count > 1 for count in Counter(item.key for item in items).values())
    if again:
        yield f"{again} shapes occur more than once; the shortest time of each counts"


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
        cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        cells = line.split(separator)
    return [cell.strip() for cell in cells]


def _kind(source: Source, header: list[str]) -> str:
    """The kind of every row, by the columns."""
    names = {plain(name) for name in header}
    telling = {
        "gemm": {"m", "n", "k"},
        "attention": {"heads", "length", "head_dim"},
        "copy": {"nbytes", "direction"},
        "collective": {"nbytes"} if source.operation else {"nbytes", "operation"},
    }
    for kind, fields in telling.items():
        if fields <= {ours for name, ours in SHAPES[kind].items() if name in names}:
            return kind
    training = "; runs of training are for flopcast calibrate from-runs" if names & {"tp", "pp", "dp"} else ""
    raise ProfileError(
        f"{source.path} lacks columns that say the kind (m, n, k; heads, length, head_dim; operation, nbytes, "
        f"num_ranks; nbytes, direction); it has {header}{training}"
    )


def _columns(header: list[str], kind: str) -> list[Column]:
    """What every column holds."""
    shapes = SHAPES["gemm"] | SHAPES["bmm"] if kind == "gemm" else SHAPES[kind]
    found: list[Column] = []
    ranks: dict[int, int] = {}
    for original in header:
        name = plain(original)
        timed, rank = statistic(name)
        column = Column(original, "unread")
        if name in shapes:
            column = Column(original, "shape", shapes[name])
        elif timed in TIMES:
            column = Column(original, "time", TIMES[timed])
        elif timed in FLOP_RATES:
            column = Column(original, "rate", ("flop", FLOP_RATES[timed]))
        elif rate := bandwidth(original):
            column, rank = Column(original, "rate", rate), 1
        elif name in DTYPE_NAMES and all(each.role != "dtype" for each in found):
            column = Column(original, "dtype")
        elif name in DEVICE_NAMES:
            column = Column(original, "device")
        if column.role in ("time", "rate"):
            ranks[len(found)] = rank
        found.append(column)
    for index, rank in ranks.items():  # a mean beside a median says less
        if rank > min(ranks.values()):
            found[index] = Column(header[index], "unread")
    return found


def _require_time(source: Source, columns: list[Column]) -> None:
    """A time or a rate must be there, and rates in a unit that is one."""
    rates = [column for column in columns if column.role == "rate"]
    if any(column.role == "time" for column in columns) or any(column.of[1] for column in rates):
        return
    if rates:
        raise ProfileError(
            f"{source.path}: the column {rates[0].name!r} may be bits or bytes; rename it (GB/s or GBps, B for bytes, "
            "after dividing bits by 8), or add a time (time_us)"
        )
    wanted = "a time (time_s, time_us …) or a rate (tflops; algbw; bandwidth_GBps)"
    raise ProfileError(f"{source.path} lacks {wanted}; it has {[column.name for column in columns]}")


def _row(source: Source, where: str, kind: str, cells: list[tuple[Column, str]]) -> Measurement:
    """The measurement of a row, by its cells that are filled in."""
    shape: Shape = {}
    for column, cell in cells:
        if column.role == "shape":
            value = _value(cell)
            if shape.setdefault(column.of, value) != value:
                said = f"{shape[column.of]} and {value}"
                raise ProfileError(f"{where}: two columns mean {column.of}, and say {said}; keep one")
        elif column.role == "dtype" and kind in ("gemm", "attention"):
            shape["dtype"] = read_dtype(where, cell)
    if kind == "gemm" and "batch" in shape:
        batch = shape.pop("batch")
        kind, shape = ("gemm", shape) if batch == 1 else ("bmm", {"batch": batch, **shape})
    check_shape(source, where, kind, shape)
    times = [(column.name, cell, column.of) for column, cell in cells if column.role == "time"]
    rates = [(column.name, cell, *column.of) for column, cell in cells if column.role == "rate"]
    return Measurement(kind, shape, row_time(where, kind, shape, times, rates), source=where)


def _value(text: str) -> float | int | str:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
