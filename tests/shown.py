"""What pages show as output, and the commands behind it: python -m tests.shown [docs/search.md ...] writes it anew.

A bash block of one command with text blocks right behind it shows what the command prints: ```text all of it, ```text part
some lines of it, in 80 columns or in ```text columns=110. `tests/test_docs.py` compares both. Written anew, a part begins and ends at the lines that are most like its own
first and last line; look at the change before you commit it.
"""

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

import typer
from typer.testing import CliRunner

from sim.cli import app

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TEXT = r"((?:\n```text(?: part)?(?: columns=\d+)?\n.*?^```\n)+)"
_PAIRS = (
    re.compile(r"^```bash\n(?:[^\n]*&& \.venv/bin/)?flopcast ((?:[^\n]*\\\n)*[^\n]*)\n```\n" + _TEXT, re.M | re.S),
    re.compile(r"`flopcast ([^`]+)` ends with exit code \d:\n" + _TEXT, re.M | re.S),
)
_BLOCK = re.compile(r"(?<=\n)```text( part)?(?: columns=(\d+))?\n(.*?)^```", re.M | re.S)
FILES_FIRST = ("import config.json --gpus 64 --cluster superpod-h100 -o mine.yaml",)
"""Commands that show nothing and write files which others of their page read."""


class Shown(NamedTuple):
    """A text block and the command whose output it is.

    begin, end : place of the block's lines in the page.
    part : whether the block has some lines of the output alone.
    """

    line: str
    columns: int
    part: bool
    text: str
    begin: int
    end: int


def verbs(command, path=()):
    """Every command of the tree with what one types to get there."""
    if hasattr(command, "commands"):
        with typer.Context(command) as context:
            for name in command.list_commands(context):
                yield from verbs(command.get_command(context, name), (*path, name))
    else:
        yield path, command


def shown_in(page: str) -> Iterator[Shown]:
    """Text blocks of a page that show output, in order."""
    for pair in sorted((found for form in _PAIRS for found in form.finditer(page)), key=lambda found: found.start()):
        for block in _BLOCK.finditer(pair[2]):
            place, line = pair.start(2) + block.start(3), pair[1].replace("\\\n", " ")
            cut = bool(block[1]) or "&& .venv" in pair[0].splitlines()[1]
            yield Shown(line, int(block[2] or 80), cut, block[3], place, place + len(block[3]))


def files_of(page: str) -> dict[str, str]:
    """Blocks that say which file they are: ```yaml title=mine.yaml."""
    return {block[2].partition("title=")[2].strip(): block[3] for block in FENCE.finditer(page) if "title=" in block[2]}


def printed_by(line: str, columns: int = 80) -> str:
    """What a command prints in so many columns, without spaces at the ends of lines."""
    output = CliRunner().invoke(app, shlex.split(line, comments=True), env={"COLUMNS": f"{columns}"}).stdout
    return "\n".join(text.rstrip() for text in output.rstrip().splitlines()) + "\n"


def window(shown: str, printed: str) -> str:
    """Lines of the output from the one most like the first shown to the one most like the last shown."""
    plain = re.compile(r"\d+")
    lines, old = printed.splitlines(), [plain.sub("#", line) for line in shown.splitlines()]
    new = [plain.sub("#", line) for line in lines]
    begin = max(range(len(new)), key=lambda place: _alike(old[0], new[place]) - abs(place) * 1e-6)
    after = range(begin, len(new))
    end = max(after, key=lambda place: _alike(old[-1], new[place]) - abs(place - begin - len(old) + 1) * 1e-3)
    return "\n".join(lines[begin : end + 1]) + "\n"


def _alike(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def renewed(page: str) -> str:
    """The page with the output of today."""
    for block in FENCE.finditer(page):
        for line in block[3].replace("\\\n", " ").splitlines() if block[1] == "bash" else ():
            words = " ".join(line.split()).removeprefix("flopcast ")
            if words.startswith(FILES_FIRST):
                printed_by(words)
    found = list(shown_in(page))
    outputs = {asked: printed_by(*asked) for asked in dict.fromkeys((each.line, each.columns) for each in found)}
    for each in reversed(found):
        printed = outputs[each.line, each.columns]
        text = window(each.text, printed) if each.part else printed
        page = page[: each.begin] + text + page[each.end :]
    return page


def main() -> None:
    """Write the output anew in the pages that are named, or in all."""
    pages = [Path(name).resolve() for name in sys.argv[1:]] or [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    for page in pages:
        before = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for name in ("scenarios", "docs", "notebooks", "calibration", "README.md"):
                Path(name).symlink_to(ROOT / name)
            for name, text in files_of(before).items():
                Path(name).write_text(text, encoding="utf-8")
            after = renewed(before)
            os.chdir(ROOT)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: written anew")


if __name__ == "__main__":
    main()
