"""What words of a shell script stand for, as far as the script and the caller say. Nothing is run; of the environment
only what the caller gives is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.shell.arithmetic import reckon
from sim.foreign.importers.shell.parameters import edited
from sim.foreign.importers.shell.unknowns import MARK, Unknowns
from sim.foreign.importers.shell.words import Piece, pieces_of

MOST_LETTERS = 1_000_000
"""Of all values together: a script that doubles a variable over and over ends here."""
MOST_EXPANSIONS = 20
"""Inside each other."""
HERE = "."
"""The script's folder."""
_BRACED = re.compile(
    r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[@*]\]|\[-?\w{1,6}\])?(?:(:?[-=+?])(.*)|(.+))?$", re.DOTALL
)
_SPLIT, _QUOTED = "\ud800", "\ud801"
"""Where a word is split, and where a quotation makes a word even of nothing; no text in UTF-8 holds these."""
_FOLDER_WORDS = re.compile(
    r"cd|dirname|readlink|realpath|-[aefmPL]|--|&&|pwd|>/dev/null|2>&1|\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(\[0\])?(:-\$0)?\}"
)
_SUM = re.compile(r"(?:expr\s+(?P<expr>.+)|echo\s+(?P<echo>.+?)\s*\|\s*bc(?:\s+-l)?|bc\s*<<<\s*(?P<bc>.+))", re.DOTALL)


_SETS = re.compile(r"(?:^|[\s;(&|])([A-Za-z_]\w*)\+?=([^\n]*)", re.MULTILINE)


def names_set(text: str) -> set[str]:
    """Names that a script sets somewhere to something else than their own value."""
    found = ((match[1], match[2]) for match in _SETS.finditer(text))
    return {name for name, value in found if not re.search(rf"\$\{{?{name}\b", value)}


@dataclass
class Values:
    """The variables of a script while it is read.

    positional : what `$1`, `$2` and so on are; None where the script is read as called without arguments.
    given : variables that the caller gives, which also stand in where the script sets one to what only a run knows.
    line : of the command that is being read.
    own : names that the script itself sets somewhere: empty where it has not.
    empty_unset : whether variables that nobody sets are empty, as in a condition, and noted in `taken_empty`.
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
    letters: list[int] = field(default_factory=lambda: [0])

    def child(self, positional: Sequence[str] | None) -> Values:
        """Variables of a script that this one starts: as here, but what it sets stays there."""
        given, unknowns, empty = self.given, self.unknowns, self.taken_empty
        values = Values(
            self.where, dict(self.variables), None if positional is None else list(positional), given, unknowns
        )
        values.line, values.taken_empty, values.letters, values.moved = self.line, empty, self.letters, self.moved
        values.own = self.own
        return values

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: expanded, and split where it is not quoted."""
        return [each.replace(_QUOTED, "") for each in self._expanded(word, split=True).split(_SPLIT) if each]

    def value(self, word: str) -> str:
        """The text that a word becomes where it is not split: in an assignment or between brackets."""
        return self._expanded(word, split=False)

    def document(self, text: str) -> str:
        """The text of a here-document, in which quotes are letters."""
        items = (" ".join(self._items(piece, 0)[0]) for piece in pieces_of(text, self.where, quoted=True))
        return "".join(items)

    def test_value(self, word: str, of_length: bool) -> str:
        """A word of a condition; what nobody sets is empty there, an argument only where its length is asked."""
        self.empty_unset = "all" if of_length else "variables"
        try:
            return self._expanded(word, split=False)
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

    def merge(self, outcomes: Sequence[Mapping[str, list[str]]], mark: str) -> list[str]:
        """Keep what is the same whatever an undecided condition is; names of variables that are not."""
        changed = []
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            variants = [outcome.get(name) for outcome in outcomes]
            self.variables[name] = _common(variants, mark)
            if any(variant != variants[0] for variant in variants):
                changed.append(name)
                if name in self.given:
                    self.variables[name] = [self.given[name]]
        return changed

    def _count(self, *texts: str) -> None:
        self.letters[0] += sum(map(len, texts))
        if self.letters[0] > MOST_LETTERS:
            raise SpecError(
                f"{self.where}: its variables grow beyond {MOST_LETTERS:,} letters; no launch script does that"
            )

    def _expanded(self, word: str, split: bool, depth: int = 0) -> str:
        """A word's text; where it may be split, with marks of where it is."""
        if depth > MOST_EXPANSIONS:
            raise SpecError(f"{self.where}: expansions more than {MOST_EXPANSIONS} deep; no launch script has them")
        text = ""
        for piece in pieces_of(word, self.where):
            items, several = self._items(piece, depth)
            self._count(*items)
            if not split:
                text += " ".join(items)
            elif piece.quoted:
                if items or piece.kind != "variable" or not several:  # "$@" of nothing is no word
                    text += _QUOTED + (_SPLIT + _QUOTED if several else " ").join(items)
            elif piece.kind == "text":
                text += piece.text
            else:
                text += re.sub(r"[ \t\n]+", _SPLIT, _SPLIT.join(items))
        return text

    def _items(self, piece: Piece, depth: int) -> tuple[list[str], bool]:
        """(values of a piece, whether each is a word of its own even in quotes)."""
        match piece.kind:
            case "variable":
                return self._variable(piece.text, depth)
            case "arithmetic":
                return [self.arithmetic(piece.text, depth)], False
            case "output":
                return [self._output(piece.text, depth)], False
            case _:
                return [piece.text], False

    def _variable(self, inside: str, depth: int) -> tuple[list[str], bool]:
        """What stands between the braces of `${…}`."""
        match = _BRACED.match(inside)
        if match is None or match[1] == "!":
            return [self.unknowns.mark("variable", inside, self.line)], False
        length, name, index, sign, word, edit = match.groups()
        known, several = self._known(name, index)
        if length:
            return [str(len(known if several else known[0])) if known else "0"], False
        if several and sign is None:
            return known or [], index == "[@]" or name == "@"
        value = None if known is None else known[0] if known else ""
        if sign is None:
            text = self._unset(name) if value is None else value
            return [edited(text, self._expanded(edit, False, depth + 1)) if edit else text], False
        there = value is not None and (value != "" or ":" not in sign)
        if sign[-1] == "+":
            return [self._expanded(word, False, depth + 1) if there else ""], False
        if value is not None and there:
            return [value], False
        if sign[-1] == "?":
            return [self._unset(name)], False
        text = self._expanded(word, False, depth + 1)
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
            place = self.arithmetic(index[1:-1], 0)  # type: ignore[assignment]
            number = int(place) if re.fullmatch(r"\d{1,6}", str(place)) else None
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

    def _output(self, command: str, depth: int) -> str:
        """What a command prints, of the few that say nothing but the script's folder, a sum or a word."""
        words = " ".join(command.replace('"', "").replace("$(", " ").replace(")", " ").replace("`", " ").split())
        if words in ("pwd", "pwd -P") and not self.moved:
            return HERE
        names = [word.rstrip(";") for word in words.split()]
        own = any("$0" in name or "{0}" in name or "BASH_SOURCE" in name for name in names)
        if own and names.count("dirname") == 1 and all(_FOLDER_WORDS.fullmatch(name) for name in names):
            return HERE
        if own and all(name in ("realpath", "readlink", "-f", "-e") or "0" in name for name in names):
            return f"{HERE}/{self.where.rpartition('/')[2]}"
        if found := _SUM.match(command.strip()):
            text = found["expr"] or found["echo"] or found["bc"]
            return self.arithmetic(text.replace("\\*", "*").replace('"', "").replace("'", ""), depth)
        if found := re.fullmatch(r"\s*(echo|basename|dirname)\s+([^-|;&<>`][^|;&<>`]*)", command):
            text = self._expanded(found[2].strip(), False, depth + 1)
            folder, _, name = text.rstrip("/").rpartition("/")
            return {"echo": text, "basename": name, "dirname": folder or HERE}[found[1]]
        return self.unknowns.mark("output", command, self.line)

    def arithmetic(self, expression: str, depth: int = 0) -> str:
        """The value of `$((…))` in whole numbers, or a mark of what is not known."""
        if len(expression) > 200:
            return self.unknowns.mark("output", expression, self.line)
        text = self._expanded(expression, False, depth + 1)
        unknown = MARK.search(text)
        if unknown is not None:
            return unknown[0]
        missing: list[str] = []

        def number(name: str) -> int:
            known = self.variables.get(name)
            value = known[0] if known else self._unset(name) if known is None else "0"
            if UNKNOWN in value:
                missing.append(value)
            return int(value or 0)

        try:
            return str(reckon(text, number))
        except (ValueError, RecursionError):
            return missing[0] if missing else self.unknowns.mark("output", expression, self.line)


def _common(variants: Sequence[list[str] | None], mark: str) -> list[str]:
    """What several values of a variable begin with alike, and a mark where they part."""
    first = next(variant for variant in variants if variant is not None)
    if all(variant == first for variant in variants):
        return first
    single = all(variant is None or len(variant) == 1 for variant in variants)
    lists = [(" ".join(variant).split() if single else variant) if variant else [] for variant in variants]
    alike = _alike(lists)
    switch = any(word.startswith("--") for words in lists for word in words)
    rest = [*alike, f"--{mark}" if switch else mark]
    return [" ".join(rest)] if single else rest


def _alike(lists: Iterable[Sequence[str]]) -> list[str]:
    same = []
    for words in zip(*lists, strict=False):
        if len(set(words)) > 1:
            break
        same.append(words[0])
    return same
