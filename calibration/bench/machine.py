"""What machine this is: device, driver, libraries, clocks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Parameters of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def describe(device: str) -> dict[str, Any]:
    """Device, libraries and date of a calibration, for the profile's provenance."""
    import torch

    facts: dict[str, Any] = {
        "device_kind": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "num_gpus": torch.cuda.device_count(),
            "num_sms": properties.multi_processor_count,
            "capability": ".".join(map(str, torch.cuda.get_device_capability())),
            "cache_bytes": getattr(properties, "L2_cache_size", 0),
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": nvidia_smi("driver_version"),
            "power_limit": nvidia_smi("power.limit"),
        }
    else:
        facts |= {"device": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return facts


def settle(device: str) -> None:
    """Make a CPU compute as one device of a job does: on one core, with memory it owns.

    glibc returns large blocks to the operating system, which zeroes them page by page at the next use: that takes
    longer than a memory-bound kernel itself. A GPU's caching allocator hands out the same memory again.
    """
    import torch

    if device != "cpu":
        return
    torch.set_num_threads(1)  # two threads would wait for each other's turns
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such switch
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def release(device: str) -> None:
    """Give back GPU memory that is not used any more: other processes of this machine are about to need it."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def nvidia_smi(field: str) -> str:
    """What the driver says of the first GPU; nothing where there is no driver."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
