"""What a launch script starts: the training command, and on how many GPUs."""

from __future__ import annotations

import re

from sim.errors import SpecError
from sim.specs.importers.defaults import Given
from sim.specs.importers.keys import UNKNOWN, Arguments, table
from sim.specs.importers.ledger import Ledger, Section
from sim.specs.importers.shell import Script, words_of


def training_command(script: Script, ledger: Ledger) -> tuple[list[str], list[str]]:
    """(words of the launcher, words after the training program) of the command that trains."""
    best: tuple[list[str], list[str]] | None = None
    for command in script.commands:
        words: list[str] = []
        for word in command:  # a command in a text, as in sh -c "…"
            text = word
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
    texts = (value for values in script.values.variables.values() for value in values)
    every = [word for text in texts for word in text.replace(UNKNOWN, " ").split()]
    if any(word.replace("_", "-").startswith("--num-layers") for word in every):
        ledger.ignore("command", "", "no training command was found; all arguments that variables hold were read")
        return [], every
    raise SpecError(
        f"{ledger.where}: no command with --num-layers and --hidden-size was found; give the script that starts "
        "pretrain_gpt.py, with its arguments in it"
    )


def gpus_of(script: Script, launcher: list[str], plan: Section, given: Given, ledger: Ledger) -> int:
    """GPUs of the job: the caller's, or those that the launcher starts if they hold the model."""
    if given.gpus is not None:
        return int(ledger.took("GPUs", given.gpus, "--gpus"))
    unit = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    found, source = _started(script, launcher, ledger)
    if found is None:
        why = "the script does not say: one replica, tp · pp · cp; --gpus N says how many"
    elif found % unit:
        why = (
            f"{source} start {found:,} GPUs, but tp · pp · cp = {unit:,}: one replica is taken; --gpus N says how many"
        )
    else:
        return int(ledger.took("GPUs", found, source))
    return int(ledger.assume("GPUs", unit, why))


def _started(script: Script, launcher: list[str], ledger: Ledger) -> tuple[int | None, str]:
    """(GPUs that the launcher starts, where it says so)."""
    options, known = Arguments([*script.directives, *launcher], Ledger(ledger.where)), table("megatron")
    nodes = _small(options.text("nnodes", "nodes", "num-nodes", "N"))
    each = _small(options.text("nproc-per-node", "ntasks-per-node", "gpus-per-node", "num-gpus", "gres"))
    if each is not None and nodes is None:
        nodes = _small(script.variable(*known["nodes"]))
    if nodes is not None and each is None:
        each = _small(script.variable(*known["gpus_per_node"]))
    if nodes is not None and each is not None:
        return nodes * each, f"{nodes} × {each} processes"
    whole = _small(options.text("np", "n", "ntasks", "num-processes"))
    return whole or _small(script.variable("WORLD_SIZE")), "the launcher's processes"


def _small(text: str | None) -> int | None:
    """The number of a launcher's option, such as 8, gpu:8 or gpu:h100:8."""
    match = re.search(r"(?:^|:)(\d{1,6})$", text or "")
    return int(match[1]) or None if match else None
