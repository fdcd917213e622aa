"""Conditions of shell scripts: what `[ … ]`, `[[ … ]]`, `test` and the arms of a `case` come to."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.shell.expansion import Script
from sim.foreign.importers.shell.tree import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_COMPARISONS = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_LENGTHS = ("-z", "-n")
_LONGEST = 1000


Result = tuple[bool | None, tuple[int, ...]]
"""(Whether a condition holds, None where only a run knows; what it would have to know.)"""


def join(left: bool | None, sign: str, right: bool | None) -> bool | None:
    """Whether two conditions hold that && or || joins."""
    if sign == "||":
        return True if True in (left, right) else None if None in (left, right) else False
    return False if False in (left, right) else None if None in (left, right) else True


def holds(words: Sequence[Node], values: Script, double: bool) -> Result:
    """Whether the words of a test hold, in double brackets or not."""
    words = [leaf for word in words for leaf in _leaves(word)]
    if any(text_of(word) in "()" for word in words):
        return None, ()
    result: bool | None = True
    because: list[int] = []
    for sign, part in _parts(words):
        found, asked = _compare(part, values, double)
        because += asked
        result = join(result, sign, found)
    return result, tuple(because) if result is None else ()


def _leaves(node: Node) -> list[Node]:
    """The words that an expression of a test is made of."""
    if node.type.endswith("_expression"):
        return [leaf for child in node.children for leaf in _leaves(child)]
    return [node]


def _parts(words: Sequence[Node]) -> list[tuple[str, list[Node]]]:
    """(sign before, words) of the parts of a test that && and ||, or -a and -o, join."""
    signs = {"&&": "&&", "||": "||", "-a": "&&", "-o": "||"}
    parts: list[tuple[str, list[Node]]] = [("&&", [])]
    for word in words:
        if text_of(word) in signs and parts[-1][1]:
            parts.append((signs[text_of(word)], []))
        else:
            parts[-1][1].append(word)
    return parts


def _compare(nodes: Sequence[Node], values: Script, double: bool) -> Result:
    """A single comparison."""
    words = [text_of(node) for node in nodes]
    if words[:1] == ["!"]:
        found, because = _compare(nodes[1:], values, double)
        return (None if found is None else not found), because
    if not words or (re.fullmatch(r"-[a-hk-ps-wxGLNOSR]", words[0]) and words[0] not in _LENGTHS):  # of files
        return None, ()
    length = len(words) == 1 or (words[0] in _LENGTHS and len(words) <= 2)
    signs = {*_COMPARISONS, *_LENGTHS}
    texts = [
        word if word in signs else values.test_value(node, length) for word, node in zip(words, nodes, strict=True)
    ]
    if any(UNKNOWN in text for text in texts):
        return None, tuple(number for text in texts for number in values.unknowns.numbers(text))
    match texts:
        case ["-z"] | ["-n"]:
            return texts == ["-z"], ()
        case ["-z", text]:
            return not text, ()
        case ["-n", text] | [text]:
            return bool(text), ()
        case [left, "==" | "=" | "!=" as sign, right]:
            same = left == right
            if double and right != left and not set(words[2]) & set("'\"") and set(right) & set("*?["):
                same = len(left) <= _LONGEST and fnmatchcase(left, right)
            return same != (sign == "!="), ()
        case [left, sign, right] if sign in _COMPARISONS:
            one, other = _whole(left, values), _whole(right, values)
            return (None if one is None or other is None else bool(_COMPARISONS[sign](one, other))), ()
    return None, ()


def _whole(text: str, values: Script) -> int | None:
    """A whole number, or the value of a sum or of a variable's name."""
    found = values.arithmetic(text)
    return int(found) if re.fullmatch(r"-?\d{1,15}", found) else None


def fits(text: str, patterns: Sequence[Node], values: Script) -> bool | None:
    """Whether a word fits one of the patterns of a `case`; None where only a run knows."""
    result: bool | None = False
    for pattern in patterns:
        meant, quoted = values.value(pattern), set(text_of(pattern)) & set("'\"")
        if meant == "*" and not quoted:
            return True
        if UNKNOWN in text or UNKNOWN in meant:
            result = None
        elif text == meant or (not quoted and len(text) <= _LONGEST and fnmatchcase(text, meant)):
            return True
    return result
