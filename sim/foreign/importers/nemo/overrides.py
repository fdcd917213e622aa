"""Overrides on a command line, as Megatron-Bridge's programs take them: `model.tensor_model_parallel_size=8`.

They are its YAML's keys; laid over a recipe that the command names, they are lines of a recipe in Python.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.errors import SpecError
from sim.foreign.importers.defaults import Foreign
from sim.foreign.importers.keys import UNKNOWN, Arguments
from sim.foreign.importers.ledger import Ledger, Section
from sim.foreign.importers.megatron.launch import started_by
from sim.foreign.importers.nemo.recipes import read_megatron_bridge
from sim.foreign.importers.nemo.yaml_settings import read_nemo_yaml
from sim.foreign.importers.shell.reading import read_script
from sim.specs.yaml12 import parse_yaml

KIND = "bridge_yaml"
_SECTIONS = (
    "model|train|ddp|optimizer|dataset|mixed_precision|comm_overlap|dist|checkpoint|rng|scheduler|logger|tokenizer|peft"
)
_WORD = re.compile(rf"\+{{0,2}}((?:{_SECTIONS})(?:\.[A-Za-z_]\w*)*)=(.*)", re.DOTALL)
_TELLTALE = re.compile(r"(?:^|[\s'\"])\+{0,2}(?:model|train|ddp|optimizer|dist)\.[a-z_]\w*=[\w.\[\"'$]", re.MULTILINE)
_FEWEST = 3
"""Overrides that tell a script of such."""


def is_overrides(text: Any) -> bool:
    """Whether a script starts a program with dotted overrides."""
    return isinstance(text, str) and len(_TELLTALE.findall(text)) >= _FEWEST and "--num-layers" not in text


def read_overrides(file: Foreign) -> dict[str, Any]:
    """A scenario's sections.

    Raises
    ------
    SpecError
        No command has overrides, or what they say cannot be read.
    """
    script = read_script(file.text, file.ledger, file.given, file.folder)
    command = max(script.commands, key=lambda each: len(_overrides(each.words)), default=None)
    found = _overrides(command.words) if command is not None else []
    if command is None or not found:
        raise SpecError(f"{file.ledger.where}: no command with overrides such as model.tensor_model_parallel_size=8")
    said: dict[str, Any] = {}
    for name, text in found:  # of the same one the last counts
        if UNKNOWN in text:
            file.ledger.ignore(
                name, "?", "its value only the running script knows; flopcast runs nothing", matters=True
            )
        else:
            said[name] = parse_yaml(text or '""', f"{file.ledger.where}: {name}")
    first = next(at for at, word in enumerate(command.words) if _WORD.fullmatch(word))
    launcher = [*command.directives, *command.words[:first]]
    options = Arguments([word for word in command.words if not _WORD.fullmatch(word)], Ledger(file.ledger.where))
    recipe = options.text("recipe", "recipe-name")
    length = options.whole("seq-length")
    if length is not None:  # an argument of the recipe (scripts/training/run_recipe.py)
        said = {"dataset.seq_length": length, "model.seq_length": length, **said}
    started, source = started_by(script, launcher, file.ledger)
    if recipe is not None and re.fullmatch(r"[A-Za-z_]\w*", recipe):
        lines = [f"cfg.{name} = {value!r}" for name, value in said.items()]
        text = "\n".join([f"from megatron.bridge.recipes import {recipe}", f"cfg = {recipe}()", *lines, ""])
        given = file.given
        if given.gpus is None and started is not None:
            file.ledger.took("GPUs", started, source)
            given = replace(given, gpus=started)
        return read_megatron_bridge(replace(file, text=text, data=None, given=given))
    data: dict[str, Any] = {}
    for name, value in said.items():
        _put(data, name.split("."), value, file.ledger.where)
    if started is not None:
        data["launcher"] = {"nodes": 1, "gpus_per_node": started}
    sections = read_nemo_yaml(KIND, replace(file, data=data))
    _off(sections["stack"], data)
    return sections


def _overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    found = (_WORD.fullmatch(word) for word in words)
    return [(each[1], each[2]) for each in found if each is not None]


def _put(data: dict[str, Any], path: list[str], value: Any, where: str) -> None:
    place = data
    for name in path[:-1]:
        below = place.setdefault(name, {})
        if not isinstance(below, dict):
            raise SpecError(f"{where}: {name} is {below!r} in one override and has keys in another; leave one out")
        place = below
    place[path[-1]] = value


def _off(stack: Section, data: dict[str, Any]) -> None:
    """What overrides turn off on purpose, as those of a recipe would be on."""
    for section, key, field, value in (
        ("model", "cuda_graph_impl", "cuda_graphs", "none"),
        ("model", "overlap_moe_expert_parallel_comm", "overlap_experts", False),
        ("comm_overlap", "tp_comm_overlap", "async_tensor_parallel", False),
    ):
        said = data.get(section, {}).get(key)
        if said in ("none", False) and field not in stack:
            stack.took(field, value, f"{section}.{key}")
