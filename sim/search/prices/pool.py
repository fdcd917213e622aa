"""Units of work on one process, on a pool of processes, or on any executor: the same answers from each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess

from sim.arrays import Array
from sim.errors import FlopcastError
from sim.search.machine import cores
from sim.search.plans.space import Space
from sim.search.prices.units import price_unit

Answer = tuple[Array, Array]

PLANS_PER_WORKER = 4_000_000
"""A process prices so many in one to two seconds, and takes about half of one to start."""
AHEAD = 32
"""Units that an executor of unknown size is handed at a time; of a known one, two for each process."""


def processes_for(num_plans: int) -> int:
    """How many processes a space of so many plans is worth, of those this one may use."""
    return max(1, min(cores(), num_plans // PLANS_PER_WORKER))


def run_units(
    units: Iterable[tuple[int, Space]], jobs: int | None, executor: Executor | None = None
) -> Iterator[tuple[int, Space, Answer]]:
    """Answers of the units, in the order in which they come.

    Parameters
    ----------
    units : iterable of (number, part)
    jobs : int, optional
        Processes of a pool of our own, of the executor if there is one. Without either: this process.
    executor : Executor, optional
        Carries `price_unit` and its argument to wherever it works; not shut down.

    Raises
    ------
    FlopcastError
        A worker process died.
    """
    if executor is None and (jobs or 1) == 1:
        for number, part in units:
            yield number, part, price_unit(part)
        return
    if executor is not None:
        yield from _through(executor, units, 2 * jobs if jobs else AHEAD)
        return
    pool = ProcessPoolExecutor(jobs, initializer=_depend_on_the_parent)
    try:
        yield from _through(pool, units, 2 * (jobs or 1))
    except BrokenProcessPool:
        raise FlopcastError(
            "a worker process died, perhaps for want of memory; try fewer --jobs, and --save to keep what was priced "
            "(a script that searches with jobs needs its calls under `if __name__ == '__main__':`)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _depend_on_the_parent() -> None:
    """Leave interrupts to it, and end when it ends, also where it is killed and can tell nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess | None) -> None:
    if parent is not None:
        parent.join()
        os._exit(1)


def _through(executor: Executor, units: Iterable[tuple[int, Space]], ahead: int) -> Iterator[tuple[int, Space, Answer]]:
    """Hand out so many units ahead, so that neither they nor their answers pile up."""
    waiting: dict[Future[Answer], tuple[int, Space]] = {}
    todo = iter(units)
    try:
        while True:
            while len(waiting) < ahead and (unit := next(todo, None)) is not None:
                waiting[executor.submit(price_unit, unit[1])] = unit
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number, part = waiting.pop(future)
                yield number, part, future.result()
    finally:
        for future in waiting:
            future.cancel()
