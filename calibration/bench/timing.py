"""Timing one callable on a device: warm-up, then repeats until the median is steady or the budget is spent."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """Median, relative interquartile range and number of repeats. [s]"""

    median_s: float
    spread: float
    repeats: int


def synchronise(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def time_call(
    call: Callable[[], Any], device: str, *, budget_s: float = 0.25, least: int = 5, most: int = 50
) -> Timing:
    """Time `call`.

    On CUDA with events, several calls between two of them where a call is shorter than the events' resolution.

    Parameters
    ----------
    budget_s : float
        Stop repeating after this long. [s]
    least, most : int
        Repeats at least and at most.
    """
    for _ in range(3):
        call()
    synchronise(device)
    once = _clock(call, device, 1)
    inner = max(1, min(100, int(2e-4 / max(once, 1e-9))))
    samples = []
    started = time.perf_counter()
    while len(samples) < most and (len(samples) < least or time.perf_counter() - started < budget_s):
        samples.append(_clock(call, device, inner))
    return summarise(samples)


def summarise(samples: list[float]) -> Timing:
    """Median and spread of repeats."""
    median = statistics.median(samples)
    if len(samples) < 4:
        return Timing(median, (max(samples) - min(samples)) / median, len(samples))
    first, _, third = statistics.quantiles(samples, n=4)
    return Timing(median, (third - first) / median, len(samples))


def _clock(call: Callable[[], Any], device: str, inner: int) -> float:
    if device == "cuda":
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / inner
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - start) / inner
