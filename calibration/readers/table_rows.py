"""What a row of a table measured: its shape in our words, and its time as stated or from its rate.

What a row says twice must agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from flopcast_calibration.measurement import REQUIRED, Shape
from flopcast_calibration.readers.collectives import BUS_FACTOR, collective
from flopcast_calibration.readers.log import Source, positive
from flopcast_calibration.readers.names import DIRECTIONS, plain
from sim.errors import ProfileError, nearest

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
    wrong = [name for name in numbers if not _counts(shape[name])]
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


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0 and value == int(value)


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
