"""Measurements that a torch-profiler (Kineto) trace holds: matrix multiplies, and collectives of NCCL.

A kernel is linked to the operator that launched it by its "External id", or by "correlation" through the runtime call;
operators carry "Input Dims" and "Input type" where the profiler ran with record_shapes=True. Kernels of NCCL carry the
collective, its sizes and its group themselves (pytorch:torch/csrc/profiler/util.cpp, saveNcclMeta; torch ≥ 2.2).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.collectives import Layout
from flopcast_calibration.readers.log import Log, Reading, Source
from flopcast_calibration.readers.names import ELEMENT_BYTES, NOT_READ, known_name, torch_dtype
from sim.errors import ProfileError

#: operator -> which of its inputs are the two matrices
_MATRICES = dict.fromkeys(("aten::mm", "aten::_scaled_mm", "aten::bmm"), (0, 1)) | dict.fromkeys(
    ("aten::addmm", "aten::_addmm_activation", "aten::baddbmm"), (1, 2)
)
#: a buffer's size counts whole: what a gather ends with, what the others start with
_FULL = {"all_gather": "Out msg nelems"}
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime")

Event = dict[str, Any]


def looks_like(data: Any) -> bool:
    """Whether JSON is a trace."""
    if isinstance(data, dict):
        return "traceEvents" in data
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "ph" in data[0]


def read(source: Source, data: Any) -> Log:
    """The multiplies and collectives of a trace: the median of each multiply, the shortest of each collective."""
    data = data if isinstance(data, dict) else {"traceEvents": data}
    if not isinstance(data["traceEvents"], list):
        raise ProfileError(f"{source.path} has no list of traceEvents; export it with export_chrome_trace")
    events = [event for event in data["traceEvents"] if isinstance(event, dict)]
    kernels = [event for event in events if event.get("ph") == "X" and event.get("cat") == "kernel"]
    if not kernels:
        raise ProfileError(f"{source.path} holds no GPU kernels; profile with ProfilerActivity.CUDA")
    gpus = data["deviceProperties"] if isinstance(data.get("deviceProperties"), list) else []
    reading = Reading(source)
    multiplies = _multiplies(source, events, kernels)
    collectives = _collectives(reading, kernels, data.get("distributedInfo"), len(gpus))
    if not multiplies and not collectives:
        raise ProfileError(
            f"{source.path} holds {len(kernels)} kernels, but no matrix multiply with its shape (profile with "
            "record_shapes=True) and no collective with its size (torch 2.2 or newer)"
        )
    if not multiplies:
        reading.notes.append("no matrix multiply has its shape; profile with record_shapes=True to have them read")
    if multiplies and collectives:
        reading.notes.append("multiplies that ran beside a collective are slower than alone; the median counts")
    reading.items = multiplies + collectives
    return reading.log("", device=str(gpus[0].get("name", "")) if gpus and isinstance(gpus[0], dict) else "")


def _multiplies(source: Source, events: list[Event], kernels: list[Event]) -> list[Measurement]:
    operators = {_id(_args(event), "External id"): event for event in events if event.get("name") in _MATRICES}
    operators.pop(None, None)
    calls = [_args(event) for event in events if event.get("cat") in _LAUNCHES]
    launches = {_id(args, "correlation"): _id(args, "External id") for args in calls}
    seconds: dict[Any, float] = defaultdict(float)
    for number, kernel in enumerate(kernels):
        own = _id(_args(kernel), "External id")
        owner = own if own in operators else launches.get(_id(_args(kernel), "correlation"))
        if owner in operators:
            seconds[owner] += _duration(source, number, kernel)  # a split multiply has a second kernel that sums
    times: dict[tuple[tuple[str, Any], ...], list[float]] = defaultdict(list)
    for owner, time_s in seconds.items():
        shape = _gemm_shape(operators[owner])
        if shape:
            times[tuple(shape.items())].append(time_s)
    items = []
    for key, taken in times.items():
        shape, (low, middle, high) = dict(key), np.percentile(taken, (25, 50, 75)).tolist()
        kind, spread = "bmm" if "batch" in shape else "gemm", (high - low) / middle
        items.append(Measurement(kind, shape, middle, spread, repeats=len(taken), source=str(source.path)))
    return items


def _gemm_shape(operator: Event) -> Shape | None:
    """The shape of a multiply, by its operator's inputs; None where they are not recorded."""
    first, second = _MATRICES[operator["name"]]
    args = operator["args"]
    try:
        left, right = args["Input Dims"][first], args["Input Dims"][second]
        dtype, sizes = torch_dtype(str(args["Input type"][first])), [*left, *right]
    except (KeyError, IndexError, TypeError):
        return None
    numbers = dtype is not None and all(isinstance(size, int) and size > 0 for size in sizes)
    if not numbers or len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    shape: Shape = {"m": left[-2], "n": right[-1], "k": left[-1], "dtype": str(dtype)}
    return {"batch": left[0], **shape} if len(left) == 3 else shape


def _collectives(reading: Reading, kernels: list[Event], info: Any, gpus: int) -> list[Measurement]:
    source, best, counts = reading.source, dict[str, Measurement](), Counter[str]()
    world = info.get("world_size") if isinstance(info, dict) else None
    per_node = world // source.nodes if source.nodes and isinstance(world, int) else gpus
    unlisted = left = 0
    for number, kernel in enumerate(kernels):
        args = _args(kernel)
        operation = known_name(str(args.get("Collective name", "")))
        if operation is None or operation in NOT_READ:
            left += "Collective name" in args
            continue
        try:
            group = 2 if operation == "send" else int(args["Group size"])
            nbytes = int(args[_FULL.get(operation, "In msg nelems")]) * ELEMENT_BYTES[str(args["dtype"]).lower()]
        except (KeyError, TypeError, ValueError, OverflowError):
            left += 1
            continue
        if group < 2 or nbytes < 1:
            continue
        nodes = _nodes(args.get("Process Group Ranks"), per_node) if operation != "send" else None
        unlisted += nodes is None
        shape = Layout(group, min(nodes or source.nodes or 1, group)).shape(operation, nbytes)
        item = Measurement("collective", shape, _duration(source, number, kernel), source=str(source.path))
        counts[item.key] += 1
        best[item.key] = min(best.get(item.key, item), item, key=lambda one: one.time_s)
    if best:
        reading.notes.append("collectives in a trace wait for other ranks; of each shape the shortest counts")
    if unlisted and source.nodes is None:
        reading.notes.append("which ranks share a node is not stated; one node is assumed (--nodes)")
    if left:
        reading.notes.append(f"{left} collectives without sizes, or that a profile has no place for, are left out")
    return [replace(item, repeats=counts[key]) for key, item in best.items()]


def _nodes(ranks: Any, per_node: int) -> int | None:
    """How many nodes a group's ranks are on, nodes being filled in order; None where that cannot be told."""
    text = " ".join(map(str, ranks)) if isinstance(ranks, list) else str(ranks or "")
    listed = {int(number) // per_node for number in re.findall(r"\d+", text)} if per_node > 1 else set()
    return len(listed) if listed and "..." not in text else None


def _args(event: Event) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _id(args: dict[str, Any], name: str) -> int | str | None:
    """An id, as kernels, launches and operators carry it."""
    value = args.get(name, args.get(name.lower()))
    return value if isinstance(value, (int, str)) else None


def _duration(source: Source, number: int, kernel: Event) -> float:
    where = f"{source.path}: kernel {number} ({kernel.get('name')!r})"
    try:
        duration = float(kernel["dur"]) * 1e-6
    except (KeyError, TypeError, ValueError):
        raise ProfileError(f"{where} has no duration") from None
    if not 0 < duration < 3600:
        raise ProfileError(f"{where} took {duration} s, which is none")
    return duration
