"""Commands that a script starts: the shell's own, its functions, other scripts, and texts for another shell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.foreign.importers.keys import UNKNOWN
from sim.foreign.importers.ledger import short
from sim.foreign.importers.shell.expansion import names_set
from sim.foreign.importers.shell.script import Started
from sim.foreign.importers.shell.slurm import directives_of, environment_of
from sim.foreign.importers.shell.syntax import blocks
from sim.foreign.importers.shell.words import Words, lex

if TYPE_CHECKING:
    from sim.foreign.importers.shell.reader import Reader

DEEPEST = 12
"""Scripts, functions and texts for another shell inside each other."""
_SHELLS = re.compile(r"(?:.*/)?(?:bash|sh|zsh|ksh)")
_SCRIPT = re.compile(r".+\.(?:sh|slurm|sbatch|bash|job)")
_SUBMITS = ("sbatch", "qsub")


def start(reader: Reader, fields: list[str], command: Words, environment: Sequence[str]) -> None:
    """A command that is started: one of the shell's own, a function, another script, or a program."""
    name, values = fields[0], reader.values
    if name == "set":
        if "--" in fields[:2]:
            values.positional = fields[fields.index("--") + 1 :]
    elif name == "shift":
        drop = int(fields[1]) if fields[1:] and fields[1].isdigit() else 1
        values.positional = (values.positional or [])[drop:]
    elif name == "unset":
        for each in fields[1:]:
            values.variables.pop(each, None)
    elif name == "let":
        for word in fields[1:]:
            reader.aside([f"(({word}))"])
    elif name in ("cd", "pushd"):
        values.moved = values.moved or fields[1:] != ["."]
    elif name == "exit":
        reader.ended = not reader.inside
    elif name == "eval":
        _nest(reader, " ".join(fields[1:]), command)
    elif name in ("source", "."):
        _source(reader, fields, command)
    elif name in reader.functions and reader.depth < DEEPEST:
        outer, values.positional = values.positional, fields[1:]
        reader.depth += 1
        reader.nested(lambda: reader.run(reader.functions[name]))
        reader.depth -= 1
        values.positional = outer
    elif not _other_script(reader, fields, command, environment):
        reader.script.commands.append(Started([*reader.prefix, *fields], command.line, reader.doubt, reader.directives))


def _other_script(reader: Reader, fields: list[str], command: Words, environment: Sequence[str]) -> bool:
    """Follow a text or a file that another shell reads; whether it was that."""
    shell = next((at for at, word in enumerate(fields) if _SHELLS.fullmatch(word)), -1)
    flag = next((at for at in range(shell + 1, len(fields)) if re.fullmatch(r"-[a-z]*c", fields[at])), -1)
    if shell >= 0 and 0 < flag < len(fields) - 1:
        inner = _child(reader, fields[flag + 2 :], fields[:shell], environment)
        _nest(inner, fields[flag + 1], command)
        return True
    submits = fields[0] in _SUBMITS
    at = next((at for at, word in enumerate(fields) if _SCRIPT.fullmatch(word) and not word.startswith("-")), -1)
    if at < 0 or not (submits or at == 0 or at == shell + 1) or UNKNOWN + "--" in fields[at]:
        return False
    text = reader.script.files.text(fields[at]) if reader.depth < DEEPEST else None
    if text is None:
        why = "starts another script, which is not beside this one; import that"
        reader.ledger.ignore(f"line {command.line}", short(" ".join(fields[: at + 1])), why)
        return True
    inner = _child(reader, fields[at + 1 :], [] if submits else fields[: max(shell, 0)], environment)
    inner.directives += (*directives_of(text), *(fields[1:at] if submits else ()))
    for each, value in environment_of(inner.directives).items():
        inner.values.variables.setdefault(each, [value])
    reader.ledger.took("script", fields[at], f"started in line {command.line}; read too")
    values = inner.values
    values.own = values.own | names_set(text)
    inner.run(blocks(lex(text, reader.ledger.where), reader.ledger.where))
    return True


def _child(reader: Reader, positional: Sequence[str], prefix: Sequence[str], environment: Sequence[str]) -> Reader:
    """A reader of what another shell is given."""
    values = reader.values.child(positional)
    inner = replace(
        reader, values=values, depth=reader.depth + 1, prefix=(*reader.prefix, *prefix), ended=False, inside=0
    )
    inner.assign(environment)
    return inner


def _nest(reader: Reader, text: str, command: Words) -> None:
    """Read a text as commands of this shell."""
    if reader.depth >= DEEPEST:
        return
    reader.depth += 1
    nodes = blocks(lex(text, reader.ledger.where), reader.ledger.where)
    reader.run([replace(node, line=command.line) if isinstance(node, Words) else node for node in nodes])
    reader.depth -= 1


def _source(reader: Reader, fields: list[str], command: Words) -> None:
    """Read another file in place, if it lies beside the script."""
    name = fields[1] if fields[1:] else ""
    text = reader.script.files.text(name) if reader.depth < DEEPEST else None
    if text is None:
        why = "another file, which is not beside this one and was not read"
        reader.ledger.ignore(f"line {command.line}", short(" ".join(command.words[:4])), why)
        return
    reader.ledger.took("script", name, f"sourced in line {command.line}; read too")
    reader.values.own |= names_set(text)
    outer = reader.values.positional
    reader.values.positional = fields[2:] or outer
    reader.depth += 1
    reader.run(blocks(lex(text, reader.ledger.where), reader.ledger.where))
    reader.depth -= 1
    reader.values.positional = outer
