"""The reference of the command line: every verb with its arguments, options and examples, as one page in Markdown.

python docs/verbs.py > verbs.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from sim.cli import app

INTRODUCTION = """\
# Verbs of the command line

Every question is a verb: `flopcast VERB`. `flopcast VERB --help` prints what stands here. A verb that answers takes
`--json`, whose keys are in [Reports, JSON and exit codes](answers.md). [The first page](index.md) says which verb
answers what.
"""


def verbs_page() -> str:
    """Return the page."""
    command = typer.main.get_command(app)
    with typer.Context(command) as context:
        names = command.list_commands(context)
        return "\n".join(
            [INTRODUCTION, *(text for name in names for text in _verb(command.get_command(context, name), name))]
        )


def _verb(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        yield f"## {path}\n\n{_words(command.help)}\n"
        with typer.Context(command) as context:
            for name in command.list_commands(context):
                yield from _verb(command.get_command(context, name), f"{path} {name}")
        return
    yield f"{'###' if ' ' in path else '##'} {path}\n\n{_words(command.help)}\n"
    parameters = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    yield f"```text\n{' '.join(['flopcast', path, *map(_metavar, arguments), '[OPTIONS]'])}\n```\n"
    rows = [_row(each) for each in (*arguments, *(other for other in parameters if other not in arguments))]
    yield "\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows, ""])
    examples = [line for line in (command.epilog or "").split("\n\n")[1:] if line.startswith("flopcast ")]
    yield "\n".join(["```bash", *examples, "```", ""])


def _row(parameter: Any) -> str:
    names = (
        (_metavar(parameter),)
        if parameter.param_type_name == "argument"
        else (*parameter.opts, *parameter.secondary_opts)
    )
    named = ", ".join(f"`{name.strip('[]')}`" for name in names)
    return f"| {named} | {_words(parameter.help, cell=True)} | {_default(parameter)} |"


def _metavar(argument: Any) -> str:
    """The argument as a usage line has it: in brackets where it may be left out."""
    name = f"{(argument.metavar or argument.name).upper()}{'...' if argument.nargs == -1 else ''}"
    return name if argument.required else f"[{name}]"


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if default is None or callable(default) or default in ("", (), [], False) or "Sentinel" in type(default).__name__:
        return ""
    return "`" + (" ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)) + "`"


def _words(text: str | None, *, cell: bool = False) -> str:
    """Help as a paragraph, or as a cell of a table; words in angle brackets would be taken for HTML."""
    plain = re.sub(r"\[/?(?:bold|dim|cyan|green|red)\]", "", text or "").replace("\b", "").replace("<", "&lt;").strip()
    return " ".join(plain.split()).replace("|", "\\|") if cell else plain


if __name__ == "__main__":
    print(verbs_page())
