"""The arguments that Megatron-LM prints into its log (megatron/training/arguments.py, `_print_args`): all that there
are, with the values that they ended up with, and so without what a script leaves to defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sim.foreign.importers.keys import table

_LINE = re.compile(r"^ *(\w+) \.{2,} ?(.*?) *$", re.MULTILINE)


def is_printed(text: str) -> bool:
    """Whether a text is such a list."""
    return {"num_layers", "hidden_size"} <= {found[1] for found in _LINE.finditer(text)}


def printed_words(text: str) -> tuple[list[str], list[str]]:
    """(words of a launcher that starts as many processes, the arguments as words of a command line)."""
    values = {name: value for name, value in _LINE.findall(text) if value not in ("", "None", "[]")}
    return ["--np", values.get("world_size", "1")], [word for name in values for word in _words(name, values)]


def _words(name: str, values: dict[str, str]) -> Iterator[str]:
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
