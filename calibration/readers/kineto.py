"""torch-profiler (Kineto) traces: how long each category of kernels ran."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flopcast_calibration.readers.log import Source, read_source
from sim.errors import ProfileError

#: category -> pattern of kernel names, first match wins (cuBLAS, CUTLASS, flash-attention, NCCL, PyTorch)
CATEGORIES = (
    ("collective", re.compile(r"nccl", re.IGNORECASE)),
    ("attention", re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)),
    ("matmul", re.compile(r"gemm|cutlass|cublas|wgmma|sgemm|hmma|splitK|nvjet|matmul", re.IGNORECASE)),
    ("softmax", re.compile(r"softmax|log_softmax|nll_loss|cross_entropy", re.IGNORECASE)),
    ("norm", re.compile(r"layer_?norm|rms_?norm|batch_?norm", re.IGNORECASE)),
    ("optimizer", re.compile(r"adam|multi_tensor|fused_sgd|foreach", re.IGNORECASE)),
    ("embedding", re.compile(r"embedding|indexSelect|index_select", re.IGNORECASE)),
    ("copy", re.compile(r"memcpy|memset|copy", re.IGNORECASE)),
    ("elementwise", re.compile(r"elementwise|dropout|gelu|silu|vectorized|reduce_kernel|triton", re.IGNORECASE)),
)
_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """What the GPU did in a trace.

    by_category : busy time. [s]
    kernels : number of launches by category.
    span_s : first kernel's start to last kernel's end. [s]
    """

    by_category: dict[str, float]
    kernels: dict[str, int]
    span_s: float


def category(name: str) -> str:
    """The category of a kernel's name."""
    return next((label for label, pattern in CATEGORIES if pattern.search(name)), "other")


def load_trace(source: Source) -> Any:
    """The JSON of a trace. A trace that is cut off is a ProfileError."""
    try:
        return json.loads(source.text)
    except ValueError as error:
        raise ProfileError(f"{source.path} is not a whole profiler trace: {error}; was it cut off?") from None


def trace_events(path: Path, data: Any) -> list[dict[str, Any]]:
    """The events of a trace. A trace without such a list is a ProfileError."""
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise ProfileError(f"{path} has no list of traceEvents; export it with export_chrome_trace")
    return [event if isinstance(event, dict) else {} for event in events]


def kernel_times(path: Path) -> KernelTimes:
    """Read a trace written by `torch.profiler` (`export_chrome_trace`), plain or gzipped.

    A trace that is cut off, or has no GPU kernels, is a ProfileError.
    """
    events = trace_events(path, load_trace(read_source(path)))
    seconds: dict[str, float] = {}
    count: dict[str, int] = {}
    begin, end = float("inf"), float("-inf")
    for number, event in enumerate(events):
        if event.get("ph") != "X" or event.get("cat") not in _GPU:
            continue
        try:
            start, duration = float(event["ts"]) * 1e-6, float(event["dur"]) * 1e-6
        except (KeyError, TypeError, ValueError):
            raise ProfileError(f"{path}: event {number} ({event.get('name')!r}) has no start or duration") from None
        label = category(str(event.get("name", "")))
        seconds[label] = seconds.get(label, 0.0) + duration
        count[label] = count.get(label, 0) + 1
        begin, end = min(begin, start), max(end, start + duration)
    if not seconds:
        raise ProfileError(f"{path} holds no GPU kernels; profile with ProfilerActivity.CUDA")
    return KernelTimes(seconds, count, end - begin)
