"""A shell script as a syntax tree, which tree-sitter-bash makes. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN

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
    """Return the tree of a script; a program, or an ERROR where the grammar does not know how it goes together.

    Raises
    ------
    SpecError
        A quote or bracket that is never closed, or commands nested more deeply than in any script.
    """
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
