"""What is at work, on a terminal only: a bar where the work can be counted, a spinner where it cannot."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

PATIENCE_S = 1.0
"""What ends sooner shows nothing."""


class Advance(Protocol):
    """Tells how far the work has come."""

    def __call__(self, done: int, size: int, now: str | None = None) -> None: ...


@contextmanager
def progress_bar(what: str) -> Iterator[Advance | None]:
    """A function to call with (done, in all) and, where that changes, what is being done; None without a terminal.

    The bar and the time left stand on stderr, and are gone when the work ends, whichever way it does.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    begun = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task: list[Any] = []

    def advance(done: int, size: int, now: str | None = None) -> None:
        if not task and time.perf_counter() - begun > PATIENCE_S:
            bar.start()
            task.append(bar.add_task(what, total=size))
        if task:
            bar.update(task[0], completed=done, total=size, description=now or what)

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """A function to call with what is being done now; it does nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda now: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield status.update
