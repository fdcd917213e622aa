"""The machine under a rank: its device, a CPU's core or a GPU, and whether other programs leave it to us.

Timings are kept only from moments when others left the processors alone. A shared machine's other users slow a job down
in a way that no model of the job can know.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from flopcast_calibration.bench.timing import settle, synchronise

_STAT = Path("/proc/stat")
Result = TypeVar("Result")
#: Of the machine's processor time, what others may use of the processors that we use, in a timing that counts.
MOST_FOREIGN = 0.06
_GLANCE_S = 0.2
_LONGEST_WAIT_S = 4.0


def machine_busy_s() -> float | None:
    """Processor time that all programs have used since boot; None where the system does not tell.  [s]"""
    if not _STAT.exists():
        return None
    ticks = [int(word) for word in _STAT.read_text(encoding="ascii").partition("\n")[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, soft_irq, steal = ticks[:8]
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


class Watch:
    """Measures, from its making on, how much of the machine others used."""

    def __init__(self) -> None:
        self.busy = machine_busy_s()
        self.own = time.process_time()
        self.start = time.perf_counter()

    def own_s(self) -> float:
        """Processor time of this process and its threads so far. [s]"""
        return time.process_time() - self.own

    def foreign_share(self, own_s: float) -> float:
        """Share of the machine that went to others, `own_s` being ours; 0 where the system does not tell."""
        busy = machine_busy_s()
        if self.busy is None or busy is None:
            return 0.0
        available = (os.cpu_count() or 1) * (time.perf_counter() - self.start)
        return max(0.0, (busy - self.busy - own_s) / max(available, 1e-9))


def bearable(processes: int) -> float:
    """Share of the machine that others may use while so many of ours are timed: what we leave idle, and a little."""
    available = os.cpu_count() or 1
    return MOST_FOREIGN + max(0, available - processes) / available


def wait_for_quiet(processes: int, until: float) -> None:
    """Sleep until others leave the machine to so many of us, at most until the monotonic clock shows `until`. [s]"""
    while time.monotonic() < until:
        watch = Watch()
        time.sleep(_GLANCE_S)
        if watch.foreign_share(watch.own_s()) <= bearable(processes):
            return


def quietly(
    measure: Callable[[], Result], score: Callable[[Watch], float], processes: int, patience_s: float
) -> tuple[Result, float]:
    """Measure again until others were quiet or patience ends; the quietest result and how loud it was.

    `score` turns the watch that ran during a measurement into the share of the machine that went to others; where
    several ranks measure together it tells all of them the same, so that they agree whether to try again. `processes`
    of ours are busy meanwhile. New attempts begin for `patience_s` after the first. [s]
    """
    spent = 0.0
    best: tuple[Any, float] = (None, float("inf"))
    while True:
        begin = time.monotonic()
        watch = Watch()
        result = measure()
        foreign = score(watch)
        if foreign < best[1]:
            best = (result, foreign)
        if foreign <= bearable(processes) or spent >= patience_s:
            return best
        wait_for_quiet(processes, begin + min(_LONGEST_WAIT_S, patience_s - spent))
        # Not the clock's time, which differs between ranks: a fixed price for each attempt.
        spent += _LONGEST_WAIT_S


def take_device(device: str) -> torch.device:
    """Make this process a rank of one device, its own GPU or a core's worth of the CPU, and say which."""
    if device == "cuda":
        here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(here)
        return here
    settle(device)
    return torch.device(device)


def now(device: str) -> float:
    """Seconds of a clock that all processes of a machine share, when the device has done all it was given."""
    synchronise(device)
    return time.perf_counter()


def mark(device: str) -> Any:
    """A moment of the device's own work, which a GPU notes when it gets there. Told apart by `between`."""
    if device != "cuda":
        return time.perf_counter()
    moment = torch.cuda.Event(enable_timing=True)
    moment.record()
    return moment


def between(first: Any, last: Any) -> float:
    """Seconds from one mark to another, when the device has done all it was given."""
    return last - first if isinstance(first, float) else float(first.elapsed_time(last)) / 1e3


def let_go(device: str) -> None:
    """Give back the memory of what is not used any more: the next job of this process may need all of it."""
    gc.collect()  # modules and their hooks point at each other
    if device == "cuda":
        torch.cuda.empty_cache()
