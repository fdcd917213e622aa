"""A shell script as a syntax tree, which tree-sitter-bash makes, and what in it is not interpreted. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.ledger import short

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


DEEPEST = 100
"""Levels of the tree."""
MOST_ODD = 20
"""Places that are looked at for what is never closed."""
HOLE = "\ue000"
"""What stands for an unknown part of a text while it is parsed."""
_PLACEHOLDER = re.compile(r"(?<!<)<[A-Za-z][^<>\n|&;()]*>")
"""What a person should fill in, such as <path to vocabulary>; a shell would take it for redirections."""
_BACKTICKS = re.compile(r"`((?:[^`\\\n]|\\.)+)`")
_VARIABLE = re.compile(r"(?<![\\$])\$([A-Za-z_]\w*|\d)")
_PIECES = re.compile(r"""("(?:\\.|[^"\\])*")|'[^'\n]*'|(?<=\s)\#[^\n]*|""" + _VARIABLE.pattern, re.DOTALL)
"""Text in double quotes, text in single quotes, comments, and variables."""
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\([^()\n]*\)|[^\s"'()`;|&<>\\])*"""
_SEVERAL = re.compile(
    rf"^([ \t]*[A-Za-z_]\w*\+?={_VALUE}(?:[ \t]+[A-Za-z_]\w*\+?={_VALUE})+)([ \t]*(?:#.*)?)$", re.MULTILINE
)
_BESIDE = ("variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect", "comment")
_OPENS = {'"': '"', "'": "'", "`": "`", "$(": ")", "(": ")", "${": "}", "$((": "))", "((": "))", "<(": ")", ">(": ")"}


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str, where: str) -> Node:
    """Return the tree of a script; a program, or an ERROR where the grammar does not know how it goes together. Raises
    SpecError: a quote or bracket that is never closed, or commands nested more deeply than in any script."""
    root = _parser().parse(_spelled_out(text.replace(UNKNOWN, HOLE)).encode()).root_node
    if any(depth > DEEPEST for _, depth in _walk(root)):
        raise SpecError(f"{where}: commands more than {DEEPEST} deep inside each other; no launch script has them")
    if root.has_error:
        plain = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
        odd = (node for node, _ in _walk(root) if node.is_missing or node.type == "ERROR")
        for node in islice(odd, MOST_ODD):
            if what := _unclosed(node, plain):
                raise SpecError(f"{where}: line {line_of(node)}: {what} is never closed")
    return root


def _spelled_out(text: str) -> str:
    """Return a script with `$(…)` for backticks and `${NAME}` for `$NAME`, which the grammar tells from what is beside
    them in longer words, as in $BASE/$NAME/`date`; and with `;` after several assignments in a line, which it takes for
    the environment of the next line's command."""
    text = _BACKTICKS.sub(lambda found: f"$({found[1].replace(chr(92) + '`', '`')})", _PLACEHOLDER.sub(HOLE, text))

    def respelled(found: re.Match[str]) -> str:
        return _VARIABLE.sub(r"${\1}", found[0]) if found[1] or found[2] else found[0]

    return _SEVERAL.sub(r"\1;\2", _PIECES.sub(respelled, text))


def text_of(node: Node) -> str:
    """Return the letters of a node, as the script has them."""
    return (node.text or b"").decode().replace(HOLE, UNKNOWN)


def line_of(node: Node) -> int:
    """Return the line where a node begins, from 1."""
    return node.start_point[0] + 1


def nodes_of(node: Node, *kinds: str) -> Iterator[Node]:
    """Return this node and all below it that are of these kinds, in order."""
    return (each for each, _ in _walk(node) if each.type in kinds)


def words_of(command: Node) -> list[Node]:
    """Return the words of a command that are its own: no variables before it, and no redirections."""
    return [child for child in command.children if child.type not in _BESIDE]


def _walk(node: Node) -> Iterator[tuple[Node, int]]:
    waiting = [(node, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting += [(child, depth + 1) for child in reversed(node.children)]


def _unclosed(node: Node, text: str) -> str:
    """Return what is opened in this node and never closed, in words; "" where nothing is.

    Lines that the grammar does not know look the same, but they have as many quotes and brackets that close as open.
    """
    signs = [child.type for child in node.children] if node.type == "ERROR" else []
    if node.is_missing and node.parent is not None:
        array = node.parent.type == "array" and node.parent.parent
        if array:
            return f"the array {text_of(array).partition('(')[0]}("
        signs = [node.parent.children[0].type.strip()]
    elif node.type == "ERROR":
        signs.append(text_of(node)[:1])
    for sign in signs:
        opens, closes = text.count(sign.lstrip("$<>")), text.count(_OPENS.get(sign, sign))
        if sign in _OPENS and (opens % 2 if opens == closes else opens > closes):
            return f"a quotation that begins with {sign}" if sign in "\"'`" else f"a bracket {sign.lstrip('$<>')[0]}"
    return ""


_FIRST = 0xF0000
_MOST = 60_000
MARK = re.compile(rf"{UNKNOWN}[\U000F0000-\U000FFFFD]?")
"""An unknown part of a text: the letter for all of them, and which it is."""
Kind = Literal["argument", "variable", "output", "condition", "loop", "function", "input", "unread"]
_DECIDES = {
    "condition": "the condition",
    "loop": "the loop",
    "function": "the function",
    "input": "the input read",
    "unread": "a command that is not followed",
}


class Unknown(NamedTuple):
    """Something that is not known: a positional argument or a variable of the environment, by name; a command's output;
    or a variable that a condition, a loop or an input sets, with what a condition asks for.
    """

    kind: Kind
    name: str
    line: int
    because: tuple[int, ...] = ()


@dataclass
class Unknowns:
    """All unknown values, in the order of their first use."""

    found: list[Unknown] = field(default_factory=list)
    used: dict[int, tuple[str, int]] = field(default_factory=dict)
    """number -> (variable that holds it, line)."""
    _places: dict[tuple[Kind, str, int], int] = field(default_factory=dict)

    def mark(self, kind: Kind, name: str, line: int, because: tuple[int, ...] = ()) -> str:
        """The letters that stand for it in a text."""
        key = (kind, name, 0 if kind in ("argument", "variable") else line)
        because = tuple(dict.fromkeys(self.origins(because)))
        number = self._places.get(key)
        if number is None:
            if len(self.found) >= _MOST:
                return UNKNOWN
            number = self._places[key] = len(self.found)
            self.found.append(Unknown(kind, name, line, because))
        return UNKNOWN + chr(_FIRST + number)

    def use(self, text: str, name: str, line: int) -> None:
        """Note which variable an unknown value was first given to."""
        if MARK.fullmatch(text):
            for number in self.numbers(text):
                self.used.setdefault(number, (name, line))

    def numbers(self, text: str) -> tuple[int, ...]:
        """Which ones a text holds. A mark that an edit of the text has cut apart says of none."""
        found = (ord(mark[1]) - _FIRST for mark in MARK.findall(text) if len(mark) > 1)
        return tuple(number for number in dict.fromkeys(found) if 0 <= number < len(self.found))

    def origins(self, numbers: Iterable[int]) -> Iterator[int]:
        """What these depend on: of conditions what they ask for, where that is known."""
        return (origin for number in numbers for origin in self.found[number].because or (number,))

    def roots(self, text: str) -> list[int]:
        """What a text depends on in the end, each once."""
        return list(dict.fromkeys(self.origins(self.numbers(text))))

    def words(self, number: int) -> str:
        """How messages call it."""
        item = self.found[number]
        held, line = self.used.get(number, ("", item.line))
        if item.kind == "argument":
            return f"argument {item.name} ({f'used as {held} ' * bool(held)}in line {line})"
        if item.kind == "variable":
            return f"the environment's {short(item.name)} (line {item.line})"
        if item.kind == "output":
            what = f"{held}, " * bool(held)
            return f"{what}what `{short(item.name, 40)}` gives (line {item.line})"
        return f"{item.name}, which {_DECIDES[item.kind]} in line {item.line} sets"

    def listed(self, numbers: Iterable[int], most: int = 6) -> str:
        """How messages call several, each once."""
        words = list(dict.fromkeys(map(self.words, numbers)))
        return ", ".join(words[:most]) + " …" * (len(words) > most)

    def reasons(self, text: str) -> str:
        """What an unknown value waits for, in words."""
        return self.listed(self.roots(text))

    def remedy(self, numbers: list[int]) -> str:
        """The options that would say it."""
        items = [self.found[number] for number in numbers]
        arguments = any(item.kind == "argument" for item in items)
        names = [item.name for item in items if item.kind not in ("argument", "output") and item.name.isidentifier()]
        names += [
            self.used[number][0] for number in numbers if self.found[number].kind == "output" and number in self.used
        ]
        options = ["the script's arguments in their order, --arg VALUE for each"] * arguments
        options += [", ".join(f"--env {name}=VALUE" for name in dict.fromkeys(names[:4]))] * bool(names)
        return f"give {', and '.join(options)}" if options else "write it out"
