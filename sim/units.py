"""Quantities: SI floats inside, human text at the border.

`parse("400 Gbit/s", "bytes_per_s")` is 5e10; `show(5.02e17, "FLOP/s")` is "502 PFLOP/s".
Letters follow the field: B is a byte, bit (of a bandwidth also b) a bit, k M G T P E are powers of 1000, Ki Mi Gi Ti
powers of 1024.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite

from sim.errors import SpecError, require_positive

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIX = r"(?P<prefix>Ki|Mi|Gi|Ti|[kKMGTPE]?)"

#: dimension -> (pattern of its unit after the prefix, what one such unit is in SI, an example for messages)
_UNITS: dict[str, list[tuple[str, float]]] = {
    "bytes": [(r"B|byte|bytes", 1.0), (r"bit|bits", 1 / 8)],
    "bytes_per_s": [(r"B/s|Bps|byte/s|bytes/s", 1.0), (r"b/s|bit/s|bits/s|bps", 1 / 8)],
    "flop_per_s": [(r"FLOP/s|FLOPS|flop/s|OP/s|OPS", 1.0)],
    "flop": [(r"FLOP|FLOPs|flop", 1.0)],
    "w": [(r"W|watt|watts", 1.0)],
}
_TIMES = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
EXAMPLES = {
    "bytes": "'80 GB' or '80 GiB'",
    "bytes_per_s": "'400 Gbit/s' or '2 TB/s'",
    "flop_per_s": "'312 TFLOP/s'",
    "flop": "'1 EFLOP'",
    "w": "'400 W'",
    "s": "'2 us' or '30 d'",
}
NOUNS = {
    "bytes": "a size",
    "bytes_per_s": "a bandwidth",
    "flop_per_s": "a compute rate",
    "flop": "an amount of compute",
    "w": "a power",
    "s": "a time",
}
_NUMBER = re.compile(r"\s*(?P<number>[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>\S.*)?$")


def number_and_unit(text: str) -> tuple[str, str] | None:
    """A number and what stands behind it, as they are written; None where the text begins with no number."""
    match = _NUMBER.match(text)
    return match and (match["number"].replace("_", ""), (match["unit"] or "").strip())


def _factor(unit: str, dimension: str) -> float | None:
    """What one `unit` is in SI, or None where it does not measure `dimension`."""
    if dimension == "s":
        return _TIMES.get(unit)
    for pattern, si in _UNITS[dimension]:
        match = re.fullmatch(f"{_PREFIX}(?:{pattern})", unit)
        if match:
            prefix = match["prefix"]
            return si * (_BINARY.get(prefix) or _DECIMAL[prefix])
    return None


def parse(text: str, dimension: str) -> float:
    """The SI value of a quantity written with its unit.

    text : such as "400 Gbit/s", "80 GB", "2.5 us".
    dimension : bytes, bytes_per_s, flop_per_s, flop, w or s.

    Raises SpecError: no unit, an unknown unit, or a unit of something else (a size where a bandwidth is needed).
    """
    if not (said := number_and_unit(text)):
        raise SpecError(f"{text!r} is not a quantity; write a number and a unit, such as {EXAMPLES[dimension]}")
    number, unit = float(said[0]), said[1]
    if not unit:
        raise SpecError(f"{text!r} has no unit; write {NOUNS[dimension]} such as {EXAMPLES[dimension]}")
    factor = _factor(unit, dimension)
    if factor is not None:
        if not isfinite(number * factor):
            raise SpecError(
                f"{text!r} is larger than any number; write {NOUNS[dimension]} such as {EXAMPLES[dimension]}"
            )
        return number * factor
    if dimension == "bytes" and re.fullmatch(f"{_PREFIX}b", unit):
        raise SpecError(f"{text!r} may be bytes or bits; write '{said[0]} {unit[:-1]}B' or '{said[0]} {unit[:-1]}bit'")
    for other in ("s", *_UNITS):
        if _factor(unit, other) is not None:
            raise SpecError(f"{text!r} is {NOUNS[other]}, not {NOUNS[dimension]}; write it as {EXAMPLES[dimension]}")
    raise SpecError(f"{text!r} has the unknown unit {unit!r}; write {NOUNS[dimension]} such as {EXAMPLES[dimension]}")


def pattern(dimension: str) -> str:
    """A regular expression, as JavaScript and Python read it, of the texts that `parse` takes for this dimension."""
    number = r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?"
    if dimension == "s":
        return rf"^\s*{number}\s*({'|'.join(_TIMES)})\s*$"
    units = "|".join(words for words, _ in _UNITS[dimension])
    return rf"^\s*{number}\s*(Ki|Mi|Gi|Ti|[kKMGTPE])?({units})\s*$"


def _in_largest(value: float, units: Iterable[tuple[float, str]], digits: int = 3) -> str:
    """A value in the first of some units that it reaches, or else in the last."""
    units = tuple(units)
    size, unit = next((each for each in units if abs(value) >= each[0]), units[-1])
    return f"{significant(value / size, digits)}{unit}"


def show(value: float, unit: str, digits: int = 3) -> str:
    """A value with an SI prefix and `digits` significant digits: show(5.02e17, "FLOP/s") == "502 PFLOP/s"."""
    prefixes = ((factor, f" {prefix}{unit}") for prefix, factor in reversed(_DECIMAL.items()) if prefix != "K")
    return _in_largest(value, prefixes, digits)


_DURATIONS = ((86400.0, " days"), (3600.0, " hours"), (1.0, " s"), (1e-3, " ms"), (1e-6, " µs"))


def show_time(seconds: float, digits: int = 3) -> str:
    """A duration in the unit a person would choose: 2.1e-6 -> "2.1 µs", 7.25e6 -> "83.9 days"."""
    return _in_largest(seconds, _DURATIONS, digits)


UNIT_NAMES = {"bytes": "B", "bytes_per_s": "B/s", "flop_per_s": "FLOP/s", "flop": "FLOP", "w": "W", "s": "s"}
"""What files call the unit of a field."""
_SHOWN = UNIT_NAMES | {"bits_per_s": "bit/s"}


def show_bare(value: float, dimension: str, digits: int = 3) -> str:
    """A quantity as a file has it, without decimals that say nothing: show_bare(5.0, "s") == "5 s"."""
    text = show_time(value, digits) if dimension == "s" and value else show(value, _SHOWN[dimension], digits)
    text = re.sub(r"(\.\d*?)0+(?= )", r"\1", text)
    return re.sub(r"\.(?= )", "", text).replace("hours", "h").replace("days", "d")


def between(low: str, high: str) -> str:
    """A range in words, with one unit where both ends have the same: between("2 GB", "3 GB") == "2 to 3 GB"."""
    number, _, unit = low.partition(" ")
    return f"{number if high.partition(' ')[2] == unit else low} to {high}"


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent (0.123, 12.3, 123, 1,234)."""
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    value = round(value, max(0, digits - whole))  # 0.9996 is 1.00, and 9.996 is 10.0
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    separator = "," if whole > 3 else ""
    return f"{value:{separator}.{max(0, digits - whole)}f}"


def value_words(value: object) -> str:
    """A field's value, or several of them, as a person writes it."""
    if isinstance(value, (list, tuple)):
        return " or ".join(map(value_words, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def listed(values: Iterable[object], last: str = "or") -> str:
    """Words for several values: `1, 2 or 4`."""
    *most, final = map(str, values)
    return f"{', '.join(most)} {last} {final}" if most else final


_COUNT_LETTERS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


LARGEST_COUNT = 1e50
"""Largest count: beyond it products of counts end in infinities."""
COUNT = r"^\s*\d[\d_]*(\.\d*)?([eE][-+]?\d+)?\s*[kKMBT]?\s*$"
"""What `parse_count` reads, for editors."""


_BINARY_COUNTS = ("_length", "sliding_window", "attention_chunk_size", "batch_size")
"""How names end of lengths in tokens and of batches in sequences, whose k people mean as 1,024: 8k is 8,192 there (also
the batch of Goyal et al. 2017, arXiv:1706.02677), and 8,000 elsewhere."""


def count_factor(letter: str, name: str) -> float | None:
    """What a letter behind a number stands for in the field `name`; None where it stands for nothing."""
    if name.endswith(_BINARY_COUNTS) and letter in ("k", "K", "M"):
        return 2.0**20 if letter == "M" else 2.0**10
    return _COUNT_LETTERS.get(letter)


def parse_count(text: str, name: str) -> float:
    """A large number as people write it: "70B", "1.4T", "5.76e23"; the k of lengths and batches is 1,024.

    Raises SpecError: no number, an unknown letter, or not above zero; the message calls it `name`.
    """
    said = number_and_unit(text)
    factor = count_factor(said[1], name) if said else None
    if not said or factor is None:
        raise SpecError(f"{name} = {text!r} is not a number; write it as 2.1, 70B or 5.76e23")
    value = float(said[0]) * factor
    require_positive(**{name: value})
    if value > LARGEST_COUNT:
        raise SpecError(f"{name} = {text!r} is more than {LARGEST_COUNT:.0e}, beyond anything there is to count")
    return value


def parse_whole(text: str, name: str) -> int:
    """A whole number as people write it: "4096", "4k", "15T"; of lengths and batches "4k" is 4,096.

    Raises SpecError: as `parse_count`, or the number is not whole.
    """
    plain = text.strip().isdecimal() and len(text) < 20  # exact, and zero for those who refuse it in words of their own
    number = int(text) if plain else parse_count(text, name)
    if number != int(number):
        raise SpecError(f"{name} = {text!r} is {number:,g}, which is no whole number; write 4096 or 4k")
    return int(number)


def show_short(number: float) -> str:
    """A large number as `parse_count` reads it: 6.7e10 -> "67.0B"; beyond trillions 1.2e+16."""
    if not 0 <= number < 1e15:
        return f"{number:.2e}"
    return _in_largest(number, ((_COUNT_LETTERS[letter], letter) for letter in ("T", "B", "M", "k", "")))


def show_count(number: float) -> str:
    """A large number in words: 1.008e12 -> "1.01 trillion"."""
    if number < 1e6:
        return f"{number:,.0f}"
    return _in_largest(number, ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")))
