"""The structure of a shell script: conditions, cases, loops and functions, around its simple commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sim.errors import SpecError
from sim.foreign.importers.shell.words import Words

DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Choice:
    """An `if`.

    branches : (commands of the condition, commands under it) of `if` and each `elif`.
    otherwise : commands under `else`.
    """

    line: int
    branches: tuple[tuple[Block, Block], ...]
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Case:
    """A `case` on a word; arms are (patterns, commands)."""

    line: int
    word: str
    arms: tuple[tuple[tuple[str, ...], Block], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for`, `while`, `until` or `select`.

    head : the words up to `do`, with the keyword.
    test : commands of the condition of `while` and `until`.
    """

    line: int
    head: tuple[str, ...]
    test: Block
    body: Block


@dataclass(frozen=True, slots=True)
class Function:
    """A function's definition."""

    name: str
    body: Block


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces, which stand or fall together behind && or ||."""

    joined: str
    line: int
    body: Block


Node = Words | Choice | Case | Loop | Function | Group
Block = tuple[Node, ...]


def blocks(commands: Iterable[Words], where: str) -> Block:
    """The commands of a script, put into the structure they stand in. What is never closed ends with the script.

    Raises
    ------
    SpecError
        Nested more deeply than any script.
    """
    parser = _Parser(list(commands), where)
    found: list[Node] = []
    while parser.at < len(parser.commands):
        found += parser.block(())
        parser.at += 1  # a keyword that closes nothing
    return tuple(found)


@dataclass
class _Parser:
    commands: list[Words]
    where: str
    at: int = 0
    depth: int = field(default=0)

    def block(self, ends: tuple[str, ...]) -> Block:
        """Commands up to one that begins with one of these words, which is not taken."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise SpecError(f"{self.where}: commands more than {DEEPEST} deep inside each other; no launch script is")
        found: list[Node] = []
        while self.at < len(self.commands):
            command = self.commands[self.at]
            first = command.words[0]
            if command.kind == "arm" or (command.kind == "command" and first in (*ends, *_CLOSERS)):
                break
            node = self.node()
            found.append(node)
        self.depth -= 1
        return tuple(found)

    def node(self) -> Node:
        command = self.commands[self.at]
        self.at += 1
        if command.kind != "command":
            return command
        match command.words[0]:
            case "if":
                return self._choice(command.line)
            case "case":
                return self._case(command)
            case "for" | "while" | "until" | "select":
                return self._loop(command)
            case "function":
                return self._function(command)
            case "{":
                body = self.block(("}",))
                self._take("}")
                return Group(command.joined, command.line, body)
            case _:
                return command

    def _take(self, *words: str) -> str:
        """Go past the command that begins with one of these words, if it comes next; that word."""
        here = self.commands[self.at].words[0] if self.at < len(self.commands) else ""
        self.at += here in words
        return here if here in words else ""

    def _named(self, command: Words) -> str:
        """The word behind `case` or `function`."""
        if len(command.words) < 2:
            raise SpecError(f"{self.where}: line {command.line}: {command.words[0]} without a word behind it")
        return command.words[1]

    def _choice(self, line: int) -> Choice:
        branches: list[tuple[Block, Block]] = []
        otherwise: Block = ()
        while True:
            test = self.block(("then",))
            self._take("then")
            branches.append((test, self.block(("elif", "else", "fi"))))
            if self._take("elif"):
                continue
            if self._take("else"):
                otherwise = self.block(("fi",))
            self._take("fi")
            return Choice(line, tuple(branches), otherwise)

    def _case(self, command: Words) -> Case:
        arms: list[tuple[tuple[str, ...], Block]] = []
        while self.at < len(self.commands) and self.commands[self.at].kind == "arm":
            patterns = self.commands[self.at].words
            self.at += 1
            arms.append((patterns, self.block((";;", "esac"))))
            self._take(";;")
        self._take("esac")
        return Case(command.line, self._named(command), tuple(arms))

    def _loop(self, command: Words) -> Loop:
        test = self.block(("do",)) if command.words[0] in ("while", "until") else ()
        while self.at < len(self.commands) and not self._take("do"):
            self.at += 1
        body = self.block(("done",))
        self._take("done")
        return Loop(command.line, command.words, test, body)

    def _function(self, command: Words) -> Function:
        if "{" not in command.words and not self._take("{"):
            return Function(self._named(command), ())
        body = self.block(("}",))
        self._take("}")
        return Function(self._named(command), body)


_CLOSERS = ("fi", "done", "esac", "}", "then", "elif", "else", "do", ";;")
