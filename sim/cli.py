"""The command line: one verb a question.

Exit codes: 0 answered, 1 the answer cannot be written, 2 bad input, 3 the plan does not fit, 130 interrupted, 141 the
reader has gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from sim.commands.exit_codes import run_to_the_end
from sim.commands.options import examples
from sim.errors import SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Verb(NamedTuple):
    """A verb of `verbs.txt`: what it answers in a line, what one types after `flopcast`, and where its code is.

    home : module below `sim.commands` and function, whose code is loaded when it is asked for; a colon alone of a verb
        that has verbs of its own, whose names begin with its name.
    """

    home: str
    summary: str
    shown: list[str]


def _read(text: str) -> dict[str, Verb]:
    verbs: dict[str, Verb] = {}
    for line in text.splitlines():
        if line.startswith(" "):
            verbs[next(reversed(verbs))].shown.append(line.strip())
        else:
            name, home, summary = line.split(" | ")
            verbs[name] = Verb(home, summary, [])
    return verbs


VERBS = _read(Path(__file__).with_name("verbs.txt").read_text(encoding="utf-8"))
"""The verbs in the order of the help."""
TOP = [name for name in VERBS if " " not in name]
"""Names of the verbs that stand behind `flopcast`."""


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Verbs that other installed packages bring, such as `calibrate`."""
    from importlib.metadata import entry_points

    return {point.name: point for point in sorted(entry_points(group="flopcast.commands"), key=lambda each: each.name)}


class Verbs(TyperGroup):
    """The verbs as click commands, each made when it is asked for: an estimate need not load what a search does."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all verbs."""
        return [*TOP, *_plugins()]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the verbs by their summaries: none of them is loaded for that."""
        self.commands = {name: TyperCommand(name, help=verb.summary) for name, verb in VERBS.items() if name in TOP}
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb of that name, or None."""
        if cmd_name not in self.commands:
            if cmd_name in TOP or cmd_name in _plugins():
                self.commands[cmd_name] = self._load(cmd_name)
            else:  # typer names the nearest of the verbs that it has
                for name in self.list_commands(ctx):
                    self.get_command(ctx, name)
        return self.commands.get(cmd_name)

    def _load(self, name: str) -> Any:
        alone = typer.Typer(rich_markup_mode=self.rich_markup_mode, add_completion=False)
        alone.callback()(_options)  # a lone verb would become the whole command
        if name in VERBS:
            # Matrices of sim's verbs are small: starting BLAS's threads costs more than they could give.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            below, into = [each for each in VERBS if each.startswith(f"{name} ")], alone
            if below:
                into = typer.Typer(help=VERBS[name].summary, no_args_is_help=True)
                alone.add_typer(into, name=name)
            for each in below or [name]:
                _add(into, each)
        elif isinstance(code := _plugins()[name].load(), typer.Typer):
            alone.add_typer(code, name=name)
        else:
            alone.command(name, epilog=examples(*code.examples))(code)
        command = typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]
        _refuse_repeats(command)
        return command


def _add(into: typer.Typer, name: str) -> None:
    """Load a verb, and make a command of it."""
    from sim.commands.fills import with_records

    verb, word = VERBS[name], name.rpartition(" ")[2]
    home, _, attribute = verb.home.partition(":")
    module = import_module(f"sim.commands.{home}")
    code = with_records(getattr(module, attribute))
    more = "\n\n".join((code.__doc__ or "").split("\n\n")[1:])
    kind = getattr(module, f"{word.upper()}_COMMAND", None)
    into.command(word, cls=kind, help=f"{verb.summary}\n\n{more}", epilog=examples(*verb.shown))(code)


def _refuse_repeats(command: Any) -> None:
    """Make a command, and those below it, refuse an option that is given twice but takes one value.

    The parser would keep the last value, and the answer would be to another question than the one typed.
    """
    plain = command.make_parser

    def make_parser(ctx: Any) -> Any:
        parser = plain(ctx)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            if option.action == "store" and not ctx.resilient_parsing:
                option.process = partial(_once, option, option.process)
        return parser

    command.make_parser = make_parser
    for each in getattr(command, "commands", {}).values():
        _refuse_repeats(each)


def _once(option: Any, process: Callable[[Any, Any], None], value: Any, state: Any) -> None:
    if option.dest in state.opts:
        name, first = max(option.obj.opts, key=len), state.opts[option.dest]
        raise SpecError(f"{name} {first} and {name} {value}: the option takes one value; leave one of them out")
    process(value, state)


app = typer.Typer(
    name="flopcast",
    cls=Verbs,
    help="Predict how fast a large language model trains on a GPU cluster, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        from sim import __version__

        typer.echo(f"flopcast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict how fast a large language model trains on a GPU cluster, and why."""


def main() -> None:
    """Run the command line; explain mistakes in one message and an exit code, never in a traceback."""
    if code := run_to_the_end(partial(app, prog_name="flopcast")):
        sys.exit(code)


if __name__ == "__main__":
    main()
