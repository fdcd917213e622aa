"""Arithmetic of shell scripts in whole numbers, read with Python's grammar: `$((…))` and `((…))`; and edits of
a variable where it is used: `${NAME,,}`, `${NAME%.sh}`, `${NAME/a/b}`, `${NAME:0:2}`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from sim.foreign.importers.keys import UNKNOWN

LARGEST = 10**15
_CHOICE = re.compile(r"([^?]+)\?([^?:]+):(.+)")


class _Unreadable(ValueError):
    """Nothing that a launch script reckons."""


def _quotient(a: int, b: int) -> int:
    """Return the quotient rounded towards zero, as the shell does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if not 0 <= b <= 64 or abs(a) > 10**6:
        raise _Unreadable
    return int(a**b)


_SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient, ast.Pow: _power,
    ast.Mod: lambda a, b: a - b * _quotient(a, b), ast.LShift: lambda a, b: a * _power(2, b),
    ast.RShift: lambda a, b: a // _power(2, b), ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def reckon(text: str, value_of: Callable[[str], int]) -> int:
    """The value of an expression.

    Parameters
    ----------
    text : str
        Numbers, names, brackets, comparisons, `&& || !`, `a ? b : c` and + - * / % ** << >>.
    value_of : callable
        The number of a name.

    Raises
    ------
    ValueError
        Anything else, or a number larger than any of a launch script.
    """
    if choice := _CHOICE.fullmatch(text):
        return reckon(choice[2] if reckon(choice[1], value_of) else choice[3], value_of)
    if not re.fullmatch(r"[\w\s+*/%<>=!&|()-]+", text) or "//" in text:
        raise _Unreadable
    python = text.replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"!(?!=)", "~", python)  # binds as closely
    try:
        return _value(ast.parse(python.strip(), mode="eval").body, value_of)
    except (SyntaxError, ZeroDivisionError, MemoryError, KeyError):
        raise _Unreadable from None


def _value(node: ast.expr, value_of: Callable[[str], int]) -> int:
    match node:
        case ast.Constant(int(number)):
            value = int(number)
        case ast.Name(name):
            value = value_of(name)
        case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]) if type(sign) in _SIGNS:
            value = int(_SIGNS[type(sign)](_value(left, value_of), _value(right, value_of)))
        case ast.BoolOp(sign, parts):
            value = int((all if isinstance(sign, ast.And) else any)([_value(part, value_of) for part in parts]))
        case ast.UnaryOp(sign, inner):
            value = _value(inner, value_of)
            value = {ast.Invert: int(not value), ast.USub: -value, ast.UAdd: value}[type(sign)]
        case _:
            raise _Unreadable
    if abs(value) > LARGEST:
        raise _Unreadable
    return value


_LONGEST = 4000


def edited(text: str, edit: str) -> str:
    """A value after the edit that stands behind its name; not known where the edit is none of these."""
    if UNKNOWN in text or UNKNOWN in edit:
        return text if UNKNOWN in text else UNKNOWN
    if edit in (",,", "^^", ",", "^"):
        changed = text.lower() if edit[0] == "," else text.upper()
        return changed if len(edit) == 2 else changed[:1] + text[1:]
    if found := re.fullmatch(r"(//?)([^/]+)/?(.*)", edit, re.DOTALL):
        if set(found[2]) & set("*?["):
            return UNKNOWN
        return text.replace(found[2], found[3], -1 if found[1] == "//" else 1)
    if found := re.fullmatch(r":\s*(\d{1,6})(?::\s*(\d{1,6}))?", edit):
        begin = int(found[1])
        return text[begin : begin + int(found[2])] if found[2] else text[begin:]
    if (found := re.fullmatch(r"(%%?|##?)(.+)", edit, re.DOTALL)) and len(text) <= _LONGEST:
        return _cut(text, found[1], found[2])
    return UNKNOWN


def _cut(text: str, sign: str, pattern: str) -> str:
    """Without the shortest or the longest end (`%`) or beginning (`#`) that fits a pattern."""
    places = range(len(text) + 1)
    if sign in ("%", "##"):
        places = range(len(text), -1, -1)
    for place in places:
        part = text[place:] if sign[0] == "%" else text[:place]
        if fnmatchcase(part, pattern):
            return text[:place] if sign[0] == "%" else text[place:]
    return text
