"""Megatron-LM's launch scripts: model, plan and training from the arguments of `pretrain_gpt.py` and its kin.

The same arguments also stand in what a run has printed (arguments.py, `_print_args`), in the `model_config.yaml` of
Megatron-LM's functional tests, in files for `--yaml-cfg`, and in the YAML of FlagScale's trainings, whose keys become
arguments by their last names.

Argument names and defaults are those of NVIDIA/Megatron-LM (megatron/training/arguments.py), with the older names of
2021, those of Megatron-DeepSpeed and of Pai-Megatron-Patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign, Machine
from sim.foreign.importers.keys import UNKNOWN, Arguments, flat, table
from sim.foreign.importers.ledger import Ledger, short
from sim.foreign.importers.megatron.launch import Training, gpus_of, started_by, training_command
from sim.foreign.importers.megatron.model import read_model
from sim.foreign.importers.megatron.plan import STEPS, read_plan, read_stack, read_training, take_config, take_replicas
from sim.foreign.importers.recipes.rows import Recipe
from sim.foreign.importers.shell.expansion import Script
from sim.foreign.importers.shell.reader import read_script
from sim.foreign.importers.shell.tree import MARK
from sim.foreign.importers.sources import DEEPEST
from sim.specs.yaml12 import parse_yaml

_LINE = re.compile(r"^ *(\w+) \.{2,} ?(.*?) *$", re.MULTILINE)
_PRINTED = {"True": True, "False": False, "None": None, "[]": None, "": None}
_MARKS = re.compile(r"^(?:MODEL_ARGS|(language_model|model_parallel|system)):", re.MULTILINE)
"""Sections of a functional test; of a file for --yaml-cfg, and of FlagScale's trainings."""
_VARIABLE = re.compile(r"\$\{?[A-Za-z_][\w.:?]*\}?")


def is_printed(text: str) -> bool:
    """Whether a text is such a list."""
    return {"num_layers", "hidden_size"} <= {found[1] for found in _LINE.finditer(text)}


def printed_words(text: str) -> tuple[list[str], list[str]]:
    """(words of a launcher that starts as many processes, the arguments as words of a command line). What belongs to
    other models, or to experts where there are none, is the default of what the model has not."""
    said = {name: _PRINTED.get(value, value) for name, value in _LINE.findall(text)}
    others = {option for names in table("megatron")["refused_arguments"].values() for option in names}
    dense = said.get("num_experts") is None
    own = {
        name: value
        for name, value in said.items()
        if _option(name) not in others and not (dense and name.startswith(("moe_", "expert_")))
    }
    return ["--np", str(said.get("world_size") or 1)], list(_words(own))


def is_yaml(text: str) -> bool:
    """Whether a text is arguments in YAML."""
    found = _MARKS.search(text)
    return found is not None and (found[1] is None or "num_layers:" in text)


def yaml_words(text: str, where: str) -> list[str]:
    """The arguments as words of a command line. Raises SpecError: not YAML, or a test of something else than a
    decoder's training."""
    data = parse_yaml(text, where)
    if not isinstance(data, Mapping):
        raise SpecError(f"{where} is no file of Megatron-LM's arguments: it holds no mapping of keys")
    if "MODEL_ARGS" in data:
        _refuse_other_tests(data, where)
        if not isinstance(data["MODEL_ARGS"], Mapping):
            raise SpecError(f"{where}: MODEL_ARGS must be a mapping of arguments")
        return list(_words({str(name).lstrip("-"): value for name, value in data["MODEL_ARGS"].items()}))
    said = {name.rpartition(".")[2]: value for name, value in flat(data, DEEPEST if "system" in data else 1)}
    if "system" not in data:  # Megatron-Core's own records, which say these in other words
        said["swiglu"] = said.get("activation_func") == "swiglu"
        said["group_query_attention"] = said.get("num_query_groups") is not None
    return list(_words(said))


def _option(name: str) -> str:
    """An argument's name on the command line."""
    return str(table("megatron")["yaml_names"].get(name, name.replace("_", "-")))


def _words(said: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as words: true is a switch; false and null are none, but for what a switch turns off."""
    off = table("megatron")["yaml_switches_off"]
    for name, value in said.items():
        if name in off:
            yield from [f"--{off[name]}"] * (value is False)
        elif value is not None and value is not False:
            yield f"--{_option(name)}"
            for each in value if isinstance(value, list) else [] if value is True else [value]:
                yield _VARIABLE.sub(UNKNOWN, str(each))


def _refuse_other_tests(data: Mapping[str, Any], where: str) -> None:
    """Refuse tests of models that the arguments alone do not tell from a GPT: by the folder, and the kind of test."""
    parts = where.replace("\\", "/").lower().split("/")[:-1]
    for reason, words in table("megatron")["refused_tests"].items():
        found = next((part for part in parts for word in words if part == word or part.startswith(f"{word}_")), None)
        if found is not None:
            raise SpecError(f"{where}: the test in {found}/ {reason}")
    mode = str(data.get("MODE", "pretraining"))
    if mode not in ("pretraining", "null", "None"):
        raise SpecError(f"{where}: MODE: {short(mode)} is no training of a decoder; flopcast prices training steps")


_SHELL = re.compile(
    r"\A#!.*\b(?:ba|z|k)?sh\b|^[ \t]*(?:#SBATCH\b|(?:source|srun|sbatch|torchrun|deepspeed|mpirun|export|bash)[ \t])",
    re.MULTILINE,
)


def is_megatron(text: Any) -> bool:
    """Whether a text looks like a launch script or printed arguments; or data are arguments in YAML."""
    if not isinstance(text, str):
        of_sections = ({"language_model", "model_parallel"}, {"system", "model", "data"})  # --yaml-cfg, FlagScale
        return isinstance(text, Mapping) and ("MODEL_ARGS" in text or any(each <= {*text} for each in of_sections))
    words = ("--num-layers", "--num_layers", "pretrain_gpt")
    return any(word in text for word in words) or bool(_SHELL.search(text)) or is_yaml(text) or is_printed(text)


def read_megatron(file: Foreign) -> dict[str, Any]:
    """A scenario's sections from a script. Raises SpecError: no training command, a value that breaks a rule, or one
    that only a run would know and that decides."""
    ledger = file.ledger
    script, command = _command(file)
    arguments = Arguments(command.words, ledger)
    _ask(arguments, script, command.depends)
    named = (command.program.rpartition("/")[2], *(arguments.raw("spec") or ()))
    hybrid = any(kind in name for kind in ("mamba", "hybrid") for name in named)
    _refuse(arguments)
    config = take_config(arguments, script.files)
    old = any(name in arguments for name in table("megatron")["old"])
    recipe = Recipe(arguments, file, STEPS)
    read_plan(recipe, config)
    read_model(recipe, hybrid)
    read_training(recipe)
    recipe.read("schedule")
    machine = Machine.of(file, _gpu_options(command.launcher))
    gpus = gpus_of(recipe, *started_by(script, command.launcher, ledger))
    take_replicas(recipe, gpus)
    read_stack(recipe, old=old, whole=True)
    if (switches := script.variable("NCCL_NVLS_ENABLE")) is not None:
        recipe.stack.took("nvls", switches != "0", f"NCCL_NVLS_ENABLE={switches}")
    for word in arguments.doubtful:
        if reasons := script.unknowns.reasons(word):
            ledger.ignore("arguments", "?", f"what depends on {reasons} may add some", matters=True)
    if is_printed(file.text):
        ledger.ignore(
            "other arguments", "as printed", "not looked at: a log prints every argument, and most are defaults"
        )
    else:
        arguments.leave()
    return {**recipe.sections, "model": file.model or recipe.model, "cluster": machine.section(gpus)}


def _gpu_options(launcher: Sequence[str]) -> list[str]:
    """Options of Slurm that may name a kind of GPU: what nodes are constrained to, and what is asked of them."""
    names = ("--constraint", "-C", "--gres", "--gpus", "--gpus-per-node", "-G")
    words = [f"{option} {value}" for option, value in pairwise(launcher) if option in names]
    return [*words, *(word for word in launcher if word.partition("=")[0] in names and "=" in word)]


def _command(file: Foreign) -> tuple[Script, Training]:
    """(the script, the command that trains) of a script, of printed arguments, or of arguments in YAML."""
    ledger = file.ledger
    if is_printed(file.text):
        launcher, words = printed_words(file.text)
        return read_script("", ledger, file.given, file.folder), Training(launcher, "", words)
    if is_yaml(file.text):
        script = read_script("", ledger, file.given, file.folder)
        # A functional test's folder says nodes and GPUs of each: 1N8G.
        job = re.search(r"_(\d{1,4})N(\d{1,3})G(?=[_/])", ledger.where)
        launcher = ["--nnodes", job[1], "--nproc-per-node", job[2]] if job else []
        return script, Training(launcher, "", yaml_words(file.text, ledger.where))
    script = read_script(file.text, ledger, file.given, file.folder)
    command = training_command(script, ledger)
    named = Arguments(command.words, Ledger("")).text("yaml-cfg")
    if named is not None:
        raise ledger.error(f"--yaml-cfg {MARK.sub('?', named)} counts instead of all other arguments; import that file")
    return script, command


def _ask(arguments: Arguments, script: Script, depends: str) -> None:
    """Raise SpecError where an argument that decides is known only to a run, and say what it waits for."""
    unknowns, known = script.unknowns, table("megatron")
    waiting = [name for name in known["deciding"] if UNKNOWN in (arguments.first(name) or "")]
    texts = [arguments.first(name) for name in waiting]
    missing = [known["fields"][field][0] for field in known["fields"] if field in known["required"]]
    missing = [name for name in missing if name not in arguments]
    patterns = ("hybrid-layer-pattern", "hybrid-override-pattern")
    if missing and arguments.doubtful and not any(name in arguments for name in patterns):
        waiting += missing
        texts += arguments.doubtful
    if unknowns.numbers(depends):
        waiting, texts = ["the program", *waiting], [depends, *texts]
    roots = list(dict.fromkeys(root for text in texts for root in unknowns.roots(text)))
    if not waiting or (not roots and not any(UNKNOWN in text for text in texts)):
        return
    names = ", ".join(name if " " in name else f"--{name}" for name in waiting[:6]) + " …" * (len(waiting) > 6)
    what = ", ".join(unknowns.words(root) for root in roots[:12]) + " …" * (len(roots) > 12)
    are, they = ("is", "it waits") if len(waiting) == 1 else ("are", "they wait")
    why = f": {they} for {what}" if what else ""
    raise arguments.ledger.error(
        f"{names} {are} missing or only known when the script runs{why}; {unknowns.remedy(roots)}"
    )


def _refuse(arguments: Arguments) -> None:
    """Refuse arguments of models that flopcast does not price. Raises SpecError: one of them is there."""
    spec, known = arguments.first("spec") or "", table("megatron")
    if spec and not any(part in spec for part in known["specs"]) and UNKNOWN not in spec:
        parts = ", ".join(known["specs"])
        raise arguments.ledger.error(f"--spec {short(spec)!r} builds layers by code that is not read; known: {parts}")
    if arguments.has("spec"):
        arguments.ledger.took("--spec", short(MARK.sub("?", spec)), "layers as the other arguments say")
    for reason, names in known["refused_arguments"].items():
        for name in names:
            if name in arguments and arguments.raw(name) not in (["0"], ["None"]):
                raise arguments.ledger.error(f"--{name} {reason}")
