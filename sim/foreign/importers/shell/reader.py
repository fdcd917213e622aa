"""A launch script's commands followed in order, as far as it and the caller decide them.

Assignments, arrays, arguments, `if`, `case`, arithmetic, functions without variables of their own, and files and texts
that the script hands on are followed. Loops, `read` and whatever else may set a variable make it unknown, with its
line, so that it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.foreign.importers.defaults import Given
from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.shell.expansion import Script, names_set
from sim.foreign.importers.shell.script import Files, Started, directives_of, environment_of
from sim.foreign.importers.shell.tests import Result, fits, holds, join
from sim.foreign.importers.shell.tree import Kind, line_of, nodes_of, parse, text_of, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_COMMANDS = 20_000
DEEPEST = 12
"""Scripts, functions and texts for another shell inside each other."""
_MAY_FAIL = ("command", "which", "type", "hash", "grep", "pgrep", "ping", "curl", "wget", "nvidia-smi", "diff", "cmp")
"""Commands whose success is a question."""
_READS = ("read", "mapfile", "readarray", "getopts", "let")
"""Commands that set the variables that they name, to what only a run knows or is not followed."""
_HEADS: dict[Kind, tuple[str, str]] = {
    "condition": ("if …", "a condition that only the running script knows"),
    "loop": ("for …", "a loop, which is not followed"),
    "function": ("function", "a function that may end early, or has variables of its own"),
}
_KEYWORDS = ("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac")
_SHELLS = re.compile(r"(?:.*/)?(?:bash|sh|zsh|ksh)")
_SCRIPT = re.compile(r".+\.(?:sh|slurm|sbatch|bash|job)")
_OWN = re.compile(r"(?:^|[\s;{&|])(?:return\b|(?:local|declare|typeset)\s+(?:-\w+\s+)*(\w*))")
"""What gives a function variables of its own, or leaves it early."""
_RETURNS = re.compile(r"^return\b|^[^#\n]*(?:&&|\|\||;|then)\s*return\b", re.MULTILINE)
"""What leaves a sourced file early."""
_SUBMITS = ("sbatch", "qsub")
_JOINED = ("list", "pipeline", "negated_command")
_STARTED = ("pipeline", "list", "command", "redirected_statement")


def read_script(text: str, ledger: Ledger, given: Given | None = None, folder: Path | None = None) -> Script:
    """Read a script with the arguments and the environment that the caller gives. Conditions are decided where these
    and the script itself say enough; else what depends on them is marked as not known, and noted. Raises SpecError: not
    readable as a shell script, or larger than any."""
    given = given or Given()
    directives, own = directives_of(text), {name: str(value) for name, value in (given.env or {}).items()}
    environment = {name: [value] for name, value in {**environment_of(directives), **own}.items()}
    arguments = [str(each) for each in given.args] or None
    script = Script(ledger.where, environment, arguments, own, files=Files(folder))
    Reader(script, ledger, tuple(directives)).read(text)
    for name, line in script.taken_empty.items():
        if name not in script.variables:
            ledger.assume(f"${name}", "", f"line {line}: nothing sets it, so it is empty; --env {name}=VALUE")
    return script


def words_in(text: str, where: str) -> list[str]:
    """The words of a text that a script hands to another shell, as in `pdsh "…"`; nothing in it is expanded again."""
    script, root = Script(where), parse(text, where)
    if root.has_error:
        return text.split()
    return [word for command in nodes_of(root, "command") for word in script.words(command)]


@dataclass
class Reader:
    """Reads one script, or what it starts, with its variables.

    doubt : line of a condition that is not decided and holds what is read, or 0.
    inside : conditions and functions around what is read; `exit` there does not end the reading.
    line : that all commands are said to stand in, for a text that another command holds.
    asked : what the last condition that was not decided would have to know.
    """

    script: Script
    ledger: Ledger
    directives: tuple[str, ...]
    depth: int = 0
    doubt: int = 0
    inside: int = 0
    line: int = 0
    ended: bool = False
    asked: tuple[int, ...] = ()
    prefix: tuple[str, ...] = ()
    functions: dict[str, Node] = field(default_factory=dict)

    def read(self, text: str) -> None:
        """Follow a text's commands."""
        self.script.own |= names_set(text)
        root = parse(text, self.ledger.where)
        self.run(root.children if root.type == "program" else [root])

    def run(self, nodes: Sequence[Node]) -> bool | None:
        """Follow commands in order; whether the last succeeds, None where only a run knows."""
        status: bool | None = True
        for node in nodes:
            if self.ended:
                break
            if node.is_named and node.type != "comment":
                beside = node.next_sibling is not None and node.next_sibling.type == "&"
                status = self._one(node) if not beside else self._apart([node])
        return status

    def _nested(self, nodes: Sequence[Node]) -> bool | None:
        """Follow commands whose `exit` is not the script's."""
        self.inside += 1
        status = self.run(nodes)
        self.inside -= 1
        return status

    def _apart(self, nodes: Sequence[Node]) -> bool | None:
        """Follow commands that another process runs: what they set stays there; None, as how they end is not known."""
        before = dict(self.script.variables)
        self.inside += 1
        for node in nodes:
            if node.is_named and node.type != "comment":
                self._one(node)
        self.script.variables, self.inside = before, self.inside - 1
        return None

    def _one(self, node: Node) -> bool | None:
        self.script.count["commands"] += 1
        if self.script.count["commands"] > MOST_COMMANDS:
            raise self.ledger.error(f"more than {MOST_COMMANDS:,} commands; no launch script has so many")
        self.script.line = self.line or line_of(node)
        match node.type:
            case "list":
                return self._list(node)
            case "pipeline" | "subshell":
                return self._apart(node.named_children)
            case "redirected_statement":
                return self.run([*_commands_in(node)])
            case "negated_command":
                status = self._one(node.named_children[-1])
                return None if status is None else not status
            case "compound_statement" if node.children[0].type == "((":
                return self._reckon(self.script.inside(node))
            case "compound_statement" | "program":
                return self.run(node.children)
            case "test_command":
                return self._decided(holds(node.children[1:-1], self.script, node.children[0].type == "[["))
            case "if_statement":
                self._choice(node)
            case "case_statement":
                self._case(node)
            case "for_statement" | "c_style_for_statement" | "while_statement":
                self._loop(node)
            case "function_definition":
                self.functions[text_of(node.named_children[0])] = node.named_children[-1]
            case "variable_assignment":
                return self._assign(node)
            case "variable_assignments" | "declaration_command":
                return self._declare(node)
            case "unset_command":
                for each in node.named_children:
                    self.script.variables.pop(text_of(each), None)
            case "command":
                return self._command(node)
            case "ERROR":
                self._unread(node)
            case _:
                self._forget(names_set(text_of(node)), "unread")
        return True

    def _decided(self, result: Result) -> bool | None:
        self.asked = result[1]
        return result[0]

    def _reckon(self, text: str) -> bool | None:
        """Whether an arithmetic command is not zero."""
        value = self.script.arithmetic(text)
        return self._decided((None if UNKNOWN in value else value != "0", self.script.unknowns.numbers(value)))

    def _declare(self, node: Node) -> bool | None:
        """Assignments in one line, or behind `export` and its like; sums of `declare -i` are not known."""
        if any(re.fullmatch(r"-\w*i\w*", text_of(each)) for each in node.children):
            self._forget(names_set(text_of(node)), "unread")
            return True
        return [True, *(self._assign(each) for each in node.named_children if each.type == "variable_assignment")][-1]

    def _list(self, node: Node) -> bool | None:
        """Follow what stands behind && or || as far as what is before it says."""
        first, *others = (child for child in node.named_children if child.type != "comment")
        sign = "||" if any(child.type == "||" for child in node.children) else "&&"
        status = self._one(first)
        if status is (sign == "||"):
            return status
        if status is not None:
            return self.run(others)
        asked = self.asked
        other = self._follow([others, []], line_of(node), asked)
        self.asked = (*asked, *self.asked)
        return join(None, sign, other)

    def _choice(self, node: Node) -> None:
        """Follow the branch whose condition holds; where that is not known, all that may be taken."""
        line, because = self.script.line, tuple[int, ...]()
        open_branches: list[Sequence[Node]] = []
        for test, body in _branches(node):
            self.asked = ()
            result = self._nested(test) if all(map(_is_test, test)) else self._nested(test) and None
            if result is None:
                because += self.asked
            if result is not False:
                open_branches.append(body)
            if result:
                break
        else:
            open_branches.append([])
        self._follow(open_branches, line, because)

    def _case(self, node: Node) -> None:
        """Follow the arm that fits the word; where that is not known, all that may."""
        word, *arms = [each for each in node.named_children if each.type != "comment"]
        line, text = self.script.line, self.script.value(word)
        bodies: list[Sequence[Node]] = []
        for arm in arms:
            end = next((at for at, each in enumerate(arm.children) if each.type == ")"), 0)
            result = fits(text, [each for each in arm.children[:end] if each.is_named], self.script)
            if result is not False:
                bodies.append(arm.children[end + 1 :])
            if result:
                break
        else:
            bodies.append([])
        self._follow(bodies, line, self.script.unknowns.numbers(text))

    def _follow(
        self, bodies: Sequence[Sequence[Node]], line: int, because: tuple[int, ...], kind: Kind = "condition"
    ) -> bool | None:
        """Follow the only body there is, or each from the same start and keep what is the same after all; whether the
        first succeeds."""
        if len(bodies) == 1:
            return self._nested(bodies[0])
        values, doubt, before = self.script, self.doubt, dict(self.script.variables)
        started, outcomes = len(self.script.commands), list[dict[str, list[str]]]()
        statuses: list[bool | None] = []
        self.doubt = line
        for body in bodies:
            values.variables = dict(before)
            statuses.append(self._nested(body))
            outcomes.append(values.variables)
        self.doubt, values.variables = doubt, {}
        changed = values.merge(outcomes, kind, line, because)
        words = (word for each in self.script.commands[started:] for word in each.words)
        if changed or any("--num-layers" in word or "--hidden-size" in word for word in words):
            what = f"may set {', '.join(changed[:4])}{' …' * (len(changed) > 4)}" if changed else "may start a training"
            waits = values.unknowns.listed(because)
            head, why = _HEADS.get(kind, _HEADS["condition"])
            self.ledger.ignore(f"line {line}", head, f"{why}{f' ({waits})' * bool(waits)}; {what}")
        return statuses[0]

    def _loop(self, node: Node) -> None:
        """Follow a loop that is entered once, for what it may start; what it sets is not known."""
        head = [each for each in node.named_children[:-1] if each.type != "comment"]
        if node.type == "while_statement":
            status = self._nested(head)
            if all(map(_is_test, head)) and status is (node.children[0].type == "until"):
                return
        elif node.type == "for_statement":
            items = [each for word in head[1:] for each in self.script.fields(word)]
            if not (items if "in" in (each.type for each in node.children) else self.script.positional):
                return
        named = {text_of(head[0])} if node.type == "for_statement" else set()
        self._forget(named | names_set(text_of(node)), "loop")
        self._maybe(node.named_children[-1].children, set(), "loop")

    def _maybe(self, nodes: Sequence[Node], names: set[str], kind: Kind) -> None:
        """Follow commands for what they may start; what they set, these names among it, is not known behind them."""
        line = self.script.line
        self._follow([nodes, []], line, (), kind)
        self.script.line = line
        self._forget(names, kind)

    def _forget(self, names: set[str], kind: Kind) -> None:
        """Take the values of variables for unknown."""
        for name in sorted(names):
            mark = self.script.unknowns.mark(kind, name, self.script.line)
            self.script.assign(name, [mark], more=False, array=False)

    def _unread(self, node: Node) -> None:
        """Follow what can be told of lines that are not the shell's language; what else they set is not known."""
        text = text_of(node)
        why = "not readable as commands of a shell; what it may set is not known"
        self.ledger.ignore(f"line {self.script.line}", short(text.strip()), why)
        if node.type != "ERROR" or any(child.type in _KEYWORDS for child in node.children):
            self._maybe(node.children if node.type == "ERROR" else [], names_set(text), "unread")
            return
        assigned = {text_of(each.children[0]) for each in nodes_of(node, "variable_assignment")}
        self._forget(names_set(text) - assigned, "unread")
        self._nested(node.children)

    def _assign(self, node: Node) -> bool | None:
        """`NAME=` and `NAME+=` of a text or an array; whether that succeeds, as `$(…)` in it does."""
        place, *rest = node.named_children
        name, more = text_of(place).partition("[")[0], any(child.type == "+=" for child in node.children)
        if rest and rest[0].type == "array":
            words = (word for word in rest[0].named_children if word.type != "comment")
            self.script.assign(name, [each for word in words for each in self.script.fields(word)], more, array=True)
            return True
        text = "".join(map(self.script.value, rest))
        if place.type == "subscript":
            self._forget({name}, "unread")
        else:
            self.script.assign(name, [text], more, array=False)
        return None if UNKNOWN in text and any(nodes_of(node, "command_substitution")) else True

    def _command(self, node: Node) -> bool | None:
        """Follow a command: one of the shell's own, or one that is started."""
        values, words = self.script, words_of(node)
        before = [child for child in node.named_children if child.type == "variable_assignment"]
        if before and words and before[-1].end_point[0] < words[0].start_point[0] and not _continued(node, words[0]):
            for each in before:  # lines of their own, which the grammar takes for the command's environment
                self._assign(each)
            before = []
        if words and text_of(words[0]) in ("test", "["):
            return self._decided(holds([word for word in words[1:] if text_of(word) != "]"], values, double=False))
        if words and text_of(words[0]) in _KEYWORDS:
            self._unread(node)
            return None
        target, document = "", None
        for each in _redirects(node):
            if each.type == "heredoc_redirect":
                plain = any(set(text_of(part)) & set("'\"\\") for part in nodes_of(each, "heredoc_start"))
                for body in (part for part in each.named_children if part.type == "heredoc_body"):
                    document = text_of(body) if plain else values.document(body)
            else:
                named = [part for part in each.named_children if part.type != "file_descriptor"]
                signs = {text_of(part) for part in each.children if part not in named}
                if named and signs & {">", ">>", ">|", "&>", "&>>"} and not signs & {"0", "2"}:
                    target = values.value(named[0])
                words += named[1:]  # words behind the file's name are the command's
        fields = [field for word in words for field in values.fields(word)]
        if fields:
            self.script.files.note(fields, document, target)
            self._start(fields, before)
        name = fields[0] if fields else ""
        unsure = name in self.functions or name in (*_MAY_FAIL, "exit", "return")
        return False if name == "false" else None if unsure else True

    def _start(self, fields: list[str], environment: Sequence[Node]) -> None:
        """Start a command: one of the shell's own, a function, another script, or a program."""
        name, values, rest = fields[0], self.script, fields[1:]
        if name == "set":
            if "--" in fields[:2]:
                values.positional = fields[fields.index("--") + 1 :]
        elif name == "shift":
            drop = int(rest[0]) if rest and rest[0].isdigit() else 1
            values.positional = (values.positional or [])[drop:]
        elif name in _READS or (name == "printf" and rest[:1] == ["-v"]):
            self._forget({*re.findall(r"[A-Za-z_]\w*", " ".join(rest))}, "input")
        elif name in ("cd", "pushd"):
            values.moved = values.moved or rest != ["."]
        elif name == "exit":
            self.ended = not self.inside
        elif name == "eval":
            self._nest(" ".join(rest))
        elif name in ("source", "."):
            self._source(fields)
        elif name in self.functions and self.depth < DEEPEST:
            self._call(self.functions[name], rest)
        elif name not in (":", "true", "false", "return") and not self._other_script(fields, environment):
            told = tuple(values.value(each).replace("\n", " ") for each in environment)
            started = Started([*self.prefix, *fields], values.line, self.doubt, self.directives, told)
            self.script.commands.append(started)

    def _call(self, body: Node, arguments: list[str]) -> None:
        """Follow a function; where it has variables of its own or may be left early, what it sets is not known."""
        outer, own = self.script.positional, _OWN.findall(text_of(body))
        self.script.positional, self.depth = arguments, self.depth + 1
        if body.type == "subshell":
            self._apart(body.children)
        elif own:
            self._maybe(body.children, {*own, *names_set(text_of(body))} - {""}, "function")
        else:
            self._nested(body.children)
        self.script.positional, self.depth = outer, self.depth - 1

    def _nest(self, text: str) -> None:
        """Read a text as commands of this shell, in the line of the command that holds it."""
        if self.depth < DEEPEST:
            outer, self.line = self.line, self.script.line
            self.depth += 1
            self.read(text)
            self.depth -= 1
            self.line = outer

    def _source(self, fields: Sequence[str]) -> None:
        """Read another file in place, if it lies beside the script."""
        line, name = self.script.line, fields[1] if fields[1:] else ""
        text = self.script.files.text(name) if self.depth < DEEPEST else None
        if text is None:
            why = "another file, which is not beside this one and was not read"
            self.ledger.ignore(f"line {line}", short(" ".join(fields[:4])), why)
            return
        self.ledger.took("script", name, f"sourced in line {line}; read too")
        outer, self.script.positional = self.script.positional, list(fields[2:]) or self.script.positional
        self.depth += 1
        self.read(text)
        self.depth -= 1
        self.script.positional = outer
        if _RETURNS.search(text):
            self._forget(names_set(text), "unread")

    def _other_script(self, fields: list[str], environment: Sequence[Node]) -> bool:
        """Follow a text that another shell reads, and note a file that it does; whether it was one of them."""
        shell = next((at for at, word in enumerate(fields) if _SHELLS.fullmatch(word)), -1)
        flag = next((at for at in range(shell + 1, len(fields)) if re.fullmatch(r"-[a-z]*c", fields[at])), -1)
        if shell >= 0 and 0 < flag < len(fields) - 1:
            inner = replace(
                self, script=self.script.child(fields[flag + 2 :]), depth=self.depth + 1, ended=False, inside=0
            )
            inner.prefix = (*self.prefix, *fields[:shell])
            for each in environment:
                inner._assign(each)
            inner._nest(fields[flag + 1])
            return True
        at = next((at for at, word in enumerate(fields) if _SCRIPT.fullmatch(word) and not word.startswith("-")), -1)
        if at < 0 or not (fields[0] in _SUBMITS or at in (0, shell + 1)) or UNKNOWN + "--" in fields[at]:
            return False
        why = "starts another script; import that"
        self.ledger.ignore(f"line {self.script.line}", short(" ".join(fields[: at + 1])), why)
        return True


def _commands_in(node: Node) -> Iterator[Node]:
    """What stands before redirections, and in the line that opens a here-document."""
    for each in node.named_children:
        if each.type == "heredoc_redirect":
            yield from (part for part in each.named_children if part.type in _STARTED)
        elif not each.type.endswith("_redirect"):
            yield each


def _redirects(node: Node) -> Iterator[Node]:
    """Files and here-documents beside a command; those behind a list or a pipeline are its last one's."""
    parent = node.parent
    while parent is not None and parent.type in _JOINED and parent.named_children[-1] == node:
        node, parent = parent, parent.parent
    for each in parent.named_children if parent is not None and parent.type == "redirected_statement" else ():
        if each.type in ("file_redirect", "heredoc_redirect"):
            yield from (each, *(part for part in each.named_children if part.type == "file_redirect"))


def _branches(node: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """(condition, body) of each branch of an `if`; `else` has no condition."""
    children = [each for each in node.children if (each.is_named and each.type != "comment") or each.type == "then"]
    arms = [each for each in children if each.type in ("elif_clause", "else_clause")]
    own = [each for each in children if each not in arms]
    then = next((at for at, each in enumerate(own) if each.type == "then"), 0)
    if node.type == "else_clause":
        yield [], own
    else:
        yield own[:then], own[then + 1 :]
    for arm in arms:
        yield from _branches(arm)


def _is_test(node: Node) -> bool:
    """Whether a condition starts nothing."""
    if node.type in ("list", "negated_command"):
        return all(map(_is_test, node.named_children))
    if node.type == "command":
        return text_of(node.children[0]) in ("test", "true", "false", ":")
    return node.type in ("test_command", "comment") or node.type == "compound_statement"


def _continued(node: Node, word: Node) -> bool:
    """Whether a backslash joins the line before this word to it."""
    lines = (node.text or b"")[: word.start_byte - node.start_byte].rstrip(b" \t").split(b"\n")
    return len(lines) > 1 and lines[-2].endswith(b"\\")
