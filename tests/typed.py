"""What a user types after `flopcast`, run in this process: a start of Python costs more than most answers."""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from typer.testing import CliRunner

from sim.cli import app
from sim.commands.exit_codes import run_to_the_end

ROOT = Path(__file__).parent.parent


class Typed(NamedTuple):
    """How a verb ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def typed(*words: object, input: str = "", env: Mapping[str, str] = {}, cwd: Path = ROOT) -> Typed:
    """Run a verb as `python -m sim` would from a folder; no traceback is ever its answer.

    Parameters
    ----------
    env : mapping
        Variables beside those that are set.
    """
    out, errors = io.StringIO(), io.StringIO()
    with (
        _in_folder(cwd),
        mock.patch.dict(os.environ, {"COLUMNS": "80", **env}),
        mock.patch("sys.argv", ["flopcast", *map(str, words)]),
        mock.patch("sys.stdin", _piped(input)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        code = run_to_the_end(lambda: app([str(word) for word in words], prog_name="flopcast"))
    assert "Traceback" not in errors.getvalue(), errors.getvalue()
    return Typed(code, out.getvalue(), errors.getvalue())


def answered(*words: object) -> str:
    """Return what a verb prints in 80 columns; the error that it ends with is raised."""
    result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "80"})
    if result.exception is not None:
        raise result.exception
    return result.stdout


def _piped(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode("utf-8")), encoding="utf-8")


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
