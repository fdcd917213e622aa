"""What a launch script starts: the training command, and on how many GPUs."""

from __future__ import annotations

import re
from typing import Any

from sim.errors import SpecError
from sim.specs.importers.arguments import Arguments
from sim.specs.importers.fill import Given
from sim.specs.importers.ledger import Ledger
from sim.specs.importers.shell import Script, words_of
from sim.specs.importers.shell_words import UNKNOWN

_NODES = ("NNODES", "NUM_NODES", "SLURM_NNODES", "N_NODES", "NODES", "SLURM_JOB_NUM_NODES")
_PER_NODE = ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE", "NUM_GPUS")


def training_command(script: Script, ledger: Ledger) -> tuple[list[str], list[str]]:
    """(words of the launcher, words after the training program) of the command that trains."""
    best: tuple[list[str], list[str]] | None = None
    for command in script.commands:
        words: list[str] = []
        for word in command.words:  # a command in a text, as in sh -c "…"
            text = word.replace(UNKNOWN, " ")
            words += (
                words_of(text, ledger.where) if " --" in text or (text.startswith("--") and " " in text) else [word]
            )
        if not any(word.replace("_", "-").startswith(("--num-layers", "--hidden-size")) for word in words):
            continue
        program = next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
        best = words[: program + 1], words[program + 1 :]
    if best is not None:
        return best
    # A file of arguments without a command: every variable's words, in the order they were set.
    every = [word for values in script.values.variables.values() for value in values for word in _split(value)]
    if any(word.replace("_", "-").startswith("--num-layers") for word in every):
        ledger.ignore("command", "", "no training command was found; all arguments that variables hold were read")
        return [], every
    raise SpecError(
        f"{ledger.where}: no command with --num-layers and --hidden-size was found; give the script that starts "
        "pretrain_gpt.py, with its arguments in it"
    )


def _split(value: str) -> list[str]:
    return value.replace(UNKNOWN, " ").split()


def gpus_of(script: Script, launcher: list[str], plan: dict[str, Any], given: Given, ledger: Ledger) -> int:
    """GPUs of the job: the caller's, or those that the launcher starts if they hold the model."""
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    if given.gpus is not None:
        return int(ledger.took("GPUs", given.gpus, "--gpus"))
    found, source = _started(script, launcher, ledger)
    if found is not None and found % unit == 0:
        return int(ledger.took("GPUs", found, source))
    if found is not None:
        why = (
            f"{source} start {found:,} GPUs, but tp · pp · cp = {unit:,}: one replica is taken; --gpus N says how many"
        )
        return int(ledger.assume("GPUs", unit, why))
    return int(
        ledger.assume("GPUs", unit, "the script does not say: one replica, tp · pp · cp; --gpus N says how many")
    )


def _started(script: Script, launcher: list[str], ledger: Ledger) -> tuple[int | None, str]:
    """(GPUs that the launcher starts, where it says so)."""
    quiet = Ledger(ledger.where)
    options = Arguments([*script.directives, *launcher], quiet)
    nodes = _small(options.text("nnodes", "nodes", "num-nodes", "N"))
    each = _small(options.text("nproc-per-node", "ntasks-per-node", "gpus-per-node", "num-gpus", "gres"))
    if each is not None and nodes is None and (variable := script.variable(*_NODES)):
        nodes = _small(variable[1])
    if nodes is not None and each is None and (variable := script.variable(*_PER_NODE)):
        each = _small(variable[1])
    if nodes is not None and each is not None:
        return nodes * each, f"{nodes} × {each} processes"
    whole = _small(options.text("np", "n", "ntasks", "num-processes"))
    if whole is None and (variable := script.variable("WORLD_SIZE")):
        whole = _small(variable[1])
    return whole, "the launcher's processes"


def _small(text: str | None) -> int | None:
    """The number of a launcher's option, such as 8, gpu:8 or gpu:h100:8."""
    match = re.search(r"(?:^|:)(\d{1,6})$", text or "")
    return int(match[1]) or None if match else None
