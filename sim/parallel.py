"""One function over many items: here, or on any executor of `concurrent.futures` (a process pool, Dask, MPI)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AHEAD = 64
"""Items that an executor has at a time, so that neither they nor their answers pile up."""


def map_over(
    function: Callable[[Item], Answer], items: Iterable[Item], executor: Executor | None = None
) -> Iterator[Answer]:
    """Yield a function's answers in the order of the items.

    Parameters
    ----------
    function : callable
        Of a module, so that other processes find it; `functools.partial` gives it further arguments.
    items : iterable
        Scenarios, seeds, points of a sweep.
    executor : Executor, optional
        As `ProcessPoolExecutor(8)`, Dask's `Client.get_executor()` or mpi4py's `MPIPoolExecutor`; it is not shut down.
        Without one the items are done here, one after the other. The answers are the same.

    Raises
    ------
    Exception
        What the function raised, at the item's turn; what was not begun is cancelled.
    """
    if executor is None:
        yield from map(function, items)
        return
    waiting: deque[Future[Answer]] = deque()
    try:
        for item in items:
            waiting.append(executor.submit(function, item))
            if len(waiting) >= AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
