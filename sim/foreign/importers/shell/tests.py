"""Conditions of shell scripts: what `[ … ]`, `[[ … ]]`, `test`, `((…))` and the arms of a `case` come to."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.shell.expansion import Values
from sim.foreign.importers.shell.words import Words

_COMPARISONS = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_LENGTHS = ("-z", "-n")
_LONGEST = 1000


def is_test(command: object) -> bool:
    """Whether a command is a condition and starts nothing."""
    if not isinstance(command, Words):
        return False
    first = command.words[0]
    return first in ("[", "[[", "test", "true", "false", ":", "!") or first.startswith("((")


def holds(commands: Sequence[object], values: Values) -> tuple[bool | None, tuple[int, ...]]:
    """(whether a condition holds, None where only a run knows; what it would have to know)."""
    result: bool | None = True
    joined, negated, because = "", False, list[int]()
    for command in commands:
        if not isinstance(command, Words) or command.kind != "command":
            return None, tuple(because)
        if command.words == ("!",):
            negated, joined = True, command.joined or joined
            continue
        values.line = command.line
        found, asked = _simple(list(command.words), values)
        because += asked
        found = (not found) if negated and found is not None else found
        result = _join(result, command.joined or joined, found) if joined or command.joined else found
        joined, negated = "", False
    return result, tuple(because) if result is None else ()


def _join(left: bool | None, sign: str, right: bool | None) -> bool | None:
    if sign == "||":
        return True if True in (left, right) else None if None in (left, right) else False
    if sign == "|":
        return None
    return False if False in (left, right) else None if None in (left, right) else True


def _simple(words: list[str], values: Values) -> tuple[bool | None, list[int]]:
    """One test of a condition."""
    if words[0] in ("true", ":"):
        return True, []
    if words[0] == "false":
        return False, []
    if words[0].startswith("(("):
        text = values.arithmetic(words[0][2:-2].strip())
        return (None, list(values.unknowns.numbers(text))) if UNKNOWN in text else (text != "0", [])
    if words[0] not in ("[", "[[", "test"):
        return None, []
    double, inner = words[0] == "[[", [word for word in words[1:] if word not in ("]", "]]")]
    if "(" in inner or ")" in inner:
        return None, []
    result: bool | None = None
    because: list[int] = []
    joined = ""
    for sign, part in _parts(inner):
        found, asked = _compare(part, values, double)
        because += asked
        result = _join(result, sign, found) if joined or sign else found
        joined = sign
    return result, because


def _parts(words: list[str]) -> list[tuple[str, list[str]]]:
    """(sign before, words) of the parts of a test that && and ||, or -a and -o, join."""
    signs = {"&&": "&&", "||": "||", "-a": "&&", "-o": "||"}
    parts: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        if word in signs and parts[-1][1]:
            parts.append((signs[word], []))
        else:
            parts[-1][1].append(word)
    return parts


def _compare(words: list[str], values: Values, double: bool) -> tuple[bool | None, list[int]]:
    """A single comparison."""
    if not words:
        return None, []
    if words[:1] == ["!"]:
        found, because = _compare(words[1:], values, double)
        return (None if found is None else not found), because
    if words[:1] == ["-v"] and len(words) == 2:
        return words[1] in values.variables, []
    if len(words) == 1:
        words = ["-n", *words]
    if re.fullmatch(r"-[a-hk-ps-wxGLNOSR]", words[0]) and words[0] not in _LENGTHS:  # of files
        return None, []
    length = words[0] in _LENGTHS and len(words) <= 2
    texts = [word if word in _LENGTHS or word in _COMPARISONS else values.test_value(word, length) for word in words]
    numbers = [number for text in texts for number in values.unknowns.numbers(text)]
    if any(UNKNOWN in text for text in texts):
        return None, numbers
    match texts:
        case ["-z"] | ["-n"]:
            return texts == ["-z"], []
        case ["-z", text]:
            return not text, []
        case ["-n", text]:
            return bool(text), []
        case [left, "==" | "=" | "!=" as sign, right]:
            same = left == right
            if double and right != left and not set(words[2]) & set("'\"") and set(right) & set("*?["):
                same = len(left) <= _LONGEST and fnmatchcase(left, right)
            return same != (sign == "!="), []
        case [left, ">" | "<" as sign, right] if double:
            return (left > right if sign == ">" else left < right), []
        case [left, sign, right] if sign in _COMPARISONS:
            one, other = _whole(left, values, double), _whole(right, values, double)
            return (None if one is None or other is None else bool(_COMPARISONS[sign](one, other))), []
        case _:
            return None, numbers


def _whole(text: str, values: Values, double: bool) -> int | None:
    """A whole number; in double brackets also a sum or a variable's name."""
    if re.fullmatch(r"-?\d{1,15}", text.strip()):
        return int(text)
    found = values.arithmetic(text) if double and text.strip() else ""
    return int(found) if re.fullmatch(r"-?\d{1,15}", found) else None


def fits(text: str, patterns: Sequence[str], values: Values) -> bool | None:
    """Whether a word fits one of the patterns of a `case`; None where only a run knows."""
    result: bool | None = False
    for pattern in patterns:
        meant = values.value(pattern)
        if meant == "*" and pattern == "*":
            return True
        if UNKNOWN in text or UNKNOWN in meant:
            result = None
        elif text == meant or (not set(pattern) & set("'\"") and len(text) <= _LONGEST and fnmatchcase(text, meant)):
            return True
    return result
