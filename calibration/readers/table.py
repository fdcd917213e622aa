"""A plain table of measurements of one kind, CSV or TSV, whose columns tell the kind (m, n, k …)."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flopcast_calibration.measurement import REQUIRED, Measurement, Shape, is_number
from flopcast_calibration.readers.collectives import BUS_FACTOR, collective
from flopcast_calibration.readers.log import Log, Reading, Source, positive, read_source
from flopcast_calibration.readers.names import (
    DEVICE_NAMES,
    DIRECTIONS,
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
from sim.errors import ProfileError, nearest


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
    columns, rows = _rows(source)
    devices = sorted({device for device, _ in rows if device})
    if len(devices) > 1:
        raise ProfileError(
            f"{source.path} was measured on several machines ({', '.join(devices)}); a profile is of one: split it"
        )
    return _log(source, columns, [item for _, item in rows], "".join(devices))


def read_each_device(path: Path) -> dict[str, Log]:
    """A table's rows by the device that they were measured on; none of a file that is no table or names no device."""
    source = read_source(path)
    if not looks_like(source.text):
        return {}
    columns, rows = _rows(source)
    found: dict[str, list[Measurement]] = {}
    for device, item in rows if any(column.role == "device" for column in columns) else ():
        found.setdefault(device, []).append(item)
    return {device: _log(source, columns, items, device) for device, items in found.items()}


def _rows(source: Source) -> tuple[list[Column], list[tuple[str, Measurement]]]:
    """The columns of a table, and every row with the device that it names."""
    lines = _lines(source.text)
    if not lines:
        raise ProfileError(f"{source.path} holds nothing but comments")
    separator = _separator(lines[0][1])
    header = _cells(lines[0][1], separator)
    kind = _kind(source, header)
    twice = [name for name, count in Counter(map(plain, header)).items() if count > 1 and name]
    if twice:
        raise ProfileError(f"{source.path}: the column {twice[0]} occurs twice; keep one, or name them apart")
    columns, rows = _columns(header, kind), []
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
        device = next((cell for column, cell in filled if column.role == "device"), "")
        rows.append((device, _row(source, where, kind, filled)))
    return columns, rows


def _log(source: Source, columns: list[Column], items: list[Measurement], device: str) -> Log:
    return Reading(source, items, list(_notes(source, columns, items))).log("a header and no rows", device=device)


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


#: A time and a rate of one row that differ by more than rounding have another unit, or another shape.
_SAME = 0.05
#: No machine is faster, and none that trains is slower where the work is not small: a unit is wrong.
_MOST = {"FLOP": 1e17, "bytes": 1e14}
_LEAST = {"FLOP": 1e7, "bytes": 1e6}
_SMALL = {"FLOP": 1e9, "bytes": 1e6}


def check_shape(source: Source, where: str, kind: str, shape: Shape) -> None:
    """Complete a shape, and put its words as ours.

    A ProfileError says that a needed value is missing or not positive, or that a word is unknown.
    """
    if kind == "collective":  # what the user says where the table does not
        said = {"operation": source.operation, "num_ranks": source.ranks, "num_nodes": source.nodes or 1}
        shape |= {name: value for name, value in said.items() if value is not None and name not in shape}
        if shape.get("groups") == 1:
            del shape["groups"]
    absent = [name for name in REQUIRED[kind] if name not in shape]
    if absent:
        raise ProfileError(f"{where}: a {kind} measurement needs {', '.join(absent)}")
    wanted = (*REQUIRED[kind], "batch", "num_nodes", "groups")
    numbers = [name for name in wanted if name in shape and name != "operation"]
    wrong = [name for name in numbers if not is_number(shape[name]) or shape[name] <= 0 or shape[name] % 1]
    if wrong:
        raise ProfileError(f"{where}: {wrong[0]} = {shape[wrong[0]]!r} is not a positive number")
    shape.update({name: int(shape[name]) for name in numbers})
    if kind == "collective":
        _check_collective(where, shape)
    if kind == "copy" and "direction" in shape:
        word = str(shape["direction"])
        if plain(word) not in DIRECTIONS:
            raise ProfileError(f"{where}: unknown direction {word!r}{nearest(word, DIRECTIONS)}")
        shape["direction"] = DIRECTIONS[plain(word)]
    if kind == "attention":
        for name in ("causal", "backward"):
            if str(shape.get(name, "")).lower() in ("true", "yes", "false", "no"):
                shape[name] = int(str(shape[name]).lower() in ("true", "yes"))
        shape["heads"] = shape["heads"] * shape.pop("batch", 1)  # type: ignore[operator]


def _check_collective(where: str, shape: Shape) -> None:
    try:
        shape["operation"] = collective(str(shape["operation"]))
    except ProfileError as error:
        raise ProfileError(f"{where}: {error}") from None
    if shape["num_ranks"] == 1:
        raise ProfileError(f"{where}: one rank communicates with nobody; leave the row out")
    if float(shape.get("num_nodes", 1)) > float(shape["num_ranks"]):
        raise ProfileError(f"{where}: {shape['num_nodes']} nodes are more than {shape['num_ranks']} ranks")


def row_time(
    where: str,
    kind: str,
    shape: Shape,
    times: Iterable[tuple[str, str, float]],
    rates: Iterable[tuple[str, str, str, float | None]],
) -> float:
    """The time of a row. [s]

    `times` are (column, cell, unit in s); `rates` are (column, cell, quantity, unit in FLOP/s or bytes/s; None where
    unknown). No time and no rate, one that is no positive number, or two that disagree are a ProfileError.
    """
    found = {name: positive(where, name, cell) * unit for name, cell, unit in times}
    work = _work(kind, shape)
    for name, cell, quantity, unit in rates:
        amount = work.get("FLOP" if quantity == "flop" else "bytes")
        if unit and amount:
            factor = BUS_FACTOR[str(shape["operation"])](float(shape["num_ranks"])) if quantity == "busbw" else 1.0
            found[name] = amount * factor / (positive(where, name, cell) * unit)
    if not found:
        raise ProfileError(f"{where}: no cell has a time, or a rate that gives one")
    first, time_s = next(iter(found.items()))
    for name, other in found.items():
        if abs(math.log(other / time_s)) > _SAME:
            raise ProfileError(
                f"{where}: {first} is {time_s:.4g} s, but {name} means {other:.4g} s; is a unit wrong (time_us)?"
            )
    for what, amount in work.items():
        rate = amount / time_s
        if rate > _MOST[what] or (rate < _LEAST[what] and amount >= _SMALL[what]):
            raise ProfileError(
                f"{where}: {first} of {time_s:.4g} s would be {rate:.3g} {what}/s, which no machine has; is its unit "
                "wrong (time_us, time_ms)?"
            )
    return time_s


def _work(kind: str, shape: Shape) -> dict[str, float]:
    """What a measurement computes or moves. [FLOP, bytes]"""

    def product(*names: str) -> float:
        return math.prod(float(shape.get(name, 1)) for name in names)

    if kind in ("gemm", "bmm"):
        return {"FLOP": 2 * product("batch", "m", "n", "k")}
    if kind == "attention":  # as flash-attention counts them: half where causal, 2.5 times backward
        share = (0.5 if shape.get("causal") else 1.0) * (2.5 if shape.get("backward") else 1.0)
        return {"FLOP": 4 * product("heads", "length", "length", "head_dim") * share}
    return {"bytes": product("nbytes")} if kind in ("copy", "collective") else {}
