"""What a script asks of Slurm in its `#SBATCH` lines, and the variables that Slurm sets for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sim.foreign.importers.keys import Arguments
from sim.foreign.importers.ledger import Ledger

_DIRECTIVE = re.compile(r"^[ \t]*#SBATCH[ \t]+(.*)$", re.MULTILINE)
_SHORT = re.compile(r"-([NnG])(\d+)")
_SET = {
    "SLURM_NNODES": ("nodes", "N"),
    "SLURM_JOB_NUM_NODES": ("nodes", "N"),
    "SLURM_NTASKS": ("ntasks", "n"),
    "SLURM_NPROCS": ("ntasks", "n"),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_GPUS_ON_NODE": ("gpus-per-node", "gres"),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
}
"""Variable -> options that say its value."""


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
    for name, options in _SET.items():
        number = count(Arguments(directives, Ledger("")).text(*options))
        if number is not None:
            found[name] = str(number)
    nodes, each = found.get("SLURM_NNODES"), found.get("SLURM_NTASKS_PER_NODE")
    if nodes and each and "SLURM_NTASKS" not in found:
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(int(nodes) * int(each))
    return found


def count(text: str | None) -> int | None:
    """The number of a launcher's option, such as 8, 2:2, gpu:8 or gpu:h100:8."""
    match = re.search(r"(?:^|:)(\d{1,6})$", (text or "").strip("\"'"))
    return int(match[1]) or None if match else None
