"""Options that fill a record: named, typed and explained by its fields, read by their units, left out where not given."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sim.commands.fills import COUNT, Fills, said_of, with_records
from sim.errors import SpecError


@dataclass
class Run:
    """A run.

    tokens : tokens of the whole run. None: as many as it takes.
    wait_s : time between two steps, of which nothing is known
        beforehand. [s]
    gpus : GPUs of the job.
    quiet : print nothing.
    """

    tokens: float
    wait_s: float = 1.5
    gpus: int = 8
    quiet: bool = False


def ask(*words):
    """What a command gets of an option for each field but the one that it fills itself, and its help text."""
    got = []

    @with_records
    def command(
        *,
        name: str = "x",
        run: Annotated[partial[Run], Fills(Run, "gpus", tokens=COUNT, quiet="--quiet")],
    ):
        got.append((name, run(**{} if "tokens" in run.keywords else {"tokens": 1.0})))

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return got[0] if got else result.output


def test_values_are_read_by_their_units_and_defaults_are_the_records_own():
    assert ask() == ("x", Run(1.0))
    assert ask("--tokens", "15T", "--wait", "20 ms", "--quiet") == ("x", Run(15e12, 0.02, 8, True))
    with pytest.raises(SpecError, match="has no unit"):
        ask("--wait", "3")


def test_help_is_what_the_docstring_says():
    assert said_of(Run)["wait_s"] == "Time between two steps, of which nothing is known beforehand."
    shown = " ".join(ask("--help").split())
    for words in ("--tokens", "Tokens of the whole run.", "--wait", "1.5 s", "--quiet", "Print nothing."):
        assert words in shown
    assert "--gpus" not in shown
