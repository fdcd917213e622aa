"""A launch script read, not run: its variables, its simple conditions, and the commands it would start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sim.errors import SpecError
from sim.specs.importers.ledger import Ledger, short
from sim.specs.importers.shell_values import Values
from sim.specs.importers.shell_words import UNKNOWN, Words, lex

MOST_COMMANDS = 20_000
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_OPENERS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "function": "}"}
_RUNS_ANOTHER = ("source", ".")
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*)$", re.MULTILINE)
NOT_RUN = "only the running script knows; flopcast runs nothing"


@dataclass(frozen=True, slots=True)
class Command:
    """A command the script would start, its words expanded; UNKNOWN stands where only the running script knows."""

    line: int
    words: tuple[str, ...]


@dataclass
class Script:
    """What a script says.

    directives : words of its #SBATCH lines.
    """

    values: Values
    commands: list[Command] = field(default_factory=list)
    directives: list[str] = field(default_factory=list)

    def variable(self, *names: str) -> tuple[str, str] | None:
        """(name, value) of the first of these variables that the script sets to something known."""
        for name in names:
            value = (self.values.variables.get(name) or [""])[0]
            if value and UNKNOWN not in value:
                return name, value
        return None


def read_script(text: str, ledger: Ledger) -> Script:
    """Read a script. Conditions on strings and numbers it sets itself are decided; everything under another condition,
    in a loop, a function or another file is left out and noted.

    Raises
    ------
    SpecError
        Not readable as a shell script, or larger than any.
    """
    script = Script(Values(ledger.where))
    for match in _DIRECTIVE.finditer(text):
        script.directives += match[1].partition(" #")[0].split()
    _Reader(script, ledger).run(lex(text, ledger.where))
    return script


def words_of(text: str, where: str) -> list[str]:
    """The words of a text that a script hands to another shell, as in `sh -c "…"`; nothing in it is expanded again."""
    values = Values(where)
    return [word for command in lex(text, where) for raw in command.words for word in values.fields(raw)]


@dataclass
class _If:
    """A condition being read.

    state : "condition", "body".
    chosen : whether a branch has been taken; None once a condition was undecided.
    """

    state: str = "condition"
    holds: bool | None = None
    chosen: bool | None = False
    parts: list[tuple[str, bool | None]] = field(default_factory=list)


class _Reader:
    def __init__(self, script: Script, ledger: Ledger) -> None:
        self.script, self.ledger = script, ledger
        self.conditions: list[_If] = []
        self.skips: list[tuple[str, str]] = []
        """(keyword that opened, keyword that closes) of what is being left out."""

    def run(self, commands: Iterator[Words]) -> None:
        for number, command in enumerate(commands):
            if number > MOST_COMMANDS:
                raise SpecError(
                    f"{self.ledger.where}: more than {MOST_COMMANDS:,} commands; no launch script has so many"
                )
            if not self._keyword(command):
                self._command(command)

    @property
    def _active(self) -> bool:
        return not self.skips and all(each.state == "body" and each.holds for each in self.conditions)

    def _keyword(self, command: Words) -> bool:
        """Follow the script's structure; whether the command was part of it."""
        first = command.words[0]
        if self.skips:
            opened, closes = self.skips[-1]
            if first == closes:
                self.skips.pop()
            elif first == "{" and opened == "a function":
                self.skips[-1] = ("{", "}")
            elif first in _OPENERS or first == "{":
                self.skips.append((first, _OPENERS.get(first, "}")))
            return True
        if first in _OPENERS:
            if self._active:
                self._note(command, "loops, cases and functions are not followed")
            waits = first == "function" and "{" not in command.words  # its brace comes next
            self.skips.append(("a function" if waits else first, _OPENERS[first]))
            return True
        if first == "if":
            self.conditions.append(_If())
        elif first == "elif" and self.conditions:
            self.conditions[-1].state, self.conditions[-1].parts = "condition", []
        elif first == "then" and self.conditions:
            self._decide(self.conditions[-1], command)
        elif first == "else" and self.conditions:
            here = self.conditions[-1]
            here.state, here.holds = "body", here.chosen is False
        elif first == "fi" and self.conditions:
            self.conditions.pop()
        elif self.conditions and self.conditions[-1].state == "condition":
            outer = self.conditions[:-1]
            decided = None
            if all(each.state == "body" and each.holds for each in outer):
                decided = self._test(command)
            self.conditions[-1].parts.append((command.joined, decided))
        elif first in ("{", "}", "!", "do", "done", "esac"):
            pass
        else:
            return False
        return True

    def _decide(self, here: _If, command: Words) -> None:
        holds: bool | None = True
        for joined, value in here.parts:
            if joined == "||":
                holds = True if holds or value else (None if None in (holds, value) else False)
            else:
                holds = False if holds is False or value is False else (None if None in (holds, value) else True)
        here.state, here.holds = "body", holds is True and here.chosen is False
        if holds is None and here.chosen is False:
            here.chosen = None
            self.ledger.ignore(
                f"line {command.line}", "if …", f"a condition that {NOT_RUN}; none of its branches was read"
            )
        elif here.holds:
            here.chosen = True

    def _test(self, command: Words) -> bool | None:
        """Whether `[ … ]`, `[[ … ]]` or `test …` holds; None where only the running script knows."""
        words = [word for word in command.words if word not in ("[", "]", "[[", "]]", "test")]
        if len(words) == len(command.words):
            return None
        values = [self._in_test(word) for word in words]
        if "&&" in words or "||" in words or "(" in words:
            return None
        negated = bool(words) and words[0] == "!"
        result = _compare(values[negated:])
        return None if result is None else result != negated

    def _in_test(self, word: str) -> str:
        """A word in a condition; a variable that nobody sets is empty there."""
        known = self.script.values
        bare = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*|\d+)(?::?-)?\}?"?', word)
        if bare and bare[1] not in known.variables:
            return ""
        return known.value(word)

    def _command(self, command: Words) -> None:
        if not self._active:
            return
        values = self.script.values
        if command.array:
            name = command.words[0].rstrip("+=")
            items = [field for word in command.words[1:] for field in values.fields(word)]
            values.assign(name, items, more=command.words[0].endswith("+="), array=True)
            return
        words = list(command.words)
        if words[0] in _DECLARES:
            words = [word for word in words[1:] if not word.startswith("-")]
            for word in words:
                self._assign(word)
            return
        while words and _ASSIGNMENT.match(words[0]):
            if len(words) == 1 or all(_ASSIGNMENT.match(word) for word in words):
                self._assign(words[0])
            words.pop(0)
        if not words:
            return
        if words[0] in _RUNS_ANOTHER:
            self._note(command, "another file, which was not read; import that, or join the two")
            return
        fields = [field for word in words for field in values.fields(word)]
        if fields:
            self.script.commands.append(Command(command.line, tuple(fields)))

    def _assign(self, word: str) -> None:
        match = _ASSIGNMENT.match(word)
        if match:
            value = self.script.values.value(match[3])
            self.script.values.assign(match[1], [value], more=bool(match[2]), array=False)

    def _note(self, command: Words, why: str) -> None:
        self.ledger.ignore(f"line {command.line}", short(" ".join(command.words[:4])), why)


def _compare(values: list[str]) -> bool | None:
    """The result of a simple test on expanded words."""
    if any(UNKNOWN in value for value in values):
        return None
    match values:
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, "==" | "=", right]:
            return None if set(right) & set("*?[") else left == right
        case [left, "!=", right]:
            return None if set(right) & set("*?[") else left != right
        case [left, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" as sign, right]:
            if not (re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right)):
                return None
            a, b = int(left), int(right)
            return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[sign]
        case _:
            return None
