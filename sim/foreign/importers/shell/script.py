"""What a script says: its variables, its files, and the commands it would start."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.shell.expansion import Values
from sim.foreign.importers.shell.files import Files


@dataclass(frozen=True, slots=True)
class Started:
    """A command that the script would start.

    words : expanded; parts that only a run would know are marked.
    line : where it stands in the file that holds it.
    doubt : line of a condition that it stands under and that is not decided, or 0.
    directives : of the scheduler, for the script that holds it.
    """

    words: list[str]
    line: int
    doubt: int = 0
    directives: tuple[str, ...] = ()


@dataclass
class Script:
    """What a script says.

    commands : that it would start, in order.
    read : commands read so far, of all scripts together.
    """

    values: Values
    files: Files
    commands: list[Started] = field(default_factory=list)
    read: int = 0

    def variable(self, *names: str) -> str | None:
        """The value of the first of these variables that the script sets to something known."""
        values = ((self.values.variables.get(name) or [""])[0] for name in names)
        return next((value for value in values if value and UNKNOWN not in value), None)
