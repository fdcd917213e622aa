"""What words of a shell script stand for, as far as the script and the caller say, and its arithmetic.

Nothing is run; of the environment only what the caller gives is known. What bash makes of a value where it is used is
not known: `${NAME,,}`, `${NAME%.sh}`, `${NAME/a/b}`, `${@:2}`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.shell.script import Files, Started
from sim.foreign.importers.shell.tree import HOLE, MARK, Kind, Unknowns, nodes_of, text_of, words_of
from sim.specs.framework_plans import OPERATIONS, value_of

if TYPE_CHECKING:
    from tree_sitter import Node


LARGEST = 10**15
_CHOICE = re.compile(r"([^?]+)\?([^?:]+):(.+)")
_NOT = re.compile(r"!\s*(\w+|\([^()]*\))")


def _quotient(left: int, right: int) -> int:
    """A quotient as bash has it, which drops the fraction of negative ones too."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_SIGNS = {**OPERATIONS, ast.Div: _quotient, ast.Mod: lambda left, right: left - right * _quotient(left, right)}


def reckon(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression of numbers, names, brackets, comparisons, `&& || !`, `a ? b : c` and + - * / %. Raises
    ValueError: anything else, or too large a number."""
    if not re.fullmatch(r"[\w\s+*/%<>=!&|?:()-]{1,200}", text) or "//" in text:
        raise ValueError(text)
    python = _CHOICE.sub(r"(\2) if (\1) else (\3)", text)
    for sign, word in (("&&", " and "), ("||", " or ")):
        python = python.replace(sign, word)
    try:
        value = int(value_of(_NOT.sub(r"(0 == \1)", python).strip(), names, _NO_FIELDS, _SIGNS))
    except (SyntaxError, ArithmeticError, MemoryError, LookupError, TypeError):
        raise ValueError(text) from None
    if abs(value) > LARGEST:
        raise ValueError(text)
    return value


_NO_FIELDS: Any = None
MOST_LETTERS = 1_000_000
"""Most letters of all values together. A script that doubles a variable over and over stops here."""
HERE = "."
"""The script's folder."""
_BRACED = re.compile(
    r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[@*]\]|\[-?\w{1,6}\])?(?:(:?[-=+?])(.*)|(.+))?$", re.DOTALL
)
_FLAG = re.compile("-[A-Za-z]")
_SPLIT, _QUOTED = "\ud800", "\ud801"
"""Where a word is split, and where a quotation makes a word even of nothing; no text in UTF-8 holds these."""
_FOLDER_WORDS = re.compile(
    r"cd|dirname|readlink|realpath|-[aefmPL]|--|&&|pwd|([12&]?>)?(/dev/null)?|2>&1|"
    r"\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(\[0\])?(:-\$0)?\}"
)

_SETS = re.compile(r"(?:^|[\s;(&|])([A-Za-z_]\w*)\+?=(?=([^\n]*))", re.MULTILINE)


_MAY_SET = re.compile(
    r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:\+\+|--)"
)
"""Names that an expression may set."""


def names_set(text: str) -> set[str]:
    """Names that a script sets somewhere to something else than their own value."""
    found = ((match[1], match[2]) for match in _SETS.finditer(text))
    return {name for name, value in found if not re.search(rf"\$\{{?{name}\b", value)}


@dataclass
class Script:
    """A script while it is read: its variables, and what it would start.

    positional : what `$1`, `$2` and so on are; None where the script is read as called without arguments.
    given : variables that the caller gives, which also stand in where the script sets one to what only a run knows.
    line : of the command that is being read.
    own : names that the script itself sets somewhere: empty where it has not.
    empty_unset : whether variables that nobody sets are empty, as in a condition, and noted in `taken_empty`.
    commands : that it would start, in order.
    count : of letters of all values together, and of commands read so far.
    """

    where: str
    variables: dict[str, list[str]] = field(default_factory=dict)
    positional: list[str] | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    unknowns: Unknowns = field(default_factory=Unknowns)
    line: int = 0
    moved: bool = False
    empty_unset: Literal["", "variables", "all"] = ""
    taken_empty: dict[str, int] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    files: Files = field(default_factory=Files)
    commands: list[Started] = field(default_factory=list)
    count: Counter[str] = field(default_factory=Counter)

    def child(self, positional: Sequence[str] | None) -> Script:
        """Variables of a script that this one starts: as here, but what it sets stays there."""
        own = None if positional is None else list(positional)
        return replace(self, variables=dict(self.variables), positional=own, own=set(self.own), empty_unset="")

    def variable(self, *names: str) -> str | None:
        """The value of the first of these variables that the script sets to something known."""
        values = ((self.variables.get(name) or [""])[0] for name in names)
        return next((value for value in values if value and UNKNOWN not in value), None)

    def fields(self, word: Node) -> list[str]:
        """The words that a word becomes: expanded, and split where it is not quoted."""
        return [each.replace(_QUOTED, "") for each in self._expanded(word, split=True).split(_SPLIT) if each]

    def value(self, word: Node) -> str:
        """The text that a word becomes where it is not split: in an assignment or between brackets."""
        return self._expanded(word)

    def test_value(self, word: Node, of_length: bool) -> str:
        """A word of a condition; what nobody sets is empty there, an argument only where its length is asked."""
        self.empty_unset = "all" if of_length else "variables"
        try:
            return self._expanded(word)
        finally:
            self.empty_unset = ""

    def assign(self, name: str, values: list[str], more: bool, array: bool) -> None:
        """`NAME=` and `NAME+=`."""
        before = self.variables.get(name, []) if more else []
        self._count(*values)
        if len(values) == 1:
            self.unknowns.use(values[0], name, self.line)
        if array or not more:
            self.variables[name] = before + values
        else:
            self._count(*before)
            self.variables[name] = ["".join(before[:1] + values), *before[1:]]
        if name in self.given and UNKNOWN in "".join(self.variables[name]):
            self.variables[name] = [self.given[name]]

    def merge(
        self, outcomes: Sequence[Mapping[str, list[str]]], kind: Kind, line: int, because: tuple[int, ...]
    ) -> list[str]:
        """Keep what is the same whatever an undecided condition is; names of variables that are not."""
        changed = []
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            variants = [outcome.get(name) for outcome in outcomes]
            self.variables[name] = variants[0] or []
            if any(variant != variants[0] for variant in variants):
                changed.append(name)
                mark = self.unknowns.mark(kind, name, line, because)
                self.variables[name] = [self.given[name]] if name in self.given else _common(variants, mark)
        return changed

    def document(self, body: Node) -> str:
        """The text of a here-document, in which quotes are letters."""
        return self._between(body, body.start_byte, body.end_byte, quoted=True)

    def _count(self, *texts: str) -> None:
        self.count["letters"] += sum(map(len, texts))
        if self.count["letters"] > MOST_LETTERS:
            raise SpecError(
                f"{self.where}: its variables grow beyond {MOST_LETTERS:,} letters; no launch script does that"
            )

    def words(self, command: Node) -> list[str]:
        """The words of a command, expanded."""
        return [field for word in words_of(command) for field in self.fields(word)]

    def inside(self, node: Node) -> str:
        """The text between the brackets of a node."""
        return self._between(node, node.children[0].end_byte, node.children[-1].start_byte)

    def _expanded(self, node: Node, split: bool = False, quoted: bool = False) -> str:
        """A node's text; where it may be split, with marks of where it is."""
        several, kind, source = False, node.type, text_of(node).lstrip("\\ \t\n")
        before = _literal(text_of(node).removesuffix(source), True) if quoted else ""  # blanks go with what follows
        if kind == "simple_expansion":
            items, several = self._variable(source[1:], node)
        elif kind == "expansion":
            items, several = self._variable(source[2:-1], node)
        elif kind == "arithmetic_expansion":
            items = [self.arithmetic(self.inside(node))]
        elif kind in ("command_substitution", "process_substitution"):
            items = [self._output(node, source)]
        elif kind in ("raw_string", "ansi_c_string"):
            return _QUOTED * split + source.lstrip("$")[1:-1]
        elif kind == "string":
            inside = self._between(node, node.children[0].end_byte, node.end_byte, split, True)
            nothing = not inside and re.fullmatch(r'"\$(@|\{\w+\[@\]\})"', source)
            return inside if nothing else _QUOTED * split + inside
        elif node.child_count:
            return self._between(node, node.children[0].start_byte, node.end_byte, split, quoted)
        else:
            return _literal(text_of(node), quoted)
        self._count(*items)
        if not split:
            return before + " ".join(items)
        if quoted:
            return before + (_SPLIT + _QUOTED if several else " ").join(items)
        return re.sub(r"[ \t\n]+", _SPLIT, _SPLIT.join(items))

    def _between(self, node: Node, begin: int, end: int, split: bool = False, quoted: bool = False) -> str:
        """The text between two places of a node; what is no node of its own there is text."""
        source, at, text = node.text or b"", begin, ""
        for child in node.children:
            if child.end_byte > begin and child.start_byte < end:
                text += _literal(source[at - node.start_byte : child.start_byte - node.start_byte].decode(), quoted)
                text += (
                    self._expanded(child, split, quoted) if child.type != '"' else _literal(text_of(child)[:-1], True)
                )
                at = child.end_byte
        return text + _literal(source[at - node.start_byte : max(end, at) - node.start_byte].decode(), quoted)

    def _variable(self, inside: str, node: Node) -> tuple[list[str], bool]:
        """(what stands between the braces of `${…}`, whether each value is a word of its own even in quotes)."""
        match = _BRACED.match(inside)
        if match is None or match[1] == "!":
            return [self.unknowns.mark("variable", inside, self.line)], False
        length, name, index, sign, _, edit = match.groups()
        if edit:
            return [self.unknowns.mark("output", f"${{{inside}}}", self.line)], False
        known, several = self._known(name, index)
        if length and (mark := MARK.search(" ".join(known or ()))):
            return [mark[0]], False
        if length:
            return [str(len(known if several else known[0])) if known else "0"], False
        if several and sign is None:
            return known or [], index == "[@]" or name == "@"
        value = None if known is None else known[0] if known else ""

        def other() -> str:
            rest = inside[match.start(5) :].replace(UNKNOWN, HOLE)
            return self._between(node, node.end_byte - 1 - len(rest.encode()), node.end_byte - 1)

        if sign is None:
            return [self._unset(name) if value is None else value], False
        there = value is not None and (value != "" or ":" not in sign)
        if sign[-1] == "+":
            return [other() if there else ""], False
        if value is not None and there:
            return [value], False
        if sign[-1] == "?":
            return [self._unset(name)], False
        text = other()
        if sign[-1] == "=" and name.isidentifier():
            self.assign(name, [text], more=False, array=False)
        return [text], False

    def _known(self, name: str, index: str | None) -> tuple[list[str] | None, bool]:
        """(values of a name, whether they are several); None for what nobody sets."""
        if name in "@*":
            return self.positional or [], True
        if name == "#":
            return [str(len(self.positional or []))], False
        if name == "0":
            return [f"{HERE}/{self.where.rpartition('/')[2]}"], False
        if name.isdigit():
            place = int(name) - 1
            given = self.positional or []
            return ([given[place]] if place < len(given) else None), False
        if name in ("?", "$", "!", "-"):
            return None, False
        known = self.variables.get(name)
        if index in ("[@]", "[*]"):
            return ([self._unset(name)] if known is None else known), True
        if index and known is not None:
            place = self.arithmetic(index[1:-1])  # type: ignore[assignment]
            number = int(place) if re.fullmatch(r"\d{1,6}", str(place)) else None
            unknown = [each for each in known[: (number or 0) + 1] if UNKNOWN in each]
            if unknown:  # which may be several values
                return unknown[:1], False
            return (None if number is None else [known[number]] if number < len(known) else []), False
        return known, False

    def _unset(self, name: str) -> str:
        """What a name that nobody sets stands for."""
        if name.isidentifier() and self.empty_unset:
            self.taken_empty.setdefault(name, self.line)
            return ""
        if name in self.own or (self.empty_unset == "all" and name.isdigit()):
            return ""
        return self.unknowns.mark("argument" if name.isdigit() else "variable", name, self.line)

    def _output(self, node: Node, source: str) -> str:
        """What a command prints, of the few that say nothing but the script's folder, a sum or a word."""
        command = source[1:-1] if source.startswith("`") else source[2:-1]
        text = " ".join(command.replace('"', "").replace("$(", " ").replace(")", " ").replace("`", " ").split())
        if text in ("pwd", "pwd -P") and not self.moved:
            return HERE
        names = [word.rstrip(";") for word in text.split()]
        own = any("$0" in name or "{0}" in name or "BASH_SOURCE" in name for name in names)
        if own and names.count("dirname") < 2 and all(map(_FOLDER_WORDS.fullmatch, names)):
            return HERE if "dirname" in names else f"{HERE}/{self.where.rpartition('/')[2]}"
        commands = [self.words(each) or [""] for each in nodes_of(node, "command")]
        match [each.type for each in node.named_children], commands:
            case ["command"], [["expr", *words], *_]:
                return self.arithmetic(" ".join(words))
            case ["command"], [["echo" | "basename" | "dirname" as name, *words], *_] if words and not _FLAG.match(
                words[0]
            ):
                text = " ".join(words)
                folder, _, last = text.rstrip("/").rpartition("/")
                return {"echo": text, "basename": last, "dirname": folder or HERE}[name]
        return self.unknowns.mark("output", command, self.line)

    def arithmetic(self, text: str) -> str:
        """The value of `$((…))` in whole numbers, or a mark of what is not known, as are variables that it sets."""
        if set_here := _MAY_SET.findall(text):
            mark = self.unknowns.mark("output", text, self.line)
            for names in set_here:
                self.assign(next(filter(None, names)), [mark], more=False, array=False)
            return mark
        if unknown := MARK.search(text):
            return unknown[0]
        held = {name: self._first(name) for name in re.findall(r"(?<!\w)[A-Za-z_]\w*", text)}
        if unknown := MARK.search(" ".join(held.values())):
            return unknown[0]
        try:
            return str(reckon(text, {name: int(value or 0) for name, value in held.items()}))
        except ValueError:
            return self.unknowns.mark("output", text, self.line)

    def _first(self, name: str) -> str:
        """The first value of a variable."""
        return next(iter(self.variables[name]), "") if name in self.variables else self._unset(name)


def _literal(text: str, quoted: bool) -> str:
    """Letters of a script without the backslashes that guard them."""

    def plain(found: re.Match[str]) -> str:
        return "" if found[1] == "\n" else found[0] if quoted and found[1] not in '$`"\\' else found[1]

    return re.sub(r"\\(.)", plain, text.replace(HOLE, UNKNOWN), flags=re.DOTALL)


def _common(variants: Sequence[list[str] | None], mark: str) -> list[str]:
    """What several values of a variable begin with alike, and a mark where they part."""
    single = all(variant is None or len(variant) == 1 for variant in variants)
    lists = [(" ".join(variant).split() if single else variant) if variant else [] for variant in variants]
    switch = any(word.startswith("--") for words in lists for word in words)
    alike = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False))]
    rest = [*alike, f"--{mark}" if switch else mark]
    return [" ".join(rest)] if single else rest
