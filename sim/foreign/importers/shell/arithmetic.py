"""Arithmetic of shell scripts in whole numbers: what stands in `$((…))` and `((…))`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

LARGEST = 10**15
MOST_TOKENS = 200
_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!?:()])")


class _Unreadable(ValueError):
    """Nothing that a launch script reckons."""


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero, as the shell does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if not 0 <= b <= 64 or abs(a) > 10**6:
        raise _Unreadable
    return int(a**b)


_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: a != 0 or b != 0},
    {"&&": lambda a, b: a != 0 and b != 0},
    {"==": operator.eq, "!=": operator.ne},
    {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt},
    {"<<": lambda a, b: a * _power(2, b), ">>": lambda a, b: a // _power(2, b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
    {"**": _power},
)
"""Operators of two numbers, the ones that bind least first."""


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
    tokens: list[str] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or len(tokens) > MOST_TOKENS:
            raise _Unreadable
        tokens.append(found[1])
        at = found.end()
    parser = _Parser(tokens, value_of)
    value = parser.choice()
    if parser.at != len(tokens):
        raise _Unreadable
    return value


class _Parser:
    def __init__(self, tokens: list[str], value_of: Callable[[str], int]) -> None:
        self.tokens, self.value_of, self.at = tokens, value_of, 0

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str) -> bool:
        """Go past this token, if it comes next."""
        here = self.next() == token
        self.at += here
        return here

    def choice(self) -> int:
        value = self.level(0)
        if not self.take("?"):
            return value
        first = self.choice()
        if not self.take(":"):
            raise _Unreadable
        second = self.choice()
        return first if value else second

    def level(self, depth: int) -> int:
        if depth == len(_LEVELS):
            return self.single()
        value = self.level(depth + 1)
        while self.next() in _LEVELS[depth]:
            apply = _LEVELS[depth][self.next()]
            self.at += 1
            try:
                value = int(apply(value, self.level(depth + 1)))
            except ZeroDivisionError:
                raise _Unreadable from None
            if abs(value) > LARGEST:
                raise _Unreadable
        return value

    def single(self) -> int:
        token = self.next()
        self.at += 1
        if token == "(":
            value = self.choice()
            if not self.take(")"):
                raise _Unreadable
            return value
        if token in ("-", "+", "!"):
            value = self.single()
            return int(not value) if token == "!" else -value if token == "-" else value
        if token.isdigit() and len(token) < 17:
            return int(token)
        if token.isidentifier():
            return self.value_of(token)
        raise _Unreadable
