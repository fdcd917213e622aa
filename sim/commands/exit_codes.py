"""How a command ends: with its answer, or in one line and an exit code, whatever befell it or its streams."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from sim.errors import FlopcastError, InfeasiblePlan, visible

ANSWERED, UNWRITTEN, MISTAKEN, TOO_LARGE, INTERRUPTED, READER_GONE = 0, 1, 2, 3, 130, 141
"""Exit codes; the last two are those of a process that SIGINT or SIGPIPE ended, as a shell sees it."""


def run_to_the_end(command: Callable[[], object]) -> int:
    """Run a command and flush what it wrote; the exit code, said why on stderr where it is not an answer's."""
    if not _ready():
        return UNWRITTEN
    code = ANSWERED
    try:
        try:
            command()
        except SystemExit as left:
            code = _left_with(left)
        sys.stdout.flush()
    except InfeasiblePlan as error:
        return say(error, TOO_LARGE)
    except FlopcastError as error:
        return say(error, MISTAKEN)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except RuntimeError as error:  # how Python up to 3.11 tells of an interrupt while it makes a class
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        code = INTERRUPTED
    except BrokenPipeError:
        _give_up(sys.stdout)
        return READER_GONE
    except OSError as error:
        _give_up(sys.stdout)
        where = f"cannot use {error.filename}" if error.filename else "cannot write the answer"
        return say(f"{where}: {error.strerror or error}; make room or write elsewhere", UNWRITTEN)
    return say("interrupted", INTERRUPTED) if code == INTERRUPTED else code


def say(what: Exception | str, code: int) -> int:
    """Why there is no answer, in one line on stderr if that is there to be written to; the exit code."""
    import typer

    try:
        typer.secho(f"flopcast: {visible(str(what))}", err=True, fg="red")
    except OSError:
        _give_up(sys.stderr)
    return code


def _left_with(left: SystemExit) -> int:
    """The exit code that a command left with; BrokenPipeError where its reader (head, less) has gone.

    typer and rich hear of that themselves, and leave with 1.
    """
    if isinstance(left.__context__, BrokenPipeError):
        raise left.__context__ from None
    return left.code if isinstance(left.code, int) else ANSWERED if left.code is None else MISTAKEN


def _ready() -> bool:
    """Whether there is somewhere to answer; a terminal without × or █ gets a question mark, not a traceback."""
    if sys.stderr is None:  # the next file to be opened would take its place, and what is meant for it
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        say("standard output is closed, so nothing can be answered; send it to a file, or to /dev/null", UNWRITTEN)
        return False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return True


def _give_up(stream: TextIO) -> None:
    """Keep Python from complaining once more at exit of what cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
