"""A device, and timing one callable on it: warm-up, then repeats until the median is steady or the budget is spent.

On a GPU a kernel whose data are smaller than the last-level cache finds them there from its last run, and is timed
faster than any training step sees it; so the calls take turns over as many copies of the data as fill the cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

Apart = Literal["", "graph", "queue"]


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


#: Copies of a kernel's data fill the cache so many times over.
_TIMES_THE_CACHE = 3
_MOST_COPIES = 64
#: A call and its launches together; below this the host may be the slower of the two. [s]
_SHORT_S = 1e-3
#: Such calls in a graph or a queue: of the shortest many, beside the launch of the graph itself.
_IN_GRAPH, _IN_QUEUE, _HOST_S = 200, 20, 1e-2
#: Cycles of a second, of the fastest clock that a GPU has.
_CYCLES = 3e9
#: Multiplies until clocks settle: batches that differ by less than this, or so long. [s]
_SETTLED, _SETTLING_S = 0.01, 20.0


def rotated(prepare: Callable[[str], Callable[[], Any]], working_set: float, device: str) -> Callable[[], Any]:
    """The call that `prepare` sets up on a device, over copies of its data that do not fit in the GPU's cache together.

    `working_set` is what one call reads and writes [bytes]; 0 where data do not matter.
    """
    cache = cache_bytes(device)
    if not working_set or not cache:
        return prepare(device)
    calls = [prepare(device) for _ in range(min(_MOST_COPIES, 1 + int(_TIMES_THE_CACHE * cache / working_set)))]
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def cache_bytes(device: str) -> int:
    """The GPU's last-level cache. [bytes]

    0 on a CPU, where one core's share of it changes with what others do, and a job's kernels are measured in rows.
    """
    if device != "cuda":
        return 0
    import torch

    return int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))


def warm_up(device: str) -> int:
    """Multiply on a GPU until its clocks have settled; how many batches that took.

    A GPU that was idle runs its first second faster than it can for hours.
    """
    if device != "cuda":
        return 0
    import torch

    left, right = (torch.randn(8192, 8192, device=device).to(torch.float16) for _ in range(2))
    out = left @ right
    begin, times = time.perf_counter(), [float("inf")]
    while time.perf_counter() - begin < _SETTLING_S:
        times.append(_clock(lambda: torch.mm(left, right, out=out), device, 200))
        last = times[-4:]
        if len(last) == 4 and max(last) - min(last) < _SETTLED * min(last):
            break
    return len(times) - 1


def time_call(
    call: Callable[[], Any], device: str, *, budget_s: float = 0.25, least: int = 5, most: int = 50, apart: Apart = ""
) -> Timing:
    """Time `call`, `least` to `most` times, and stop repeating after `budget_s` [s].

    On CUDA with events, several calls between two of them where a call is shorter than the events' resolution. `apart`
    says how the GPU's time is told from the host's where a call takes less than launching it: "graph", its kernels are
    launched by a CUDA graph; "queue", they wait behind a kernel that only sleeps until all are launched; "", it is not,
    and the longer of the two counts.
    """
    for _ in range(3):
        call()
    synchronise(device)
    once = _clock(call, device, 1)
    inner = max(1, min(100, int(2e-4 / max(once, 1e-9))))
    sample = lambda: _clock(call, device, inner)  # noqa: E731
    if device == "cuda" and apart and once < _SHORT_S:
        each = max(10, min(_IN_GRAPH, int(_HOST_S / max(once, 1e-9))))
        replay = captured(call, each) if apart == "graph" else None
        if replay is not None:
            sample = lambda: _clock(replay, device, 3) / each  # noqa: E731
        else:
            sleep = int(_CYCLES * 1.5 * _launching_s(call, _IN_QUEUE))
            sample = lambda: _clock(call, device, _IN_QUEUE, behind=sleep)  # noqa: E731
    samples = []
    started = time.perf_counter()
    while len(samples) < most and (len(samples) < least or time.perf_counter() - started < budget_s):
        samples.append(sample())
    return summarise(samples)


def _launching_s(call: Callable[[], Any], times: int) -> float:
    """What the host takes to launch so many calls. [s]"""
    synchronise("cuda")
    begin = time.perf_counter()
    for _ in range(times):
        call()
    end = time.perf_counter()
    synchronise("cuda")
    return end - begin


def captured(call: Callable[[], Any], times: int) -> Callable[[], Any] | None:
    """So many calls in a row as one CUDA graph; None where they cannot be captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(times):
                call()
    except RuntimeError:  # a synchronisation, an allocation outside the graph's pool: it is timed in a queue then
        torch.cuda.synchronize()
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def summarise(samples: list[float]) -> Timing:
    """Median and spread of repeats."""
    median = statistics.median(samples)
    if median <= 0:
        raise RuntimeError(f"the clock shows {median} s; the device ran nothing, or its clock is too coarse")
    if len(samples) < 4:
        return Timing(median, (max(samples) - min(samples)) / median, len(samples))
    first, _, third = statistics.quantiles(samples, n=4)
    return Timing(median, (third - first) / median, len(samples))


def _clock(call: Callable[[], Any], device: str, inner: int, behind: int = 0) -> float:
    """Time of a call. [s]

    behind : cycles that the GPU sleeps before, while the host launches.
    """
    if device == "cuda":
        import torch

        if behind:
            torch.cuda._sleep(behind)
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
