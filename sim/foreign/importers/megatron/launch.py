"""What a launch script starts: the training command, and on how many GPUs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sim.errors import SpecError
from sim.foreign.importers.defaults import told_gpus
from sim.foreign.importers.keys import UNKNOWN, Arguments, table
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.shell.expansion import Script
from sim.foreign.importers.shell.reader import words_in
from sim.foreign.importers.shell.script import Started, count
from sim.foreign.importers.shell.tree import MARK

_SHAPE = ("--num-layers", "--hidden-size")
_PRINTS = ("echo", "printf", "cat", "mkdir", "rm", "cp", "mv", "ls", "log", "tee")


@dataclass(frozen=True, slots=True)
class Training:
    """The command that trains.

    launcher : words up to the program, behind the scheduler's.
    program : the Python file; "" where the script holds arguments alone.
    words : the program's.
    depends : marks of conditions that decide which program it is.
    """

    launcher: list[str]
    program: str
    words: list[str]
    depends: str = ""


def training_command(script: Script, ledger: Ledger) -> Training:
    """The command that trains. Raises SpecError: there is none, or it starts what is no decoder's training."""
    read: list[tuple[Started, Training]] = []
    refused: list[tuple[Started, str, str]] = []
    shapeless: list[tuple[Started, Training]] = []
    for started in script.commands:
        command = _training(started, ledger.where)
        if command is None:
            continue
        name = MARK.sub("…", command.program)
        reason = refusal(name)
        if reason is not None:
            refused.append((started, name, reason))
        elif any(_is_shape(word) or word.replace("_", "-").startswith("--yaml-cfg") for word in command.words):
            read.append((started, command))
        elif known_program(name):
            shapeless.append((started, command))
    if read:
        return _chosen(read, ledger)
    if refused:
        started, name, reason = refused[-1]
        raise ledger.error(f"line {started.line} starts {short(name)}, which {reason}")
    if shapeless:
        raise SpecError(_without_shape(*shapeless[-1], script, ledger.where))
    return _of_variables(script, ledger)


def refusal(program: str) -> str | None:
    """Why a program cannot be imported, by its name; None where it can."""
    path = f"/{program.replace('-', '_')}"
    for reason, patterns in table("megatron")["refused_programs"].items():
        if any(fnmatchcase(path, f"*/{pattern}") for pattern in patterns):
            return str(reason)
    return None


def known_program(program: str) -> bool:
    """Whether a program is known to train a decoder."""
    name = program.rpartition("/")[2].replace("-", "_")
    return any(fnmatchcase(name, pattern) for pattern in table("megatron")["programs"])


def _training(started: Started, where: str) -> Training | None:
    """A command as a training, if it starts a Python program with arguments."""
    if started.words[0] in _PRINTS:
        return None
    words: list[str] = []
    for word in started.words:  # a command in a text, as in pdsh "…"
        inner = " --" in word or (word.startswith("--") and " " in word)
        words += words_in(word, where) if inner and "'" not in word else word.split() if inner else [word]
    shape = next((at for at, word in enumerate(words) if _is_shape(word)), len(words))
    module = next((at for at in range(1, shape) if words[at - 1] in ("-m", "--module")), -1)
    if module > 0 and not words[module].startswith(("torch.", "accelerate", "deepspeed")):  # as Python's -m
        words = [*words[:module], f"{words[module].replace('.', '/')}.py", *words[module + 1 :]]
    programs = [at for at, word in enumerate(words[:shape]) if word.endswith(".py") and not word.startswith("--")]
    if not programs:
        depends = "".join(word for word in words[:shape] if word.startswith(f"--{UNKNOWN}"))
        return Training([*started.directives, *words], "", words, depends) if shape < len(words) else None
    at = next((at for at in programs if known_program(words[at]) or refusal(words[at])), programs[0])
    return Training([*started.directives, *words[:at]], words[at], words[at + 1 :])


def _is_shape(word: str) -> bool:
    return word.replace("_", "-").startswith(_SHAPE)


def _chosen(read: list[tuple[Started, Training]], ledger: Ledger) -> Training:
    """The last training that is sure to start, or the last; others are noted."""
    sure = [item for item in read if not item[0].doubt] or read
    started, chosen = sure[-1]
    for other, command in read:
        if command.words != chosen.words:
            why = f"another training; the one in line {started.line} is imported"
            ledger.ignore(f"line {other.line}", short(MARK.sub("?", command.program)), why)
    if started.doubt:
        what = f"line {started.line}, under a condition in line {started.doubt} that is not decided"
        ledger.assume("command", short(MARK.sub("?", chosen.program)), what)
    if chosen.program and not known_program(chosen.program):
        name = short(MARK.sub("…", chosen.program))
        ledger.assume("program", name, "not known; taken for a decoder, as pretrain_gpt.py's")
    return chosen


def _without_shape(started: Started, command: Training, script: Script, where: str) -> str:
    """Why a training without --num-layers cannot be read."""
    name, words = short(MARK.sub("…", command.program)), command.words
    begin = f"{where}: line {started.line} starts {name} without --num-layers and --hidden-size"
    waiting = (word for word in words if UNKNOWN in word)
    unknown = min(waiting, key=lambda word: word.startswith("--"), default=None)  # the first that is no option
    if any(word.replace("_", "-").startswith("--use-checkpoint-args") for word in words):
        return f"{begin}: with --use-checkpoint-args they stand in a checkpoint; write them out"
    known = script.unknowns
    if unknown is not None and known.reasons(unknown):
        asked = known.remedy(known.roots(unknown))
        return f"{begin}; they may be in {known.reasons(unknown)}; {asked}"
    return f"{begin}; give the script with its arguments in it"


def _of_variables(script: Script, ledger: Ledger) -> Training:
    """A file of arguments without a command: every variable's words, in the order they were set."""
    texts = (value for values in script.variables.values() for value in values)
    every = [word for text in texts for word in text.split()]
    if any(word.replace("_", "-").startswith("--num-layers") for word in every):
        ledger.ignore("command", "", "no training command was found; all arguments that variables hold were read")
        return Training([], "", every)
    for started in script.commands:
        said = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in started.words if word.startswith("--")}
        for reason, names in table("megatron")["refused_arguments"].items():
            if name := next((name for name in names if name in said), None):
                raise ledger.error(f"line {started.line}: --{name} {reason}")
    raise ledger.error(
        "no command with --num-layers and --hidden-size was found; give the script that starts "
        "pretrain_gpt.py, with its arguments in it"
    )


def gpus_of(recipe: Recipe, found: int | None, source: str) -> int:
    """GPUs of the job: the caller's, or those found in the file if they hold the model, or as few as do."""
    plan, ledger, asked = recipe.plan, recipe.file.ledger, told_gpus(recipe.file)
    if asked is not None:
        return asked
    replica = plan["tp"] * plan["pp"] * plan.get("cp", 1)
    unit = plan["pp"] * math.lcm(replica // plan["pp"], plan.get("ep", 1) * plan.get("etp", 1))
    fewest, product = "one replica", "tp · pp · cp"
    if unit != replica:
        fewest, product = "as few as the experts need", "tp · pp · cp with ep"
    if found is None:
        why = f"{source}: {fewest}, {product}; --gpus N says how many"
    elif found % unit:
        why = f"{source} start {found:,} GPUs, but {product} = {unit:,}: {fewest} is taken; --gpus N says how many"
    else:
        return int(ledger.took("GPUs", found, source))
    return int(ledger.assume("GPUs", unit, why))


def started_by(script: Script, launcher: list[str], ledger: Ledger) -> tuple[int | None, str]:
    """(GPUs that the launcher starts, where it says so)."""
    options, known = Arguments(launcher, Ledger(ledger.where)), table("megatron")
    mpi = any(word.rpartition("/")[2] in ("mpirun", "mpiexec", "orterun") for word in launcher)
    torch = any("torch.distributed" in word or word.endswith("torchrun") for word in launcher)
    alone = any(word.rpartition("/")[2] == "deepspeed" for word in launcher) and "hostfile" not in options
    waits = next((word for word in launcher if UNKNOWN in word and not word.endswith(".py")), "")
    said = any(name in options for name in known["node_options"])
    nodes = count(options.text(*known["node_options"])) or (None if mpi else count(options.text("N")))
    each = count(options.text("nproc-per-node", "nproc-per-rank"))
    tasks = count(options.text("ntasks-per-node", "tasks-per-node", *(("N", "npernode", "ppn") if mpi else ())))
    gpus = count(options.text("gpus-per-node", "num-gpus", "gres", "gpus-per-task"))
    environment = dict(word.split("=", 1) for word in launcher if re.match(r"[A-Za-z_]+=", word))
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    each = each or count(next((environment[name] for name in known["gpus_per_node"] if name in environment), None))
    each = each or (count(visible) if "," in visible else None)
    each = each or (tasks if tasks and tasks > 1 else None) or gpus or tasks
    if each is not None and nodes is None:
        told = next((environment[name] for name in known["nodes"] if name in environment), None)
        nodes = (
            count(told)
            or count(script.variable(*known["nodes"]))
            or (1 if (torch or environment or alone) and not said else None)
        )
    if nodes is not None and each is None:
        each = count(script.variable(*known["gpus_per_node"]))
    if nodes is not None and each is not None:
        return nodes * each, f"{nodes} × {each} processes"
    whole = count(options.text("np", "n", "ntasks", "num-processes", "G", "gpus"))
    included = options.text("include")  # DeepSpeed's: worker-1:0,1@worker-2:0,1
    whole = whole or (sum(part.count(",") + 1 for part in included.split("@")) if included else None)
    if whole is None and nodes is None and each is None:
        whole = count(script.variable(*known["gpus"]))
    reasons = script.unknowns.reasons(waits)
    return whole, "the launcher's processes" if whole else (
        f"the launcher waits for {reasons}" if reasons else "the script does not say"
    )
