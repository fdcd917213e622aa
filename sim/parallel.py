"""One function over many items: here, or on any executor of `concurrent.futures` (a process pool, Dask, MPI)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


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
    yield from map(function, items) if executor is None else executor.map(function, list(items))
