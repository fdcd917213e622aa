"""A lint of the words of the house: python -m tests.prose [--longest 100]

Four rules hold. No docstring opens without a subject. No function or class has a private word for a name. No sentence of
a page, or of a string in the code, has thirty words or more. No such string has a word that people
would not say.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIPPED = re.compile(
    r"(Of|The same|Those|What of|As|By|In (which|the place)|With|From|Per|Up to|For|Between|Among|On|That)\b"
)
PRIVATE = {"alive", "floating", "held", "ways", "said", "sparing", "standing", "needless", "tellable"}
LONGEST = 29
"""Words that a sentence of a page may have: fewer than thirty."""
UNSAID = re.compile(
    r"\b(thereof|wherein|needless|tellable|knowing of|but for|as far as compute|the way opposite|drawn to|taken for|"
    r"is told|are told|it tells|hand(s|ed)? over|stands? in for|what of the)\b"
)
"""Words that printed sentences do without."""
PAGES = ("README.md", "CONTRIBUTING.md", "SKILL.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
_HEAD = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])(?<! al\.)(?<!\.\.\.)[)*\"”]*\s+(?=\S)")
_WORD = re.compile(r"[^\s—–·+=/|×]+")


@lru_cache(maxsize=4)
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a file with their lines, and the strings below fields and constants, which document these."""
    for node in _nodes(path):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield child.lineno, value.value.strip()


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Functions and classes of a file with their lines."""
    for node in _nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of a page in Markdown with their lengths in words; code, tables and headings are left out."""
    text = _FENCE.sub("\n\n", _HEAD.sub("", text))
    for block in re.split(r"\n\s*\n", text):
        if block.startswith(("#", "    ")):
            continue
        for item in _ITEM.split(block):
            prose = " ".join(line for line in item.splitlines() if not line.lstrip().startswith("|"))
            plain = re.sub(r"`[^`]*`", "CODE", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose))
            for sentence in _END.split(plain):
                yield len(_WORD.findall(sentence)), sentence.strip()


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Strings of a file that are sentences to be printed: eight words or more, docstrings left out; {} for values."""
    below = [each for each in _nodes(path) if isinstance(each, ast.Expr)]
    inside = [part for node in _nodes(path) if isinstance(node, ast.JoinedStr) for part in node.values]
    silent = {id(each.value) for each in below} | {id(part) for part in inside}
    for node in _nodes(path):
        if not isinstance(node, ast.JoinedStr | ast.Constant) or id(node) in silent:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        if len(re.findall(r"[a-z]{2}\S*\s", text)) >= 8:
            yield node.lineno, text


def longest(count: int) -> list[tuple[int, str, str]]:
    """Words, page and text of the longest sentences of all pages."""
    found = [(n, page, text) for page in PAGES for n, text in sentences((ROOT / page).read_text(encoding="utf-8"))]
    return sorted(found, reverse=True)[:count]


def of_code(every: int = 1) -> list[str]:
    """Clipped docstrings, private names and printed sentences that are long or odd, each with its place; in all files,
    or in every so manyth."""
    found: list[str] = []
    paths = sorted(each for top in ("sim", "calibration", "validation") for each in (ROOT / top).rglob("*.py"))
    for path in paths[::every]:
        place = path.relative_to(ROOT).as_posix()
        here = [(line, f"{name}: a private word; take the field's") for line, name in names(path) if name in PRIVATE]
        here += [
            (line, f"{text.splitlines()[0][:70]}: say what it is, with a subject")
            for line, text in docstrings(path)
            if CLIPPED.match(text)
        ]
        for line, text in strings(path):
            counts = [(len(_WORD.findall(sentence)), sentence[:70]) for sentence in _END.split(text)]
            here += [
                (line, f"{words}: {count} words, more than {LONGEST}") for count, words in counts if count > LONGEST
            ]
            here += [(line, f"{match[0]}: say it in other words") for match in UNSAID.finditer(text)]
        found += [f"{place}:{line} {fault}" for line, fault in sorted(here)]
    return found


def of_pages() -> list[str]:
    """Sentences of pages that are too long, each with its page."""
    over = [each for each in longest(10_000) if each[0] > LONGEST]
    return [f"{page}: {count} words, more than {LONGEST}: {text[:90]} ..." for count, page, text in over]


def faults() -> list[str]:
    """Every breach of the four rules."""
    return of_code() + of_pages()


def main() -> None:
    """Print the longest sentences, or every breach."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, metavar="N", help="print the N longest sentences of the pages instead")
    count = parser.parse_args().longest
    if count:
        print(*(f"{n:3d} {page}: {text}" for n, page, text in longest(count)), sep="\n")
    elif found := faults():
        sys.exit("\n".join([*found, f"{len(found)} to reword"]))


if __name__ == "__main__":
    main()
