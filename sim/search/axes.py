"""What a sweep goes over: a number of the scenario, or how many GPUs the plan uses, and its values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from sim.errors import SpecError
from sim.units import count_factor, number_and_unit

GEOMETRIC = 4.0
"""A range is cut into equal factors where its ends differ by more than this, into equal steps otherwise."""
POINTS = {True: 9, False: 5}
"""Points of a range in equal factors, and in equal steps, that does not say how many."""
DOUBLINGS = 12
"""A range is cut into doublings, up to so many, if its ends differ by a power of two. Whole numbers, which layouts and
batches must divide, are cut so from two doublings on."""
SIZE = "gpus"
"""The axis that is no field: how many GPUs the plan uses."""
_RANGE = re.compile(r"(?P<first>.+?)\.\.(?P<last>[^:]+)(?::(?P<count>.*))?$")


@dataclass(frozen=True, slots=True)
class Axis:
    """What is swept, over which values.

    path : as overrides write it, or SIZE.
    unit : of all values, as it was written; empty for pure numbers.
    spacing : listed, linear or geometric.
    """

    path: str
    unit: str
    values: tuple[float, ...] = ()
    spacing: str = "listed"

    def show(self, value: float) -> str:
        """A value as a person writes it."""
        number = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        return f"{number} {self.unit}".strip()

    def override(self, value: float) -> str:
        """The word that sets a value."""
        return f"{self.path}={f'{value!r} {self.unit}'.strip()}"


def parse_axis(text: str) -> Axis:
    """What is swept: a path of the scenario, `=`, and values with their unit.

    `a..b` is a range. Where b is more than four times a it is cut into doublings if they lead there, else 9 equal
    factors; where it is less, into 5 equal steps. Whole numbers double from four times a on. `a..b:N` has N values,
    `a,b,c` are these. A unit after the last value counts for all.

    Raises SpecError: values that cannot be read, or a field of the plan, which a search varies itself.
    """
    path, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not said:
        raise SpecError(f"--sweep {text!r} must look like cluster.inter_node_bandwidth=25..800Gbit/s")
    if path.startswith("plan."):
        raise SpecError(f"{path} is what a search varies; --sensitivity shows the best plan with each of its values")
    match = _RANGE.match(said)
    read, unit = _read(said.split(",") if match is None else [match["first"], match["last"]], path)
    whole = not unit and all(value.is_integer() for value in read)
    values, spacing = (read, "listed") if match is None else _spread(read, match["count"], path, said, whole)
    for value in values:
        if values.count(value) > 1:
            raise SpecError(f"--sweep {path}: {value:g} stands there twice")
    if path == SIZE and not (whole and min(values) >= 1):
        raise SpecError(f"--sweep {path}: {said} must be whole numbers of 1 or more")
    return Axis(path, unit, tuple(map(int, values) if whole else values), spacing)


def _read(parts: Sequence[str], path: str) -> tuple[list[float], str]:
    """Values as they were written, and the unit of all; letters of counts, such as the k of lengths, are counted in."""
    pairs = [number_and_unit(part.strip()) for part in parts]
    unit = (pairs[-1] or ("", ""))[1]
    values = []
    for part, pair in zip(parts, pairs, strict=True):
        if pair is None:
            raise SpecError(f"--sweep {path}: {part.strip()!r} is not a number; write a..b, a..b:N or a,b,c")
        number, factor = float(pair[0]), count_factor(pair[1] or unit, path)
        if not np.isfinite(number):
            raise SpecError(f"--sweep {path}: {part.strip()} is larger than any number")
        if factor is None and pair[1] not in ("", unit):
            raise SpecError(f"--sweep {path}: {part.strip()!r} has another unit than {parts[-1].strip()!r}; write one")
        values.append(number * (factor or 1.0))
    return values, unit if count_factor(unit, path) is None else ""


def _spread(ends: Sequence[float], many: str | None, path: str, said: str, whole: bool) -> tuple[list[float], str]:
    """The values of a range, and how they are spaced.

    many : how many there are, as it was written; None where it was not.
    whole : they count something.
    """
    first, last = ends
    if first >= last:
        raise SpecError(f"--sweep {path}: {said!r} must go from a smaller to a larger value")
    if many is not None and not (many.strip().isdecimal() and int(many) > 1):
        raise SpecError(f"--sweep {path}: {many!r} values; after the colon stands a whole number of two or more")
    geometric, doublings = first > 0 and last / first > GEOMETRIC, log2(last / first) if first > 0 else 0.0
    count = POINTS[geometric] if many is None else int(many)
    wide = geometric or (whole and doublings > 1.5)
    if many is None and wide and abs(doublings - round(doublings)) < 1e-9 and doublings < DOUBLINGS + 0.5:
        geometric, count = True, round(doublings) + 1
    values = np.geomspace(first, last, count) if geometric else np.linspace(first, last, count)
    # Rounding of the spacing leaves 99.99999999999999 where 100 is meant.
    tidy = [float(f"{value:.12g}") for value in (np.unique(values.round()) if whole else values).tolist()]
    return tidy, "geometric" if geometric else "linear"
