"""A shell script as commands of words, quotes still in them, and a word as the pieces it is made of. Nothing is run."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN

DEEPEST = 30
"""Quotes and expansions inside each other."""
_ARRAY = re.compile(r"([A-Za-z_]\w*\+?=)\(")
_BLANK = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*")
_NO_ELEMENT = re.compile(r"(?:[ \t\n;|&(]|\\\n|#[^\n]*)*")
"""What stands between the elements of an array."""
_HEREDOC = re.compile(r"<<(?!<)-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_REDIRECT = re.compile(r"(?:\d*(?:>\||[<>]{1,3}&?-?)|&>>?)\s*")
_PLACEHOLDER = re.compile(r"(?<!<)<[A-Za-z][^<>\n|&;()]*>")
"""What a person should fill in, such as <path to vocabulary>; a shell would take it for redirections."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9@*?$!#-]")
_ESAC = re.compile(r"esac(?![\w.-])")
_END = " \t\n;|&()<>"
_KEYWORDS = ("if", "elif", "then", "else", "do", "while", "until", "!", "{", "}")
"""A command begins after them without a semicolon."""


@dataclass(frozen=True, slots=True)
class Words:
    """One simple command, keyword or array.

    line : where it begins, from 1.
    joined : what stands before it: "", "&&", "||" or "|".
    kind : "array", whose words are the elements, the first `NAME=` or `NAME+=`; "arm", of a `case`, whose words are its
        patterns.
    target : the file that its output is written to, if any.
    document : the lines of a here-document that it reads, if any.
    expands : whether variables in that document stand for their values.
    """

    words: tuple[str, ...]
    line: int
    joined: str = ""
    kind: Literal["command", "array", "arm"] = "command"
    target: str = ""
    document: str | None = None
    expands: bool = True


class Piece(NamedTuple):
    """A piece of a word.

    kind : "text"; "variable", as in `$NAME` or between the braces of `${…}`; "arithmetic", as in `$((…))`; "output", of
        a command.
    """

    kind: str
    text: str
    quoted: bool


def lex(text: str, where: str) -> Iterator[Words]:
    """The commands of a script in order.

    Raises
    ------
    SpecError
        A quote or bracket that is never closed.
    """
    return _Lexer(_PLACEHOLDER.sub(UNKNOWN, text), where).commands()


def pieces_of(word: str, where: str, quoted: bool = False) -> list[Piece]:
    """The pieces of a word that `lex` found, or of lines that are read as if in quotes; raises as it does."""
    return _Scanner(word, where).pieces(0, "", quoted)[0]


class _Scanner:
    """Words in a text: where they end, and what they are made of."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where

    def pieces(self, at: int, stops: str, quoted: bool = False, depth: int = 0) -> tuple[list[Piece], int]:
        """(pieces of a word that begins here, place of the letter among `stops` that ends it)."""
        if depth > DEEPEST:
            raise SpecError(f"{self.where}: quotes and brackets more than {DEEPEST} deep; no launch script has them")
        text, found = self.text, []
        special = "\\$`" if quoted else "\\$`'\""
        while at < len(text) and text[at] not in stops:
            char, end = text[at], at + 1
            if char == "\\":
                follows = text[at + 1 : at + 2]
                kept = char if quoted and follows not in '$`"\\' else ""
                found += [] if follows == "\n" else [Piece("text", kept + follows, True)]
                end = at + 2
            elif char not in special:
                while end < len(text) and text[end] not in stops and text[end] not in special:
                    end += 1
                found.append(Piece("text", text[at:end], quoted))
            elif char == "'":
                end = self._after_quote(at)
                found.append(Piece("text", text[at + 1 : end - 1], True))
            elif char == '"':
                inner, end = self._in_quotes(at, depth)
                found += [Piece("text", "", True), *inner]
            elif char == "`":
                end = self._after_quote(at, quoted)
                found.append(Piece("output", text[at + 1 : end - 1], quoted))
            else:
                piece, end = self._dollar(at, quoted, depth)
                found.append(piece)
            at = end
        return found, min(at, len(text))

    def after_bracket(self, at: int, depth: int = 0) -> int:
        """Place after the bracket that closes the one here."""
        text, begin, level = self.text, at, 0
        opens, closes = text[at], ")" if text[at] == "(" else "}"
        while at < len(text):
            char = text[at]
            level += (char == opens) - (char == closes)
            if char == '"':
                at = self._in_quotes(at, depth)[1]
            elif char in "'`":
                at = self._after_quote(at)
            else:
                at += 2 if char == "\\" else 1
            if level == 0:
                return at
        raise self._unclosed(begin, f"a bracket {opens}")

    def _dollar(self, at: int, quoted: bool, depth: int) -> tuple[Piece, int]:
        """(what the `$` here stands for, place after it)."""
        text = self.text
        if text.startswith(("$(", "${"), at):
            end = self.after_bracket(at + 1, depth + 1)
            if text.startswith("$((", at):
                return Piece("arithmetic", text[at + 3 : end - 2], quoted), end
            return Piece("variable" if text[at + 1] == "{" else "output", text[at + 2 : end - 1], quoted), end
        name = _VARIABLE.match(text, at + 1)
        return (Piece("variable", name[0], quoted), name.end()) if name else (Piece("text", "$", quoted), at + 1)

    def _in_quotes(self, at: int, depth: int) -> tuple[list[Piece], int]:
        """(pieces of the text in the double quotes that open here, place after them)."""
        pieces, end = self.pieces(at + 1, '"', True, depth + 1)
        if end >= len(self.text):
            raise self._unclosed(at, 'a quotation that begins with "')
        return pieces, end + 1

    def _after_quote(self, at: int, quoted: bool = False) -> int:
        """Place after the single quotes or backticks that open here.

        A command between backticks may have double quotes of its own, in double quotes too; a lone backtick there ends
        with the quotes.
        """
        mark = self.text[at]
        inside = r"`(?:[^`\"\\]|\\.|\"[^\"`]*\")*`|`(?:[^`\"\\]|\\.)*"
        pattern = r"'[^']*'" if mark == "'" else inside if quoted else r"`(?:[^`\\]|\\.)*`"
        match = re.compile(pattern, re.DOTALL).match(self.text, at)
        if match is None:
            raise self._unclosed(at, f"a quotation that begins with {mark}")
        return match.end()

    @cached_property
    def _breaks(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self.text)]

    def line(self, at: int) -> int:
        """Line of a place, from 1."""
        return bisect_left(self._breaks, at) + 1

    def _unclosed(self, at: int, what: str) -> SpecError:
        return SpecError(f"{self.where}: line {self.line(at)}: {what} is never closed")


class _Lexer(_Scanner):
    def __init__(self, text: str, where: str) -> None:
        super().__init__(text, where)
        self.at, self.words, self.joined = 0, list[str](), ""
        self._begin, self._target = 1, ""
        self._waiting: list[tuple[str, bool]] = []
        """(end, whether variables count) of here-documents that begin on the next line."""
        self._document: tuple[str, bool] | None = None
        self._cases: list[bool] = []
        """Of each open `case`, whether an arm's patterns come next."""

    def commands(self) -> Iterator[Words]:
        """All commands of the text."""
        text = self.text
        while (at := self._skip(_BLANK)) < len(text):
            char, words = text[at], self.words
            if char == "\n":
                self.at = at + 1
                self._documents()
                yield from self._done(0) if words else ()
            elif self._cases and self._cases[-1] and not words and not _ESAC.match(text, at):
                yield self._arm()
            elif words and words[0] == "[[" and words[-1] != "]]" and char in "&|()<>":
                words.append(text[at : at + 2] if text.startswith(("&&", "||"), at) else char)
                self.at += len(words[-1])
            elif words in ([], ["for"]) and text.startswith("((", at):
                self._add(self.after_bracket(at))
            elif heredoc := _HEREDOC.match(text, at):
                self._waiting.append((heredoc[2], not heredoc[1]))
                self.at = heredoc.end()
            elif _REDIRECT.match(text, at):
                self._redirection()
            elif text.startswith(";;", at):
                yield from self._done(0)
                yield Words((";;",), self.line(at))
                self.at += 3 if text.startswith(";;&", at) else 2
                self._cases[-1:] = [True] * bool(self._cases)
            elif char in ";|&()":
                if char == "(" and len(words) == 1 and re.compile(r"\(\s*\)").match(text, at):
                    self.words = ["function", words[0]]
                yield from self._done(2 if text.startswith(("&&", "||"), at) else 1)
            elif array := _ARRAY.match(text, at):
                yield self._array(array)
            else:
                self._add(self._word_end())
                if self._is_whole():
                    yield from self._done(0)
        yield from self._done(0)

    def _is_whole(self) -> bool:
        """Whether the words are a command already: a keyword, or the head of a `case`."""
        words = self.words
        if words[0] == "case" and len(words) == 3:
            self._cases.append(True)
            return True
        if words == ["esac"] and self._cases:
            self._cases.pop()
        return len(words) == 1 and words[0] in _KEYWORDS

    def _done(self, length: int) -> Iterator[Words]:
        """The command that a sign of this length ends here, if there is one."""
        if self.words:
            document, expands = self._document or (None, True)
            yield Words(tuple(self.words), self._begin, self.joined, "command", self._target, document, expands)
        sign = self.text[self.at : self.at + length]
        self.words, self.joined = [], sign if sign in ("&&", "||", "|") else ""
        self._target, self._document = "", None
        self.at += length

    def _documents(self) -> None:
        """Take the here-documents that begin here."""
        for end, expands in self._waiting:
            begin = self.at
            found = re.compile(rf"^\t*{end}[ \t]*$", re.MULTILINE).search(self.text, begin)
            self.at = found.end() if found else len(self.text)
            self._document = self.text[begin : found.start() if found else self.at], expands
        self._waiting = []

    def _arm(self) -> Words:
        """The patterns of a `case` that stand here."""
        begin, words = self.line(self.at), []
        self.at += self.text[self.at] == "("
        while (at := self._skip(_BLANK)) < len(self.text):
            self.at = at + 1 if self.text[at] in "|)" else self._word_end()
            if self.text[at] == ")":
                break
            words += [] if self.text[at] == "|" else [self.text[at : self.at]]
        self._cases[-1] = False
        return Words(tuple(words) or ("",), begin, kind="arm")

    def _add(self, end: int) -> None:
        """Add the word that ends there."""
        self._begin = self._begin if self.words else self.line(self.at)
        self.words.append(self.text[self.at : end])
        self.at = end

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _word_end(self) -> int:
        return max(self.pieces(self.at, _END)[1], self.at + 1)

    def _redirection(self) -> None:
        writes = self.text[self.at] in ">1&"
        at = self._skip(_REDIRECT)
        if self.text.startswith("(", at):
            self.at = self.after_bracket(at)
        elif at < len(self.text) and self.text[at] not in _END:
            self.at = self._word_end()
            self._target = self.text[at : self.at] if writes else self._target

    def _array(self, opening: re.Match[str]) -> Words:
        begin, words = self.line(self.at), [opening[1]]
        self.at = opening.end()
        while (at := self._skip(_NO_ELEMENT)) < len(self.text):
            self.at = at + 1 if self.text[at] == ")" else self._word_end()
            if self.text[at] == ")":
                return Words(tuple(words), begin, kind="array")
            words.append(self.text[at : self.at])
        raise SpecError(f"{self.where}: line {begin}: the array {opening[1]}( is never closed")
