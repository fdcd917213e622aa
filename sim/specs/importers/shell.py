"""A launch script read, not run: its variables, its simple conditions, and the commands it would start."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field

from sim.errors import SpecError
from sim.specs.importers.keys import NOT_RUN, UNKNOWN
from sim.specs.importers.ledger import Ledger, short
from sim.specs.importers.shell_expansion import Values
from sim.specs.importers.shell_words import Words, lex

MOST_COMMANDS = 20_000
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_OPENERS = {"for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "function": "}"}
_COMPARISONS = {f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*)$", re.MULTILINE)


@dataclass
class Script:
    """What a script says.

    commands : words of each command it would start, expanded; UNKNOWN where only the running script knows.
    directives : words of its #SBATCH lines.
    """

    values: Values
    commands: list[list[str]] = field(default_factory=list)
    directives: list[str] = field(default_factory=list)

    def variable(self, *names: str) -> str | None:
        """The value of the first of these variables that the script sets to something known."""
        values = ((self.values.variables.get(name) or [""])[0] for name in names)
        return next((value for value in values if value and UNKNOWN not in value), None)


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
    reader = _Reader(script, ledger)
    for number, command in enumerate(lex(text, ledger.where)):
        if number > MOST_COMMANDS:
            raise SpecError(f"{ledger.where}: more than {MOST_COMMANDS:,} commands; no launch script has so many")
        reader.read(command)
    return script


def words_of(text: str, where: str) -> list[str]:
    """The words of a text that a script hands to another shell, as in `sh -c "…"`; nothing in it is expanded again."""
    values = Values(where)
    return [word for command in lex(text, where) for raw in command.words for word in values.fields(raw)]


@dataclass
class _If:
    """An `if` that is open.

    in_test : its condition is being read, not a branch.
    holds : the present branch is read; None while that is undecided.
    chosen : whether a branch has been taken; None once a condition was undecided.
    """

    in_test: bool = True
    holds: bool | None = True
    chosen: bool | None = False

    def add(self, joined: str, result: bool | None) -> None:
        """Join the result of a test to the condition; None is not known."""
        both = (self.holds, result)
        if joined == "||":
            self.holds = True if True in both else None if None in both else False
        else:
            self.holds = False if False in both else None if None in both else True


class _Reader:
    def __init__(self, script: Script, ledger: Ledger) -> None:
        self.values, self.commands, self.ledger = script.values, script.commands, ledger
        self.conditions: list[_If] = []
        self.skips: list[tuple[str, str]] = []
        """(keyword that opened, keyword that closes) of what is being left out."""

    def read(self, command: Words) -> None:
        """Follow the script's structure, and take what a command says where that is to be read."""
        first = command.words[0]
        if self.skips:
            self._skip(first)
        elif first in _OPENERS:
            if _is_read(self.conditions):
                self._note(command, "loops, cases and functions are not followed")
            waits = first == "function" and "{" not in command.words  # its brace comes next
            self.skips.append(("a function" if waits else first, _OPENERS[first]))
        elif first == "if":
            self.conditions.append(_If())
        elif not (self.conditions and self._in_if(command, self.conditions[-1])) and _is_read(self.conditions):
            self._command(command)

    def _skip(self, first: str) -> None:
        opened, closes = self.skips[-1]
        if first == closes:
            self.skips.pop()
        elif first == "{" and opened == "a function":
            self.skips[-1] = ("{", "}")
        elif first in _OPENERS or first == "{":
            self.skips.append((first, _OPENERS.get(first, "}")))

    def _in_if(self, command: Words, here: _If) -> bool:
        """Follow an open `if`; whether the command was part of its structure."""
        match command.words[0]:
            case "elif":
                here.in_test, here.holds = True, True
            case "then":
                undecided = here.holds is None and here.chosen is False
                here.in_test, here.holds = False, here.holds is True and here.chosen is False
                if undecided:
                    here.chosen = None
                    why = f"a condition that {NOT_RUN}; none of its branches was read"
                    self.ledger.ignore(f"line {command.line}", "if …", why)
                elif here.holds:
                    here.chosen = True
            case "else":
                here.in_test, here.holds = False, here.chosen is False
            case "fi":
                self.conditions.pop()
            case _ if here.in_test:
                here.add(command.joined, self._test(command) if _is_read(self.conditions[:-1]) else None)
            case _:
                return False
        return True

    def _test(self, command: Words) -> bool | None:
        """Whether `[ … ]`, `[[ … ]]` or `test …` holds; None where only the running script knows."""
        words = [word for word in command.words if word not in ("[", "]", "[[", "]]", "test")]
        if len(words) == len(command.words) or {"&&", "||", "("} & set(words):
            return None
        negated = bool(words) and words[0] == "!"
        result = _compare([self._in_test(word) for word in words][negated:])
        return None if result is None else result != negated

    def _in_test(self, word: str) -> str:
        """A word in a condition; a variable that nobody sets is empty there."""
        bare = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*|\d+)(?::?-)?\}?"?', word)
        return "" if bare and bare[1] not in self.values.variables else self.values.value(word)

    def _command(self, command: Words) -> None:
        """Assign, or note what would be started."""
        values, words = self.values, list(command.words)
        if words[0] in ("{", "}", "!", "do", "done", "esac", "then", "elif", "else", "fi"):
            return
        if command.array:
            items = [field for word in words[1:] for field in values.fields(word)]
            values.assign(words[0].rstrip("+="), items, more=words[0].endswith("+="), array=True)
            return
        declares = words[0] in _DECLARES
        if declares:
            words = [word for word in words[1:] if not word.startswith("-")]
        before = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
        if declares or before == len(words):  # else they are of the command's environment alone
            for match in filter(None, map(_ASSIGNMENT.match, words)):
                values.assign(match[1], [values.value(match[3])], more=bool(match[2]), array=False)
            return
        words = words[before:]
        if words[0] in ("source", "."):
            self._note(command, "another file, which was not read; import that, or join the two")
            return
        fields = [field for word in words for field in values.fields(word)]
        if fields:
            self.commands.append(fields)

    def _note(self, command: Words, why: str) -> None:
        self.ledger.ignore(f"line {command.line}", short(" ".join(command.words[:4])), why)


def _is_read(conditions: list[_If]) -> bool:
    """Whether what stands under these conditions is read."""
    return all(each.holds and not each.in_test for each in conditions)


def _compare(values: list[str]) -> bool | None:
    """The result of a simple test on expanded words."""
    if any(UNKNOWN in value for value in values):
        return None
    match values:
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, "==" | "=" | "!=" as sign, right]:
            return None if set(right) & set("*?[") else (left == right) != (sign == "!=")
        case [left, sign, right] if sign in _COMPARISONS:
            if not (re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right)):
                return None
            return bool(_COMPARISONS[sign](int(left), int(right)))
        case _:
            return None
