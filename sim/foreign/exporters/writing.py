"""How files are written: options in their groups whatever their syntax, the command that starts a job, and TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.foreign.exporters.account import Account
from sim.specs.scenario import Scenario


class Option(NamedTuple):
    """An option by the name that Megatron-LM's command line has for it.

    values : none for a switch.
    fields : of the scenario, those that it says.
    """

    name: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]


@dataclass
class Options:
    """Options under headings.

    account : of the export, for what has no option.
    """

    account: Account
    groups: dict[str, list[Option]] = field(default_factory=dict)

    def group(self, title: str) -> None:
        """Begin the group of that heading, or go on with it."""
        self._group = self.groups.setdefault(title, [])

    def say(self, name: str, *values: Any, field: str = "", fields: tuple[str, ...] = ()) -> None:
        """Set an option; a switch has no values."""
        said = (field,) * bool(field) + fields
        self._group.append(Option(name, values, said))
        self.account.cover(*said)

    def tell(self, path: str, name: str) -> None:
        """Set an option to what a field of the scenario holds: a switch where that is true, nothing where it is off."""
        value = self.account.value(path)
        if value:
            self.say(name, *([] if value is True else [value]), field=path)

    def has(self, name: str) -> bool:
        """Whether an option is set."""
        return any(option.name == name for options in self.groups.values() for option in options)


def processes(scenario: Scenario) -> tuple[int, int]:
    """(nodes, processes on each) of the plan's GPUs."""
    gpus, each = scenario.plan.num_gpus, scenario.cluster.node.gpus_per_node
    while gpus % each:
        each -= 1
    return gpus // each, each


def launcher_lines(scenario: Scenario, program: str, behind: list[str]) -> list[str]:
    """torchrun's command; what stands behind the program follows, one a line."""
    nodes, each = processes(scenario)
    words = ["torchrun", f"--nnodes {nodes}", f"--nproc-per-node {each}"]
    if nodes > 1:
        words += ['--node-rank "$NODE_RANK"', '--master-addr "$MASTER_ADDR"', '--master-port "$MASTER_PORT"']
    first = " ".join(words)
    return [f"{first} \\", f"    {program} \\", *(f"    {word} \\" for word in behind[:-1]), f"    {behind[-1]}"]


def toml_text(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The sections that have keys; long lists of lists have a line an entry."""
    parts = [
        "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())])
        for name, keys in sections.items()
        if keys
    ]
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    """JSON's spelling, which for text, numbers, booleans and lists of them is TOML's."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"    {_value(each)},\n" for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)
