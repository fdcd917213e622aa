"""What words of a shell script stand for, as far as the script itself says. Nothing is run, no environment is read."""

from __future__ import annotations

import ast
import re

from sim.errors import SpecError
from sim.specs.importers.shell_words import UNKNOWN

MOST_LETTERS = 1_000_000
"""Of all values together: a script that doubles a variable over and over ends here."""
LARGEST = 10**15
_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*#?$!-])(\[[@*]\]|\[\d+\])?(?:(:?[-=+?])(.*))?$", re.DOTALL)


class Values:
    """The variables of a script while it is read."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.variables: dict[str, list[str]] = {}
        self._letters = 0

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: expanded, and split where it is not quoted."""
        out: list[str] = []
        open_field: list[str] | None = None
        for text, quoted, splits in self._parts(word, 0):
            self._count(text)
            if quoted:
                for number, item in enumerate(text):
                    if number and splits:
                        out.append("".join(open_field or ()))
                        open_field = None
                    open_field = [*(open_field or ()), item]
                continue
            for item in text:
                pieces = re.split(r"[ \t\n]+", item) if splits else [item]
                for number, piece in enumerate(pieces):
                    if number:
                        if open_field is not None:
                            out.append("".join(open_field))
                        open_field = None
                    if piece:
                        open_field = [*(open_field or ()), piece]
                if splits and len(text) > 1 and open_field is not None:
                    out.append("".join(open_field))
                    open_field = None
        if open_field is not None:
            out.append("".join(open_field))
        return out

    def value(self, word: str) -> str:
        """The text that a word becomes where it is not split: in an assignment or between brackets."""
        parts = [" ".join(text) for text, _, _ in self._parts(word, 0)]
        self._count(parts)
        return "".join(parts)

    def assign(self, name: str, values: list[str], more: bool, array: bool) -> None:
        """`NAME=` and `NAME+=`."""
        before = self.variables.get(name, []) if more else []
        self._count(values)
        if array or not more:
            self.variables[name] = before + values
        else:
            self._count(before)
            self.variables[name] = ["".join(before[:1] + values), *before[1:]]

    def _count(self, texts: list[str]) -> None:
        self._letters += sum(map(len, texts))
        if self._letters > MOST_LETTERS:
            raise SpecError(
                f"{self.where}: its variables grow beyond {MOST_LETTERS:,} letters; no launch script does that"
            )

    def _parts(self, word: str, depth: int) -> list[tuple[list[str], bool, bool]]:
        """(texts, whether quoted, whether an expansion that may become several words) of a word, piece by piece."""
        if depth > 20:
            raise SpecError(f"{self.where}: expansions more than 20 deep; no launch script has them")
        parts: list[tuple[list[str], bool, bool]] = []
        at = 0
        while at < len(word):
            char = word[at]
            if char == "\\":
                if word[at + 1 : at + 2] != "\n":
                    parts.append(([word[at + 1 : at + 2]], True, False))
                at += 2
            elif char == "'":
                end = _find(word, "'", at + 1)
                parts.append(([word[at + 1 : end]], True, False))
                at = end + 1
            elif char == '"':
                end = _end_of_quote(word, at)
                parts.append(([""], True, False))
                for text, _, several in self._inside_quotes(word[at + 1 : end], depth + 1):
                    parts.append((text, True, several))
                at = end + 1
            elif char in "$`":
                text, several, at = self._expansion(word, at, depth)
                parts.append((text, False, True))
            else:
                end = at + 1
                while end < len(word) and word[end] not in "\\'\"$`":
                    end += 1
                parts.append(([word[at:end]], False, False))
                at = end
        return parts

    def _inside_quotes(self, word: str, depth: int) -> list[tuple[list[str], bool, bool]]:
        parts: list[tuple[list[str], bool, bool]] = []
        at = 0
        while at < len(word):
            char = word[at]
            if char == "\\":
                follows = word[at + 1 : at + 2]
                if follows != "\n":
                    parts.append(([follows if follows in '$`"\\' else char + follows], True, False))
                at += 2
            elif char in "$`":
                text, several, at = self._expansion(word, at, depth)
                parts.append((text if several else [" ".join(text)], True, several))
            else:
                end = at + 1
                while end < len(word) and word[end] not in "\\$`":
                    end += 1
                parts.append(([word[at:end]], True, False))
                at = end
        return parts

    def _expansion(self, word: str, at: int, depth: int) -> tuple[list[str], bool, int]:
        """(values, whether each is a word of its own, place after it) of a `$` or backtick."""
        if word[at] == "`":
            return [UNKNOWN], False, _find(word, "`", at + 1) + 1
        if word.startswith("$((", at):
            end = _closing(word, at + 1, "(", ")")
            return [self._arithmetic(word[at + 3 : end - 1], depth)], False, end + 1
        if word.startswith("$(", at):
            return [UNKNOWN], False, _closing(word, at + 1, "(", ")") + 1
        if word.startswith("${", at):
            end = _closing(word, at + 1, "{", "}")
            return *self._braced(word[at + 2 : end], depth), end + 1
        name = _NAME.match(word, at + 1)
        if name:
            return self.variables.get(name[0], [UNKNOWN])[:1] or [""], False, name.end()
        if word[at + 1 : at + 2] in ("@", "*"):  # as called without arguments
            return [], True, at + 2
        if word[at + 1 : at + 2].isdigit() or word[at + 1 : at + 2] in tuple("?$!#-"):
            return [UNKNOWN], False, at + 2
        return ["$"], False, at + 1

    def _braced(self, inside: str, depth: int) -> tuple[list[str], bool]:
        match = _BRACED.match(inside)
        if not match:
            return [UNKNOWN], False
        name, index, sign, word = match.groups()
        if name in "@*" and sign is None:
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
            return [self._text(word, depth) if there else ""], False
        if there:
            assert value is not None
            return [value], False
        if sign[-1] == "?":
            return [UNKNOWN], False
        text = self._text(word, depth)
        if sign[-1] == "=" and _NAME.fullmatch(name):
            self.assign(name, [text], more=False, array=False)
        return [text], False

    def _text(self, word: str, depth: int) -> str:
        parts = [" ".join(text) for text, _, _ in self._parts(word, depth + 1)]
        self._count(parts)
        return "".join(parts)

    def _arithmetic(self, expression: str, depth: int) -> str:
        """The value of `$((…))` in whole numbers, or UNKNOWN."""
        if len(expression) > 200:
            return UNKNOWN
        text = self._text(expression, depth)
        if UNKNOWN in text or len(text) > 400:
            return UNKNOWN
        try:
            value = self._number(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
            return UNKNOWN
        return UNKNOWN if value is None else str(value)

    def _number(self, node: ast.expr) -> int | None:
        """What an expression of whole numbers, names and + - * / % comes to; None for anything else."""
        value: int | None = None
        if isinstance(node, ast.Constant) and type(node.value) is int:
            value = node.value
        elif isinstance(node, ast.Name):
            text = (self.variables.get(node.id) or [""])[0]
            value = int(text) if re.fullmatch(r"[-+]?\d{1,15}", text) else None
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._number(node.operand)
            value = None if inner is None else -inner
        elif isinstance(node, ast.BinOp):
            left, right = self._number(node.left), self._number(node.right)
            if left is None or right is None:
                return None
            match node.op:
                case ast.Add():
                    value = left + right
                case ast.Sub():
                    value = left - right
                case ast.Mult():
                    value = left * right
                case ast.Div():  # the shell rounds towards zero
                    value = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
                case ast.Mod() if left >= 0 and right > 0:
                    value = left % right
        return value if value is not None and abs(value) <= LARGEST else None


def _find(word: str, mark: str, at: int) -> int:
    end = word.find(mark, at)
    return len(word) if end < 0 else end


def _end_of_quote(word: str, at: int) -> int:
    """Place of the double quote that closes the one here; the lexer has seen that there is one."""
    at += 1
    while at < len(word) and word[at] != '"':
        if word[at] == "\\":
            at += 2
        elif word.startswith("$(", at):
            at = _closing(word, at + 1, "(", ")") + 1
        elif word.startswith("${", at):
            at = _closing(word, at + 1, "{", "}") + 1
        else:
            at += 1
    return at


def _closing(word: str, at: int, opens: str, closes: str) -> int:
    """Place of the bracket that closes the one here, or the word's end."""
    level = 0
    while at < len(word):
        char = word[at]
        if char == "\\":
            at += 2
            continue
        if char == "'":
            at = _find(word, "'", at + 1)
        elif char == '"':
            at = _end_of_quote(word, at)
        level += (char == opens) - (char == closes)
        if level == 0:
            return at
        at += 1
    return len(word)
