"""One input tried: the command line run in this process, and what of its end is a fault."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import sim.commands.progress
from tests.fuzz.cases import Case

DOCUMENTED = {0, 1, 2, 3}
"""Exit codes that a command can end with where nobody interrupts it."""
SECONDS = 10.0
"""Seconds of processor time without a word of output, and without progress that a terminal would show."""
MOST_BYTES = 2_000_000_000
_NOT_FINITE = re.compile(r"(?<![\w.'\"/=-])[+-]?(nan|inf|infinity)(?![\w.'\"/=-])", re.IGNORECASE)


class TooLong(BaseException):
    """Processor time is up."""


class _Output(io.StringIO):
    """Text that a command writes, which shows that it is at work."""

    def write(self, text: str) -> int:
        _alive()
        return super().write(text)


def _alive(*_: object, **__: object) -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)


@contextlib.contextmanager
def _bar(_: str):
    yield _alive


sim.commands.progress.progress_bar = sim.commands.progress.spinner = _bar  # before any command takes them


class Fault(NamedTuple):
    """What is wrong with a command's end: `kind` and the place in the code, or the words, that tell it from others."""

    kind: str
    where: str
    detail: str


def attempt(case: Case) -> tuple[Fault | None, int | None]:
    """Run a command line in the present folder, which holds its files.

    Returns
    -------
    fault, code : what is wrong with its end, if anything, and its exit code where it came to one.
    """
    from sim.cli import app
    from sim.commands.exit_codes import run_to_the_end

    out, err, held = _Output(), _Output(), max(_most_held(), MOST_BYTES + _in_use())
    before = sys.argv
    sys.argv = ["flopcast", *case.words]
    signal.signal(signal.SIGPROF, _stop)
    _alive()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_to_the_end(lambda: app(prog_name="flopcast"))
    except TooLong:
        return Fault("hang", _place(sys.exc_info()[1]), f"more than {SECONDS:g} s of processor time"), None
    except MemoryError as error:
        return Fault("memory", _place(error), str(error)), None
    except Exception as error:
        return Fault("traceback", f"{type(error).__name__} at {_place(error)}", traceback.format_exc(limit=-6)), None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.argv = before
    return _fault_of(code, out.getvalue(), err.getvalue(), case, held), code


def _in_use() -> int:
    """Memory that this process has now: what earlier inputs left in its caches."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _most_held() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _fault_of(code: int, out: str, err: str, case: Case, held: int) -> Fault | None:
    if code not in DOCUMENTED:
        return Fault("exit code", str(code), err[-300:])
    if code and not err.strip():
        return Fault("silence", case.verb, f"exit code {code} without a word")
    if "Traceback (most recent call last)" in err:
        return Fault("traceback", case.verb, err[-1500:])
    if code == 0:
        if "--json" in case.words and out.lstrip()[:1] in ("{", "["):
            wrong = _not_finite(json.loads(out, parse_constant=float))
        else:
            # What stands in comments, and in reasons why something was left out, is the input's own.
            lines = (line for line in out.splitlines() if not line.lstrip().startswith("#") and "is not a" not in line)
            wrong = next((line.strip() for line in lines if _NOT_FINITE.search(line)), None)
        if wrong and not _of_the_file(wrong, case):
            return Fault("not finite", f"{case.verb}: {re.sub(r'[0-9.]+', '#', wrong)[:60]}", wrong[:300])
    used = _most_held()
    if used > held:
        return Fault("memory", case.verb, f"{used / 1e9:.1f} GB in use")
    return None


def _of_the_file(line: str, case: Case) -> bool:
    """Whether the answer repeats what its file says: a profile's source, or Mamba's time_step_limit, [0, Infinity]."""
    return line.startswith("source ") or (
        case.verb == "import"
        and any(_NOT_FINITE.search(text.decode("utf-8", "replace")) for text in case.files.values())
    )


def _not_finite(data: Any, path: str = "") -> str | None:
    """The path of a number in an answer's data that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return next((wrong for key, value in items if (wrong := _not_finite(value, f"{path}.{key}"))), None)


def _place(error: BaseException | None) -> str:
    """The innermost line of our own code."""
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    here = str(Path(__file__).parents[2])
    own = [frame for frame in frames if frame.filename.startswith(here) and "/fuzz/" not in frame.filename]
    return f"{os.path.relpath(own[-1].filename, here)}:{own[-1].name}:{own[-1].lineno}" if own else "outside"


def _stop(*_: Any) -> None:
    raise TooLong
