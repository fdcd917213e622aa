"""The commands of a script followed in order: conditions decided where they can be, loops over known words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.shell.expansion import Values
from sim.foreign.importers.shell.script import Script
from sim.foreign.importers.shell.started import start
from sim.foreign.importers.shell.syntax import Block, Case, Choice, Function, Group, Loop, Node
from sim.foreign.importers.shell.tests import fits, holds, is_test
from sim.foreign.importers.shell.words import Words

MOST_COMMANDS = 20_000
MOST_TURNS = 200
"""Of one loop."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]=]*\])?(\+?)=(.*)", re.DOTALL)
_MAY_FAIL = ("command", "which", "type", "hash", "grep", "pgrep", "ping", "curl", "wget", "nvidia-smi", "diff", "cmp")
"""Commands whose success is a question."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")


@dataclass
class Count:
    """Commands read so far, in all scripts together."""

    commands: int = 0


@dataclass
class Reader:
    """Reads one script, or what it starts, with its variables."""

    script: Script
    values: Values
    ledger: Ledger
    directives: tuple[str, ...]
    count: Count
    depth: int = 0
    doubt: int = 0
    inside: int = 0
    ended: bool = False
    asked: tuple[int, ...] = ()
    prefix: tuple[str, ...] = ()
    functions: dict[str, Block] = field(default_factory=dict)

    def run(self, nodes: Sequence[Node]) -> None:
        """Follow commands in order; what stands behind && or || as far as what is before it says."""
        status: bool | None = True
        for node in nodes:
            if self.ended:
                return
            self.count.commands += 1
            if self.count.commands > MOST_COMMANDS:
                raise SpecError(
                    f"{self.ledger.where}: more than {MOST_COMMANDS:,} commands; no launch script has so many"
                )
            if isinstance(node, (Words, Group)) and node.joined in ("&&", "||"):
                if status is (node.joined == "||"):
                    continue
                if status is None:
                    self._doubt(node)
                    continue
            status = self._one(node)

    def _doubt(self, node: Words | Group) -> None:
        """Follow a command that may not come to its turn."""
        alone: Node = replace(node, joined="")
        self.nested(lambda: self._follow(((alone,), ()), node.line, self.asked))

    def _one(self, node: Node) -> bool | None:
        """Follow one command; whether it succeeds, None where only a run knows."""
        match node:
            case Choice():
                self.nested(lambda: self._choice(node))
            case Case():
                self.nested(lambda: self._case(node))
            case Loop():
                self.nested(lambda: self._loop(node))
            case Group():
                self.run(node.body)
            case Function():
                self.functions[node.name] = node.body
            case Words():
                self.values.line = node.line
                self._command(node)
                if is_test(node):
                    result, self.asked = holds((replace(node, joined=""),), self.values)
                    return result
                return None if node.words[0] in _MAY_FAIL else True
        return True

    def nested(self, follow: Callable[[], None]) -> None:
        self.inside += 1
        follow()
        self.inside -= 1

    def _choice(self, node: Choice) -> None:
        """Follow the branch whose condition holds; where that is not known, all that may be taken."""
        open_branches: list[Block] = []
        because: tuple[int, ...] = ()
        for test, body in node.branches:
            self.run([command for command in test if not is_test(command)])
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
        if node.head[0] == "for" and node.head[1:2] and node.head[1].startswith("(("):
            return self._counted(node)
        if node.head[0] in ("while", "until"):
            for _ in range(MOST_TURNS):
                result, because = holds(node.test, self.values)
                if result is None:
                    return self._follow((node.body, ()), node.line, because)
                if result != (node.head[0] == "while"):
                    return None
                self.run(node.body)
        self.ledger.ignore(f"line {node.line}", short(" ".join(node.head[:4])), "a loop that is not followed")
        return self._follow((node.body, ()), node.line, ())

    def _counted(self, node: Loop) -> None:
        """Follow `for ((i = 0; i < 8; i++))`."""
        begin, _, rest = node.head[1][2:-2].partition(";")
        test, _, step = rest.partition(";")
        self.aside([f"(({begin}))"])
        for _ in range(MOST_TURNS):
            goes_on = self.values.arithmetic(test)
            if UNKNOWN in goes_on:
                return self._follow((node.body, ()), node.line, self.values.unknowns.numbers(goes_on))
            if goes_on == "0":
                return None
            self.run(node.body)
            self.aside([f"(({step}))"])
        self.ledger.ignore(
            f"line {node.line}", "for …", f"a loop of more than {MOST_TURNS} turns; so many were followed"
        )
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
            self.aside(words)
            return
        declares = words[0] in _DECLARES
        if declares:
            words = [word for word in words[1:] if not word.startswith("-")]
        before = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
        if declares or before == len(words):  # else they are of the command's environment alone
            self.assign(words)
            return
        environment, words = words[:before], words[before:]
        fields = [field for word in words for field in values.fields(word)]
        if fields:
            self.script.files.note(command, fields, values)
            start(self, fields, command, environment)

    def aside(self, words: list[str]) -> None:
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

    def assign(self, words: Sequence[str]) -> None:
        for match in filter(None, map(_ASSIGNMENT.match, words)):
            name, index, more, text = match.groups()
            value = self.values.value(text)
            if index is None:
                self.values.assign(name, [value], more=bool(more), array=False)
            else:
                self.values.assign(name, [value], more=True, array=True)


def _trains(words: Sequence[str]) -> bool:
    return any("--num-layers" in word or "--hidden-size" in word for word in words)
