"""What differs between ranks on CPUs and ranks on GPUs: where tensors lie, who carries messages, when work is done."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import torch

from flopcast_calibration.bench.machine import settle
from flopcast_calibration.bench.timing import synchronise


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
