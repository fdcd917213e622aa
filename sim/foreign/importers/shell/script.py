"""What a launch script says beside its variables: Slurm's lines, the commands it would start, the files that it names.

Files are those beside it, and those that it would write itself. Nothing outside the folder is opened, and nothing is
written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sim.errors import SpecError
from sim.foreign.importers.keys import Arguments, table
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.sources import beside, text_of

_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*)$", re.MULTILINE)
_SHORT = re.compile(r"-([NnG])(\d+)")


def directives_of(text: str) -> list[str]:
    """The words of a script's `#SBATCH` lines."""
    words: list[str] = []
    for match in _DIRECTIVE.finditer(text):
        for word in match[1].partition(" #")[0].split():
            short = _SHORT.fullmatch(word)
            words += [f"-{short[1]}", short[2]] if short else [word]
    return words


def environment_of(directives: Sequence[str]) -> dict[str, str]:
    """Variables that Slurm sets for a script with these directives."""
    found = {}
    for name, options in table("launchers")["slurm"].items():
        number = count(Arguments(directives, Ledger("")).text(*options))
        if number is not None:
            found[name] = str(number)
    nodes, each = found.get("SLURM_NNODES"), found.get("SLURM_NTASKS_PER_NODE")
    if nodes and each and "SLURM_NTASKS" not in found:
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(int(nodes) * int(each))
    return found


def count(text: str | None) -> int | None:
    """The number of a launcher's option, such as 8, 2:2, gpu:8 or gpu:h100:8, or of what a list such as 0,1,2 names."""
    if re.fullmatch(r"\d{1,4}(?:,\d{1,4})+", listed := (text or "").strip("\"'")):
        return listed.count(",") + 1
    match = re.search(r"(?:^|:)(\d{1,6})$", (text or "").strip("\"'"))
    return int(match[1]) or None if match else None


MOST_FILES = 40


@dataclass
class Files:
    """What is known of files.

    folder : of the script; None where it has none.
    written : name -> text of files that the script would write.
    """

    folder: Path | None = None
    written: dict[str, str] = field(default_factory=dict)
    opened: int = 0

    def text(self, name: str) -> str | None:
        """The text of a file that the script writes, or that lies in its folder or below it; None for any other. Raises
        SpecError: more files than any launch script names."""
        if name in self.written:
            return self.written[name]
        path = beside(name, self.folder)
        if path is None:
            return None
        self.opened += 1
        if self.opened > MOST_FILES:
            raise SpecError(f"{path}: more than {MOST_FILES} files are named; no launch script names so many")
        try:
            return text_of(path)
        except SpecError:
            return None

    def note(self, fields: Sequence[str], document: str | None, target: str) -> None:
        """Keep what a command would write: the lines after `cat << EOT`, or the words of `echo`."""
        text = document if fields[0] in ("cat", "tee") else None
        if fields[0] in ("echo", "printf"):
            text = " ".join(each for each in fields[1:] if each not in ("-e", "-n"))
        target = target or (fields[1] if fields[0] == "tee" and fields[1:] else "")
        if text is not None and target and not target.startswith("/dev/"):
            self.written[target] = text


@dataclass(frozen=True, slots=True)
class Started:
    """A command that the script would start.

    words : expanded; parts that only a run would know are marked.
    line : where it stands in the file that holds it.
    doubt : line of a condition that it stands under and that is not decided, or 0.
    directives : of the scheduler, for the script that holds it.
    environment : `NAME=value` before it.
    """

    words: list[str]
    line: int
    doubt: int = 0
    directives: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
