"""A progress bar on a terminal, once something has taken a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function to call with (done, in all); None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    begun = time.perf_counter()
    bar = Progress(console=Console(stderr=True), transient=True)
    task: list[Any] = []

    def advance(done: int, size: int) -> None:
        if not task and time.perf_counter() - begun > 1.0:
            bar.start()
            task.append(bar.add_task(what, total=size))
        if task:
            bar.update(task[0], completed=done)

    try:
        yield advance
    finally:
        bar.stop()
