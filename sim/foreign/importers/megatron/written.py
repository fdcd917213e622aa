"""Megatron-LM's arguments elsewhere than on a command line: as it prints them into its log (megatron/training/
arguments.py, `_print_args`), in the `model_config.yaml` of its functional tests, in files for `--yaml-cfg`, and in the
YAML of FlagScale's trainings, whose keys become arguments by their last names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.keys import UNKNOWN, flat, table
from sim.foreign.importers.ledger import short
from sim.foreign.importers.sources import DEEPEST
from sim.specs.yaml12 import parse_yaml

_LINE = re.compile(r"^ *(\w+) \.{2,} ?(.*?) *$", re.MULTILINE)


def is_printed(text: str) -> bool:
    """Whether a text is such a list."""
    return {"num_layers", "hidden_size"} <= {found[1] for found in _LINE.finditer(text)}


def printed_words(text: str) -> tuple[list[str], list[str]]:
    """(words of a launcher that starts as many processes, the arguments as words of a command line)."""
    values = {name: value for name, value in _LINE.findall(text) if value not in ("", "None", "[]")}
    return ["--np", values.get("world_size", "1")], [word for name in values for word in _printed(name, values)]


def _printed(name: str, values: dict[str, str]) -> Iterator[str]:
    """An argument's words; none where it says no, or is the default of something that the model has not."""
    known, value = table("megatron"), values[name]
    option = known["yaml_names"].get(name, name.replace("_", "-"))
    of_others = any(option in names for names in known["refused_arguments"].values())
    of_experts = name.startswith(("moe_", "expert_")) and "num_experts" not in values
    if of_others or of_experts:
        return
    if value == "False":
        if name in known["yaml_switches_off"]:
            yield f"--{known['yaml_switches_off'][name]}"
        return
    yield f"--{option}"
    if value != "True":
        yield value


_TEST = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
_SECTIONS = re.compile(r"^(?:language_model|model_parallel):", re.MULTILINE)
_FLAGSCALE = re.compile(r"^system:", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?[A-Za-z_][\w.:?]*\}?")


def is_yaml(text: str) -> bool:
    """Whether a text is arguments in YAML."""
    sections = _SECTIONS.search(text) or _FLAGSCALE.search(text)
    return bool(_TEST.search(text)) or (bool(sections) and "num_layers:" in text)


def yaml_words(text: str, where: str) -> list[str]:
    """The arguments as words of a command line.

    Raises
    ------
    SpecError
        Not YAML, or a test of something else than a decoder's training.
    """
    data = parse_yaml(text, where)
    if not isinstance(data, Mapping):
        raise SpecError(f"{where} is no file of Megatron-LM's arguments: it holds no mapping of keys")
    if "MODEL_ARGS" in data:
        _refuse_other_tests(data, where)
        arguments = data["MODEL_ARGS"]
        if not isinstance(arguments, Mapping):
            raise SpecError(f"{where}: MODEL_ARGS must be a mapping of arguments")
        return [word for name, value in arguments.items() for word in _words(str(name), value)]
    if "system" in data:
        leaves = ((name.rpartition(".")[2].replace("_", "-"), value) for name, value in flat(data, DEEPEST))
        return [word for name, value in leaves for word in _words(f"--{name}", value)]
    return [word for name, value in _renamed(data) for word in _words(f"--{name}", value)]


def _words(name: str, value: Any) -> Iterator[str]:
    """An argument's words: true is a switch, false and null are no argument."""
    if value is None or value is False:
        return
    yield name
    if value is True:
        return
    for each in value if isinstance(value, list) else [value]:
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


def _renamed(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(argument, value) of a file for --yaml-cfg, whose sections have the names of Megatron-Core's own records."""
    known = table("megatron")
    flat: dict[str, Any] = {}
    for name, value in data.items():
        inner = value if name in ("language_model", "model_parallel") and isinstance(value, Mapping) else {name: value}
        flat |= {str(key): each for key, each in inner.items()}
    if flat.get("activation_func") == "swiglu" or flat.get("gated_linear_unit") is True:
        flat["swiglu"] = True
    for name, switch in known["yaml_switches_off"].items():
        if flat.pop(name, None) is False:
            yield switch, True
    for name, value in flat.items():
        yield known["yaml_names"].get(name, name.replace("_", "-")), value
