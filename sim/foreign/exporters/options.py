"""Options in the order and the groups in which a file has them, whatever its syntax."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.foreign.exporters.account import Account


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

    def has(self, name: str) -> bool:
        """Whether an option is set."""
        return any(option.name == name for options in self.groups.values() for option in options)
