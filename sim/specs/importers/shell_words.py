"""A shell script as commands of words, quotes still in them. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sim.errors import SpecError

_ARRAY = re.compile(r"([A-Za-z_]\w*\+?=)\(")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_REDIRECT = re.compile(r"\d*(?:&>>?|[<>]{1,3}&?-?|>\|)\s*")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n|&;()]*>")
"""What a person should fill in, such as <path to vocabulary>; a shell would take it for redirections."""
UNKNOWN = "\0"
"""A part of a value that only the running script would know. Files with this letter in them are refused."""
_END = " \t\n;|&()"
DEEPEST = 30
"""Quotes and expansions inside each other."""


@dataclass(frozen=True, slots=True)
class Words:
    """One simple command, keyword or array.

    line : where it begins, from 1.
    joined : what stands before it: "", "&&", "||" or "|".
    array : the words are the elements of an array; the first is `NAME=` or `NAME+=`.
    """

    words: tuple[str, ...]
    line: int
    joined: str = ""
    array: bool = False


def lex(text: str, where: str) -> Iterator[Words]:
    """The commands of a script in order.

    Raises
    ------
    SpecError
        A quote or bracket that is never closed.
    """
    yield from _Lexer(_PLACEHOLDER.sub(UNKNOWN, text), where).commands()


class _Lexer:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self._counted, self._lines = 0, 1

    def line(self) -> int:
        """Line of the present place; counted onwards, so that a long file is read once."""
        if self.at > self._counted:
            self._lines += self.text.count("\n", self._counted, self.at)
            self._counted = self.at
        return self._lines

    def commands(self) -> Iterator[Words]:
        text, joined, begin = self.text, "", 1
        words: list[str] = []
        heredocs: list[str] = []

        def done(follows: str) -> Iterator[Words]:
            nonlocal words, joined
            if words:
                yield Words(tuple(words), begin, joined)
            words, joined = [], follows

        while self.at < len(text):
            char = text[self.at]
            tests = bool(words) and words[0] == "[[" and words[-1] != "]]"
            if text.startswith("\\\n", self.at):
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif char == "\n":
                yield from done("")
                self.at += 1
                for word in heredocs:
                    self._skip_heredoc(word)
                heredocs = []
            elif tests and char in "&|()<>":
                match = re.compile(r"&&|\|\||[()<>]|.").match(text, self.at)
                assert match is not None
                words.append(match[0])
                self.at = match.end()
            elif text.startswith("((", self.at) and not words:
                begin = self.line()
                words.append(text[self.at : self._balanced(self.at, "(", ")")])
                self.at += len(words[-1])
            elif char in ";|&()":
                if char == "&" and text.startswith("&>", self.at):
                    self._skip_redirect(heredocs)
                    continue
                sign = text[self.at : self.at + 2] if text[self.at : self.at + 2] in ("&&", "||") else char
                if sign == "(" and len(words) == 1 and re.match(r"\(\s*\)", text[self.at :]):
                    words = ["function", words[0]]
                yield from done(sign if sign in ("&&", "||", "|") else "")
                self.at += len(sign)
            elif _REDIRECT.match(text, self.at) and (char in "<>" or char.isdigit()) and not self._is_number():
                self._skip_redirect(heredocs)
            else:
                begin = begin if words else self.line()
                array = _ARRAY.match(text, self.at)
                if array:
                    yield from self._array(array)
                else:
                    words.append(self._word())
                    if (
                        words[-1] in ("if", "elif", "then", "else", "do", "while", "until", "!", "{", "}")
                        and len(words) == 1
                    ):
                        yield from done("")
        yield from done("")

    def _is_number(self) -> bool:
        return bool(re.match(r"\d+(?![\d<>])", self.text[self.at : self.at + 20]))

    def _skip_redirect(self, heredocs: list[str]) -> None:
        here = _HEREDOC.match(self.text, self.at)
        if here and not self.text.startswith("<<<", self.at):
            heredocs.append(here[2])
            self.at = here.end()
            return
        match = _REDIRECT.match(self.text, self.at)
        self.at = match.end() if match else self.at + 1
        if self.at < len(self.text) and self.text[self.at] == "(":
            self.at = self._balanced(self.at, "(", ")")
        elif self.at < len(self.text) and self.text[self.at] not in _END:
            self._word()

    def _skip_heredoc(self, word: str) -> None:
        end = re.compile(rf"^\t*{re.escape(word)}[ \t]*$", re.MULTILINE).search(self.text, self.at)
        self.at = end.end() if end else len(self.text)

    def _array(self, match: re.Match[str]) -> Iterator[Words]:
        begin, self.at = self.line(), match.end()
        words = [match[1]]
        while True:
            if self.at >= len(self.text):
                raise SpecError(f"{self.where}: line {begin}: the array {match[1]}( is never closed")
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                yield Words(tuple(words), begin, array=True)
                return
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in _END:
                self.at += 1
            else:
                words.append(self._word())

    def _word(self) -> str:
        """From here to the word's end; quotes and expansions are kept whole."""
        begin = at = self.at
        text = self.text
        while at < len(text) and text[at] not in _END and text[at] not in "<>":
            if text[at] == "\\":
                at += 2
            elif text[at] in "'\"`":
                at = self._quoted(at)
            elif text.startswith("$(", at):
                at = self._balanced(at + 1, "(", ")")
            elif text.startswith("${", at):
                at = self._balanced(at + 1, "{", "}")
            else:
                at += 1
        self.at = max(min(at, len(text)), begin + 1)
        return text[begin : self.at]

    def _quoted(self, at: int, depth: int = 0) -> int:
        """Place after the quotation that begins here."""
        text, mark, begin = self.text, self.text[at], at
        at += 1
        while at < len(text) and text[at] != mark:
            if text[at] == "\\" and mark != "'":
                at += 2
            elif mark == '"' and text.startswith(("$(", "${"), at):
                at = self._balanced(at + 1, text[at + 1], ")" if text[at + 1] == "(" else "}", depth + 1)
            else:
                at += 1
        if at >= len(text):
            self.at = begin
            raise SpecError(f"{self.where}: line {self.line()}: a quotation that begins with {mark} is never closed")
        return at + 1

    def _balanced(self, at: int, opens: str, closes: str, depth: int = 0) -> int:
        """Place after the bracket that closes the one here."""
        text, begin, level = self.text, at, 0
        if depth > DEEPEST:
            raise SpecError(f"{self.where}: quotes and brackets more than {DEEPEST} deep; no launch script has them")
        while at < len(text):
            char = text[at]
            if char == "\\":
                at += 2
                continue
            if char in "'\"`":
                at = self._quoted(at, depth)
                continue
            level += (char == opens) - (char == closes)
            at += 1
            if level == 0:
                return at
        self.at = begin
        raise SpecError(f"{self.where}: line {self.line()}: a bracket {opens} is never closed")
