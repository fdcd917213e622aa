"""The shape of a row of a table: all that its kind needs, in our words."""

from __future__ import annotations

import math
from typing import Any

from flopcast_calibration.measurement import REQUIRED, Shape
from flopcast_calibration.readers.collective_names import collective
from flopcast_calibration.readers.log import Source
from flopcast_calibration.readers.table_columns import DIRECTIONS, plain
from sim.errors import ProfileError, nearest


def check_shape(source: Source, where: str, kind: str, shape: Shape) -> None:
    """Complete a shape, and put its words as ours.

    A ProfileError says that a needed value is missing or not positive, or that a word is unknown.
    """
    if kind == "collective":
        _complete(source, shape)
    absent = [name for name in REQUIRED[kind] if name not in shape]
    if absent:
        raise ProfileError(f"{where}: a {kind} measurement needs {', '.join(absent)}")
    numbers = [
        name for name in (*REQUIRED[kind], "batch", "num_nodes", "groups") if name in shape and name != "operation"
    ]
    wrong = [name for name in numbers if not _counts(shape[name])]
    if wrong:
        raise ProfileError(f"{where}: {wrong[0]} = {shape[wrong[0]]!r} is not a positive number")
    shape.update({name: int(shape[name]) for name in numbers})
    if kind == "collective":
        try:
            shape["operation"] = collective(str(shape["operation"]))
        except ProfileError as error:
            raise ProfileError(f"{where}: {error}") from None
        if shape["num_ranks"] == 1:
            raise ProfileError(f"{where}: one rank communicates with nobody; leave the row out")
        if float(shape.get("num_nodes", 1)) > float(shape["num_ranks"]):
            raise ProfileError(f"{where}: {shape['num_nodes']} nodes are more than {shape['num_ranks']} ranks")
    if kind == "copy" and "direction" in shape:
        direction = DIRECTIONS.get(plain(str(shape["direction"])))
        if direction is None:
            raise ProfileError(
                f"{where}: unknown direction {shape['direction']!r}{nearest(str(shape['direction']), DIRECTIONS)}"
            )
        shape["direction"] = direction
    if kind == "attention":
        for name in ("causal", "backward"):
            if str(shape.get(name, "")).lower() in ("true", "yes", "false", "no"):
                shape[name] = int(str(shape[name]).lower() in ("true", "yes"))
        shape["heads"] = shape["heads"] * shape.pop("batch", 1)  # type: ignore[operator]


def _complete(source: Source, shape: Shape) -> None:
    """What the user says of collectives where a table does not."""
    for name, value in (("operation", source.operation), ("num_ranks", source.ranks), ("num_nodes", source.nodes)):
        if value is not None and name not in shape:
            shape[name] = value
    shape.setdefault("num_nodes", 1)
    if shape.get("groups") == 1:
        del shape["groups"]


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0 and value == int(value)
