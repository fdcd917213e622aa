"""What words of a shell script stand for, as far as the script itself says. Nothing is run, no environment is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from sim.errors import SpecError
from sim.specs.importers.keys import UNKNOWN
from sim.specs.importers.shell_words import Piece, pieces_of

MOST_LETTERS = 1_000_000
"""Of all values together: a script that doubles a variable over and over ends here."""
LARGEST = 10**15
MOST_EXPANSIONS = 20
"""Inside each other."""
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(\[[@*]\]|\[\d+\])?(?:(:?[-=+?])(.*))?$", re.DOTALL)
_SPLIT, _QUOTED = "\ud800", "\ud801"
"""Where a word is split, and where a quotation makes a word even of nothing; no text in UTF-8 holds these."""


class Values:
    """The variables of a script while it is read."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.variables: dict[str, list[str]] = {}
        self._letters = 0

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: expanded, and split where it is not quoted."""
        return [each.replace(_QUOTED, "") for each in self._expanded(word, split=True).split(_SPLIT) if each]

    def value(self, word: str) -> str:
        """The text that a word becomes where it is not split: in an assignment or between brackets."""
        return self._expanded(word, split=False)

    def assign(self, name: str, values: list[str], more: bool, array: bool) -> None:
        """`NAME=` and `NAME+=`."""
        before = self.variables.get(name, []) if more else []
        self._count(*values)
        if array or not more:
            self.variables[name] = before + values
        else:
            self._count(*before)
            self.variables[name] = ["".join(before[:1] + values), *before[1:]]

    def _count(self, *texts: str) -> None:
        self._letters += sum(map(len, texts))
        if self._letters > MOST_LETTERS:
            raise SpecError(
                f"{self.where}: its variables grow beyond {MOST_LETTERS:,} letters; no launch script does that"
            )

    def _expanded(self, word: str, split: bool, depth: int = 0) -> str:
        """A word's text; where it may be split, with marks of where it is."""
        if depth > MOST_EXPANSIONS:
            raise SpecError(f"{self.where}: expansions more than {MOST_EXPANSIONS} deep; no launch script has them")
        text = ""
        for piece in pieces_of(word, self.where):
            items, several = self._items(piece, depth)
            self._count(*items)
            if not split:
                text += " ".join(items)
            elif piece.quoted:
                text += _QUOTED + (_SPLIT + _QUOTED if several else " ").join(items)
            elif piece.kind == "text":
                text += piece.text
            else:
                text += re.sub(r"[ \t\n]+", _SPLIT, _SPLIT.join(items))
        return text

    def _items(self, piece: Piece, depth: int) -> tuple[list[str], bool]:
        """(values of a piece, whether each is a word of its own even in quotes)."""
        if piece.kind == "variable":
            return self._variable(piece.text, depth)
        if piece.kind == "arithmetic":
            return [self._arithmetic(piece.text, depth)], False
        return [piece.text if piece.kind == "text" else UNKNOWN], False

    def _variable(self, inside: str, depth: int) -> tuple[list[str], bool]:
        """What stands between the braces of `${…}`."""
        match = _BRACED.match(inside)
        if not match:
            return [UNKNOWN], False
        name, index, sign, word = match.groups()
        if name in "@*" and sign is None:  # as called without arguments
            return [], True
        known = self.variables.get(name)
        if index in ("[@]", "[*]"):
            return ([UNKNOWN] if known is None else known), index == "[@]"
        place = int(index[1:-1]) if index and len(index) < 8 else 0
        value = None if known is None else (known[place] if place < len(known) else "")
        if sign is None:
            return [UNKNOWN if value is None else value], False
        there = value is not None and (value != "" or ":" not in sign)
        if sign[-1] == "+":
            return [self._expanded(word, False, depth + 1) if there else ""], False
        if value is not None and there:
            return [value], False
        if sign[-1] == "?":
            return [UNKNOWN], False
        text = self._expanded(word, False, depth + 1)
        if sign[-1] == "=" and name.isidentifier():
            self.assign(name, [text], more=False, array=False)
        return [text], False

    def _arithmetic(self, expression: str, depth: int) -> str:
        """The value of `$((…))` in whole numbers, or UNKNOWN."""
        if len(expression) > 200:
            return UNKNOWN
        text = self._expanded(expression, False, depth + 1)
        if UNKNOWN in text or len(text) > 400:
            return UNKNOWN
        try:
            return str(self._number(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
            return UNKNOWN

    def _number(self, node: ast.expr) -> int:
        """What an expression of whole numbers, names and + - * / % comes to; ValueError for anything else."""
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                pass
            case ast.Name():
                value = int((self.variables.get(node.id) or [""])[0])
            case ast.UnaryOp(op=ast.USub()):
                value = -self._number(node.operand)
            case ast.BinOp(op=op) if type(op) in _OPERATORS:
                value = _OPERATORS[type(op)](self._number(node.left), self._number(node.right))
            case _:
                raise ValueError("nothing that a launch script reckons")
        if abs(value) > LARGEST:
            raise ValueError("too large")
        return value


def _quotient(a: int, b: int) -> int:
    """Rounded towards zero, as the shell does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: _quotient,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
}
