"""What differs between ranks on CPUs and ranks on GPUs: where tensors lie, and when work is done."""

from __future__ import annotations

import gc
import os
import time

import torch

from flopcast_calibration.bench.machine import release, settle
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
    """Seconds of the host's clock, when the device has done all it was given."""
    synchronise(device)
    return time.perf_counter()


def let_go(device: str) -> None:
    """Give back the memory of what is not used any more: the next job of this process may need all of it."""
    gc.collect()  # modules and their hooks point at each other
    release(device)
