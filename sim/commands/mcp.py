"""`flopcast mcp`: verbs as tools for language models, by the Model Context Protocol (the extra `mcp`)."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from sim.commands.options import TARGETS, finite
from sim.errors import FlopcastError, SpecError, nearest

INSTRUCTIONS = """flopcast predicts how fast a large language model trains on a GPU cluster, and why.
A scenario is YAML with the sections model, cluster, plan and training (and stack and profile if need be), or the name
of one that ships. A section may be a preset's name: `presets` lists them, `fields` says what can be set. `overrides`
are "plan.tp=4". Answers have the keys of `flopcast --json`; times are in seconds, and assumptions are listed."""
WITHOUT = {*TARGETS, "export_to", "verbose"}
"""Options that only a terminal has use for: tools write no files."""


def mcp() -> None:
    """Serve the answers as tools of the Model Context Protocol, over standard input and output."""
    server().run("stdio")


def server() -> Any:
    """The server with its tools, if the SDK is installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise SpecError("flopcast mcp needs the MCP SDK: pip install 'flopcast[mcp]'") from None
    from sim import __version__
    from sim.commands import estimate, plan, reference, search, train

    made = MCPServer("flopcast", instructions=INSTRUCTIONS, version=__version__)
    asked = (estimate.estimate, estimate.check, search.search, plan.plan, plan.finetune, train.train)
    for verb in (*asked, reference.fields, reference.list_presets):
        made.add_tool(_tool(verb, ToolError), name=verb.__name__.removeprefix("list_"))
    return made


def _tool(verb: Callable[..., Any], refusal: type[Exception]) -> Callable[..., dict[str, Any]]:
    """A verb as a function that returns its answer's data; scenarios are given as text instead of as files."""
    from sim.commands.fills import options_of

    parameters, arguments = options_of(verb)
    shown = [_plain(each) for each in parameters if each.name not in WITHOUT]
    others = {each.name: each.default for each in parameters}

    def tool(**given: Any) -> dict[str, Any]:
        try:
            with TemporaryDirectory() as folder:
                files = {
                    name: _file(given[name], Path(folder) / f"{name}.yaml")
                    for name in ("scenario", "log")
                    if given.get(name)
                }
                data = finite(verb(**arguments({**others, **given, **files})).data())
        except FlopcastError as error:
            raise refusal(str(error)) from None
        return dict(data) if isinstance(data, dict) else {"answer": data}

    helps = (f"{each.name}: {get_args(each.annotation)[1].help}" for each in parameters if each.name not in WITHOUT)
    tool.__doc__ = "\n".join([cleandoc(verb.__doc__ or "").partition("\n")[0], *helps])
    tool.__signature__ = Signature(shown, return_annotation=dict[str, Any])  # type: ignore[attr-defined]
    tool.__annotations__ = {each.name: each.annotation for each in shown} | {"return": dict[str, Any]}
    return tool


def _plain(option: Parameter) -> Parameter:
    """An option without what only a command line asks of it; files are given as text."""
    kind = get_args(option.annotation)[0]
    kind = {Path: str, Path | None: str | None}.get(kind, kind)
    return option.replace(annotation=kind)


def _file(text: str, file: Path) -> Path:
    """A scenario of YAML, or a log, as a file; or that of a scenario that ships."""
    from sim.files import shipped_scenarios, write_text

    if ":" in text:
        write_text(file, text)
        return file
    shipped = shipped_scenarios()
    names = {path.stem: path for path in shipped.values()} | shipped
    if text.strip() not in names:
        raise SpecError(f"no scenario {text.strip()!r} ships, and it is no YAML{nearest(text.strip(), names)}")
    return Path(names[text.strip()])
