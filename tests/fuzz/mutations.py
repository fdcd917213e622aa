"""Damage to files and values, drawn from a seeded generator."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 1000, 2**31, 2**53 + 1, 2**63, 10**15, 10**16, 10**30, 10**400, 0.0, -0.0, 0.5, 1e-9, 1e-300, 5e-324,
    1e9, 1e15, 1e30, 1e300, 1.7e308, -1e30, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
WORDS: tuple[Any, ...] = (
    "", " ", "x", "nan", "inf", "-", "none", "null", "true", "auto", "1e400", "0x10", "1_000", "3.2 TB/s", "-4 GB", "12 parsecs",
    "é", "\u202e", "a" * 5000, "../../etc/passwd", "1..2", "1,2", "{}", "[]", "--help", "\x1b[31m", "*", "&a", "!!python/object:os",
)  # fmt: skip


ACCIDENTS: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.replace(b"\n", b"\r\n"),
    lambda data: data.decode("utf-8", "replace").encode("utf-16"),
    lambda data: data[: len(data) // 2] + b"\0" + data[len(data) // 2 :],
    lambda data: data.translate(bytes.maketrans(b"\n", b" ")) * 3,
    lambda data: re.sub(rb"[0-9]", lambda digit: chr(0x0660 + int(digit[0])).encode(), data),  # Arabic digits
    lambda data: re.sub(rb"(?m)^(\s*[\w\"]+:) [0-9][^\n,]*", rb"\1 1e400", data, count=1),
    lambda data: re.sub(rb"(?m)^(\s*[\w\"]+:) [0-9][^\n,]*", rb"\1 NaN", data, count=1),
    lambda data: data + b"\n" + b"[" * 5000 + b"]" * 5000,
    lambda data: b"a: &a [x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n" + b"".join(
        b"%c: &%c [%s]\n" % (99 + i, 99 + i, b", ".join([b"*%c" % (98 + i)] * 9)) for i in range(9)
    ) + data,
    lambda data: b"base: &base {tp: 2}\nplan:\n  <<: *base\n" + data,
    lambda data: data + b"\n" + data,
    lambda data: data.replace(b": ", b": !!python/object/apply:os.getcwd ", 1),
    lambda data: data + b"# " + b"x" * 3_000_000 + b"\n",
)  # fmt: skip
"""What befalls whole files: byte order marks, other line ends and encodings, NULs, digits of other scripts, numbers beyond all
bounds, nesting and aliases without end, everything twice, tags, lines without end."""


def odd_value(rng: random.Random) -> Any:
    """A value that nobody meant."""
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(NUMBERS)
    if kind < 0.8:
        return rng.choice(WORDS)
    return rng.choice([None, True, False, [], {}, [1], {"a": 1}, [[]], ["x", 1], {"preset": "x"}])


def near_value(value: Any, rng: random.Random) -> Any:
    """A number a little or a lot off; anything else becomes an odd value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return odd_value(rng)
    factor = rng.choice([0, -1, 0.5, 2, 3, 10, 1e3, 1e6, 1e12])
    changed = value * factor + rng.choice([0, 0, 0, 1, -1])
    return int(changed) if isinstance(value, int) and abs(changed) < 1e300 else changed


def changed_data(data: Any, rng: random.Random) -> Any:
    """A copy of nested data with one to three places changed, taken away, renamed or doubled."""
    data = json.loads(json.dumps(data, default=str))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = list(_places(data))
        if not places:
            return odd_value(rng)
        holder, key = rng.choice(places)
        what = rng.random()
        if what < 0.45:
            holder[key] = odd_value(rng)
        elif what < 0.7:
            holder[key] = near_value(holder[key], rng)
        elif what < 0.8:
            del holder[key]
        elif what < 0.88 and isinstance(holder, dict):
            holder[rng.choice([f"{key}x", str(key).upper(), "", "preset", "name"])] = holder.pop(key)
        else:
            holder[key] = [holder[key], holder[key]] if rng.random() < 0.5 else {"value": holder[key]}
    return data


def changed_text(text: str, rng: random.Random) -> bytes:
    """A text with lines or letters damaged, as an editor, a download or a copy from a page leaves it."""
    lines = text.splitlines(keepends=True) or [""]
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(lines))
        line = lines[at]
        match rng.randrange(9):
            case 0:
                lines[at] = ""
            case 1:
                lines.insert(at, line)
            case 2:
                lines[at:] = [line[: rng.randrange(len(line) + 1)]]
            case 3:
                digits = [place for place, letter in enumerate(line) if letter.isdigit()]
                if digits:
                    place = rng.choice(digits)
                    new = str(rng.choice([*NUMBERS[:24], "", "nan", "-", "e9"]))
                    lines[at] = line[:place] + new[:60] + line[place + 1 :]
            case 4:
                place = rng.randrange(len(line) + 1)
                lines[at] = line[:place] + rng.choice([str(word) for word in WORDS]) + line[place:]
            case 5:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 6:
                lines[at] = line.replace(rng.choice(":,={}[]\"' \n#") or " ", rng.choice(["", ":", ",", "\t", '"']), 1)
            case 7:
                lines[at] = line[: len(line) // 2] + "\n"
            case _:
                place = rng.randrange(len(line) + 1)
                lines[at] = line[:place] + chr(rng.randrange(1, 0x250)) + line[place:]
    data = "".join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = rng.choice(ACCIDENTS)(data)
    if rng.random() < 0.03:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + bytes([rng.randrange(256)]) + data[place:]
    return data


def _places(data: Any) -> Any:
    """(holder, key) of every value in nested data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        yield data, key
        yield from _places(value)
