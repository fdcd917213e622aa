"""A launch script read, not run: its variables, what its conditions come to, and the commands it would start."""

from __future__ import annotations

from pathlib import Path

from sim.foreign.importers.defaults import Given
from sim.foreign.importers.ledger import Ledger
from sim.foreign.importers.shell.expansion import Values
from sim.foreign.importers.shell.reader import Reader
from sim.foreign.importers.shell.script import Files, Script, directives_of, environment_of
from sim.foreign.importers.shell.tree import nodes_of, parse


def read_script(text: str, ledger: Ledger, given: Given | None = None, folder: Path | None = None) -> Script:
    """Read a script with the arguments and the environment that the caller gives. Conditions are decided where these
    and the script itself say enough; else what depends on them is marked as not known, and noted. Raises SpecError: not
    readable as a shell script, or larger than any."""
    given = given or Given()
    directives = directives_of(text)
    environment = {**environment_of(directives), **dict(given.env or {})}
    values = Values(
        ledger.where,
        {name: [str(value)] for name, value in environment.items()},
        [str(each) for each in given.args] if given.args else None,
        {name: str(value) for name, value in dict(given.env or {}).items()},
    )
    script = Script(values, Files(folder))
    reader = Reader(script, values, ledger, tuple(directives))
    reader.read(text)
    for name, line in values.taken_empty.items():
        if name not in script.values.variables:
            ledger.assume(f"${name}", "", f"line {line}: nothing sets it, so it is empty; --env {name}=VALUE")
    return script


def words_of(text: str, where: str) -> list[str]:
    """The words of a text that a script hands to another shell, as in `pdsh "…"`; nothing in it is expanded again."""
    values, root = Values(where), parse(text, where)
    if root.has_error:
        return text.split()
    return [word for command in nodes_of(root, "command") for word in values.words(command)]
