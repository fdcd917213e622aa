"""Edits of a variable where it is used: `${NAME,,}`, `${NAME%.sh}`, `${NAME/a/b}`, `${NAME:0:2}`."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from sim.foreign.importers.keys import UNKNOWN

_LONGEST = 4000


def edited(text: str, edit: str) -> str:
    """A value after the edit that stands behind its name; not known where the edit is none of these."""
    if UNKNOWN in text or UNKNOWN in edit:
        return text if UNKNOWN in text else UNKNOWN
    if edit in (",,", "^^", ",", "^"):
        changed = text.lower() if edit[0] == "," else text.upper()
        return changed if len(edit) == 2 else changed[:1] + text[1:]
    if found := re.fullmatch(r"(//?)([^/]+)/?(.*)", edit, re.DOTALL):
        if set(found[2]) & set("*?["):
            return UNKNOWN
        return text.replace(found[2], found[3], -1 if found[1] == "//" else 1)
    if found := re.fullmatch(r":\s*(\d{1,6})(?::\s*(\d{1,6}))?", edit):
        begin = int(found[1])
        return text[begin : begin + int(found[2])] if found[2] else text[begin:]
    if (found := re.fullmatch(r"(%%?|##?)(.+)", edit, re.DOTALL)) and len(text) <= _LONGEST:
        return _cut(text, found[1], found[2])
    return UNKNOWN


def _cut(text: str, sign: str, pattern: str) -> str:
    """Without the shortest or the longest end (`%`) or beginning (`#`) that fits a pattern."""
    places = range(len(text) + 1)
    if sign in ("%", "##"):
        places = range(len(text), -1, -1)
    for place in places:
        part = text[place:] if sign[0] == "%" else text[:place]
        if fnmatchcase(part, pattern):
            return text[:place] if sign[0] == "%" else text[place:]
    return text
