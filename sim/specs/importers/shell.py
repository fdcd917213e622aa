"""A launch script read, not run: its variables, what its conditions come to, and the commands it would start."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sim.errors import SpecError
from sim.specs.importers.defaults import Given
from sim.specs.importers.keys import UNKNOWN
from sim.specs.importers.ledger import Ledger, short
from sim.specs.importers.shell_expansion import Values, names_set
from sim.specs.importers.shell_files import Files
from sim.specs.importers.shell_slurm import directives_of, environment_of
from sim.specs.importers.shell_syntax import Block, Case, Choice, Function, Loop, Node, blocks
from sim.specs.importers.shell_tests import fits, holds
from sim.specs.importers.shell_words import Words, lex

MOST_COMMANDS = 20_000
MOST_TURNS = 200
"""Of one loop."""
DEEPEST = 12
"""Scripts, functions and texts for another shell inside each other."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]=]*\])?(\+?)=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_SHELLS = re.compile(r"(?:.*/)?(?:bash|sh|zsh|ksh)")
_SCRIPT = re.compile(r".+\.(?:sh|slurm|sbatch|bash|job)")
_SUBMITS = ("sbatch", "qsub")


@dataclass(frozen=True, slots=True)
class Started:
    """A command that the script would start.

    words : expanded; parts that only a run would know are marked.
    line : where it stands in the file that holds it.
    doubt : line of a condition that it stands under and that is not decided, or 0.
    directives : of the scheduler, for the script that holds it.
    """

    words: list[str]
    line: int
    doubt: int = 0
    directives: tuple[str, ...] = ()


@dataclass
class Script:
    """What a script says.

    commands : that it would start, in order.
    """

    values: Values
    files: Files
    commands: list[Started] = field(default_factory=list)

    def variable(self, *names: str) -> str | None:
        """The value of the first of these variables that the script sets to something known."""
        values = ((self.values.variables.get(name) or [""])[0] for name in names)
        return next((value for value in values if value and UNKNOWN not in value), None)


def read_script(text: str, ledger: Ledger, given: Given | None = None, folder: Path | None = None) -> Script:
    """Read a script with the arguments and the environment that the caller gives. Conditions are decided where these
    and the script itself say enough; else what depends on them is marked as not known, and noted.

    Raises
    ------
    SpecError
        Not readable as a shell script, or larger than any.
    """
    given = given or Given()
    directives = directives_of(text)
    environment = {**environment_of(directives), **dict(given.env or {})}
    values = Values(
        ledger.where,
        {name: [str(value)] for name, value in environment.items()},
        [str(each) for each in given.args] if given.args else None,
        {name: str(value) for name, value in dict(given.env or {}).items()},
    )
    values.own = names_set(text)
    script = Script(values, Files(folder))
    reader = _Reader(script, values, ledger, tuple(directives), _Count())
    reader.run(blocks(lex(text, ledger.where), ledger.where))
    for name, line in values.taken_empty.items():
        if name not in script.values.variables:
            ledger.assume(f"${name}", "", f"line {line}: nothing sets it, so it is empty; --env {name}=VALUE")
    return script


def words_of(text: str, where: str) -> list[str]:
    """The words of a text that a script hands to another shell, as in `pdsh "…"`; nothing in it is expanded again."""
    values = Values(where)
    return [word for command in lex(text, where) for raw in command.words for word in values.fields(raw)]


@dataclass
class _Count:
    """Commands read so far, in all scripts together."""

    commands: int = 0


@dataclass
class _Reader:
    """Reads one script, or what it starts, with its variables."""

    script: Script
    values: Values
    ledger: Ledger
    directives: tuple[str, ...]
    count: _Count
    depth: int = 0
    doubt: int = 0
    inside: int = 0
    ended: bool = False
    prefix: tuple[str, ...] = ()
    functions: dict[str, Block] = field(default_factory=dict)

    def run(self, nodes: Sequence[Node]) -> None:
        """Follow commands in order."""
        for node in nodes:
            if self.ended:
                return
            self.count.commands += 1
            if self.count.commands > MOST_COMMANDS:
                raise SpecError(
                    f"{self.ledger.where}: more than {MOST_COMMANDS:,} commands; no launch script has so many"
                )
            match node:
                case Choice():
                    self._nested(lambda node=node: self._choice(node))  # type: ignore[misc]
                case Case():
                    self._nested(lambda node=node: self._case(node))  # type: ignore[misc]
                case Loop():
                    self._nested(lambda node=node: self._loop(node))  # type: ignore[misc]
                case Function():
                    self.functions[node.name] = node.body
                case Words():
                    self.values.line = node.line
                    self._command(node)

    def _nested(self, follow: Callable[[], None]) -> None:
        self.inside += 1
        follow()
        self.inside -= 1

    def _choice(self, node: Choice) -> None:
        """Follow the branch whose condition holds; where that is not known, all that may be taken."""
        open_branches: list[Block] = []
        because: tuple[int, ...] = ()
        for test, body in node.branches:
            result, asked = holds(test, self.values)
            if result is None:
                because += asked
                open_branches.append(body)
            elif result:
                open_branches.append(body)
                break
        else:
            open_branches.append(node.otherwise)
        self._follow(open_branches, node.line, because)

    def _case(self, node: Case) -> None:
        self.values.line = node.line
        word, bodies = self.values.value(node.word), list[Block]()
        for patterns, body in node.arms:
            result = fits(word, patterns, self.values)
            if result is not False:
                bodies.append(body)
            if result:
                break
        else:
            bodies.append(())
        self._follow(bodies, node.line, self.values.unknowns.numbers(word))

    def _follow(self, bodies: Sequence[Block], line: int, because: tuple[int, ...]) -> None:
        """Follow the only body there is, or each from the same start and keep what is the same after all."""
        if len(bodies) == 1:
            return self.run(bodies[0])
        values, doubt, before = self.values, self.doubt, dict(self.values.variables)
        outcomes, started = [], len(self.script.commands)
        self.doubt = line
        for body in bodies:
            values.variables = dict(before)
            self.run(body)
            outcomes.append(values.variables)
        self.doubt = doubt
        values.variables = {}
        mark = values.unknowns.mark("condition", str(line), line, tuple(dict.fromkeys(because)))
        changed = values.merge(outcomes, mark)
        if changed or any(_trains(each.words) for each in self.script.commands[started:]):
            what = f"may set {', '.join(changed[:4])}{' …' * (len(changed) > 4)}" if changed else "may start a training"
            waits = values.unknowns.reasons(mark)
            why = f"a condition that only the running script knows{f' ({waits})' if because else ''}; {what}"
            self.ledger.ignore(f"line {line}", "if …", why)
        return None

    def _loop(self, node: Loop) -> None:
        """Follow a loop over words that are known, or whose condition is decided at every turn."""
        self.values.line = node.line
        if node.head[0] == "for" and (items := self._items(node)) is not None:
            for item in items[:MOST_TURNS]:
                self.values.assign(node.head[1], [item], more=False, array=False)
                self.run(node.body)
            return None
        if node.head[0] in ("while", "until"):
            for _ in range(MOST_TURNS):
                result, because = holds(node.test, self.values)
                if result is None:
                    return self._follow((node.body, ()), node.line, because)
                if result != (node.head[0] == "while"):
                    return None
                self.run(node.body)
        self.ledger.ignore(f"line {node.line}", short(" ".join(node.head[:4])), "a loop that is not followed")
        return None

    def _items(self, node: Loop) -> list[str] | None:
        """The words that a `for` goes over; None where they are not known."""
        head = node.head
        if len(head) < 2 or not head[1].isidentifier() or (len(head) > 2 and head[2] != "in"):
            return None
        words = head[3:] if len(head) > 2 else ('"$@"',)
        items = [each for word in words for each in self.values.fields(word)]
        pattern = any(set(each) & set("*?{") for each in items)
        return None if pattern or any(UNKNOWN in each for each in items) else items

    def _command(self, command: Words) -> None:
        """Assign, or note what would be started."""
        values, words = self.values, list(command.words)
        if command.kind == "array":
            items = [field for word in words[1:] for field in values.fields(word)]
            values.assign(words[0].rstrip("+="), items, more=words[0].endswith("+="), array=True)
            return
        if command.kind == "arm" or words[0] in ("!", ";;", "[", "[[", "test", ":") or words[0].startswith("(("):
            self._aside(words)
            return
        declares = words[0] in _DECLARES
        if declares:
            words = [word for word in words[1:] if not word.startswith("-")]
        before = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
        if declares or before == len(words):  # else they are of the command's environment alone
            self._assign(words)
            return
        environment, words = words[:before], words[before:]
        fields = [field for word in words for field in values.fields(word)]
        if fields:
            self.script.files.note(command, fields, values)
            self._start(fields, command, environment)

    def _aside(self, words: list[str]) -> None:
        """What a command changes aside: `((N = 8))`, `: ${N:=8}`."""
        inner = words[0][2:-2].strip() if words[0].startswith("((") else ""
        name, equals, text = inner.partition("=")
        if equals and name.strip().isidentifier() and not text.startswith("="):
            self.values.assign(name.strip(), [self.values.arithmetic(text)], more=False, array=False)
        elif inner.rstrip("+-").isidentifier() and inner.endswith(("++", "--")):
            name = inner[:-2]
            self.values.assign(name, [self.values.arithmetic(f"{name} {inner[-1]} 1")], more=False, array=False)
        if words[0] == ":":
            for word in words[1:]:
                self.values.value(word)

    def _assign(self, words: Sequence[str]) -> None:
        for match in filter(None, map(_ASSIGNMENT.match, words)):
            name, index, more, text = match.groups()
            value = self.values.value(text)
            if index is None:
                self.values.assign(name, [value], more=bool(more), array=False)
            else:
                self.values.assign(name, [value], more=True, array=True)

    def _start(self, fields: list[str], command: Words, environment: Sequence[str]) -> None:
        """A command that is started: one of the shell's own, a function, another script, or a program."""
        name, values = fields[0], self.values
        if name == "set":
            if "--" in fields[:2]:
                values.positional = fields[fields.index("--") + 1 :]
        elif name == "shift":
            drop = int(fields[1]) if fields[1:] and fields[1].isdigit() else 1
            values.positional = (values.positional or [])[drop:]
        elif name == "unset":
            for each in fields[1:]:
                values.variables.pop(each, None)
        elif name == "let":
            for word in fields[1:]:
                self._aside([f"(({word}))"])
        elif name in ("cd", "pushd"):
            values.moved = values.moved or fields[1:] != ["."]
        elif name == "exit":
            self.ended = not self.inside
        elif name == "eval":
            self._nest(" ".join(fields[1:]), command)
        elif name in ("source", "."):
            self._source(fields, command)
        elif name in self.functions and self.depth < DEEPEST:
            outer, values.positional = values.positional, fields[1:]
            self.depth += 1
            self._nested(lambda: self.run(self.functions[name]))
            self.depth -= 1
            values.positional = outer
        elif not self._other_script(fields, command, environment):
            self.script.commands.append(Started([*self.prefix, *fields], command.line, self.doubt, self.directives))

    def _other_script(self, fields: list[str], command: Words, environment: Sequence[str]) -> bool:
        """Follow a text or a file that another shell reads; whether it was that."""
        shell = next((at for at, word in enumerate(fields) if _SHELLS.fullmatch(word)), -1)
        flag = next((at for at in range(shell + 1, len(fields)) if re.fullmatch(r"-[a-z]*c", fields[at])), -1)
        if shell >= 0 and 0 < flag < len(fields) - 1:
            inner = self._child(fields[flag + 2 :], fields[:shell], environment)
            inner._nest(fields[flag + 1], command)
            return True
        submits = fields[0] in _SUBMITS
        at = next((at for at, word in enumerate(fields) if _SCRIPT.fullmatch(word) and not word.startswith("-")), -1)
        if at < 0 or not (submits or at == 0 or at == shell + 1) or UNKNOWN + "--" in fields[at]:
            return False
        text = self.script.files.text(fields[at]) if self.depth < DEEPEST else None
        if text is None:
            why = "starts another script, which is not beside this one; import that"
            self.ledger.ignore(f"line {command.line}", short(" ".join(fields[: at + 1])), why)
            return True
        inner = self._child(fields[at + 1 :], [] if submits else fields[: max(shell, 0)], environment)
        inner.directives += (*directives_of(text), *(fields[1:at] if submits else ()))
        for each, value in environment_of(inner.directives).items():
            inner.values.variables.setdefault(each, [value])
        self.ledger.took("script", fields[at], f"started in line {command.line}; read too")
        values = inner.values
        values.own = values.own | names_set(text)
        inner.run(blocks(lex(text, self.ledger.where), self.ledger.where))
        return True

    def _child(self, positional: Sequence[str], prefix: Sequence[str], environment: Sequence[str]) -> _Reader:
        """A reader of what another shell is given."""
        values = self.values.child(positional)
        inner = replace(
            self, values=values, depth=self.depth + 1, prefix=(*self.prefix, *prefix), ended=False, inside=0
        )
        inner._assign(environment)
        return inner

    def _nest(self, text: str, command: Words) -> None:
        """Read a text as commands of this shell."""
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        for node in blocks(lex(text, self.ledger.where), self.ledger.where):
            self.run([replace(node, line=command.line) if isinstance(node, Words) else node])
        self.depth -= 1

    def _source(self, fields: list[str], command: Words) -> None:
        """Read another file in place, if it lies beside the script."""
        name = fields[1] if fields[1:] else ""
        text = self.script.files.text(name) if self.depth < DEEPEST else None
        if text is None:
            why = "another file, which is not beside this one and was not read"
            self.ledger.ignore(f"line {command.line}", short(" ".join(command.words[:4])), why)
            return
        self.ledger.took("script", name, f"sourced in line {command.line}; read too")
        self.values.own |= names_set(text)
        outer = self.values.positional
        self.values.positional = fields[2:] or outer
        self.depth += 1
        self.run(blocks(lex(text, self.ledger.where), self.ledger.where))
        self.depth -= 1
        self.values.positional = outer


def _trains(words: Sequence[str]) -> bool:
    return any("--num-layers" in word or "--hidden-size" in word for word in words)
