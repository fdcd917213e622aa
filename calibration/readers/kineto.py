"""Measurements that a torch-profiler (Kineto) trace holds: matrix multiplies, and collectives of NCCL.

A kernel is linked to the operator that launched it by its "External id", or by "correlation" through the runtime call;
operators carry "Input Dims" and "Input type" where the profiler ran with record_shapes=True. Kernels of NCCL carry the
collective, its sizes and its group themselves (pytorch:torch/csrc/profiler/util.cpp, saveNcclMeta; torch ≥ 2.2).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np

from flopcast_calibration.measurement import Measurement, Shape
from flopcast_calibration.readers.collective_names import NOT_READ, Layout, known_name
from flopcast_calibration.readers.dtypes import ELEMENT_BYTES, torch_dtype
from flopcast_calibration.readers.log import Log, Source
from sim.errors import ProfileError

#: operator -> which of its inputs are the two matrices
_MATRICES = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::_scaled_mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
#: a buffer's size counts whole: what a gather ends with, what the others start with
_FULL = {"all_gather": "Out msg nelems"}

Event = dict[str, Any]


def looks_like(data: Any) -> bool:
    """Whether JSON is a trace."""
    if isinstance(data, dict):
        return "traceEvents" in data
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "ph" in data[0]


def read(source: Source, data: Any) -> Log:
    """The multiplies and collectives of a trace: the median of each multiply, the shortest of each collective."""
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise ProfileError(f"{source.path} has no list of traceEvents; export it with export_chrome_trace")
    events = [event if isinstance(event, dict) else {} for event in events]
    kernels = [event for event in events if event.get("ph") == "X" and event.get("cat") == "kernel"]
    if not kernels:
        raise ProfileError(f"{source.path} holds no GPU kernels; profile with ProfilerActivity.CUDA")
    notes: list[str] = []
    properties = data.get("deviceProperties") if isinstance(data, dict) else None
    gpus = properties if isinstance(properties, list) else []
    multiplies = _multiplies(source, events, kernels)
    collectives = _collectives(source, kernels, data if isinstance(data, dict) else {}, len(gpus), notes)
    if not multiplies and not collectives:
        raise ProfileError(
            f"{source.path} holds {len(kernels)} kernels, but no matrix multiply with its shape (profile with "
            "record_shapes=True) and no collective with its size (torch 2.2 or newer)"
        )
    if not multiplies:
        notes.append("no matrix multiply has its shape; profile with record_shapes=True to have them read")
    if multiplies and collectives:
        notes.append("multiplies that ran beside a collective are slower than alone; the median counts")
    name = str(gpus[0].get("name", "")) if gpus and isinstance(gpus[0], dict) else ""
    return Log({"device": name} if name else {}, (*multiplies, *collectives), tuple(notes))


def _multiplies(source: Source, events: list[Event], kernels: list[Event]) -> list[Measurement]:
    operators: dict[Any, Event] = {}
    launches: dict[Any, Any] = {}
    for event in events:
        args = event.get("args") if isinstance(event.get("args"), dict) else {}
        if event.get("name") in _MATRICES and _external(args) is not None:
            operators[_external(args)] = event
        elif event.get("cat") in ("cuda_runtime", "cuda_driver", "hip_runtime"):
            launches[_id(args.get("correlation"))] = _external(args)
    seconds: dict[Any, float] = defaultdict(float)
    for number, kernel in enumerate(kernels):
        args = kernel.get("args") if isinstance(kernel.get("args"), dict) else {}
        owner = _external(args) if _external(args) in operators else launches.get(_id(args.get("correlation")))
        if owner is not None and owner in operators:
            seconds[owner] += _duration(source, number, kernel)  # a split multiply has a second kernel that sums
    times: dict[tuple[tuple[str, Any], ...], list[float]] = defaultdict(list)
    for owner, time_s in seconds.items():
        shape = _gemm_shape(operators[owner])
        if shape:
            times[tuple(shape.items())].append(time_s)
    items = []
    for key, taken in times.items():
        shape = dict(key)
        low, middle, high = np.percentile(taken, (25, 50, 75))
        items.append(
            Measurement(
                "bmm" if "batch" in shape else "gemm",
                shape,
                float(median(taken)),
                spread=float((high - low) / middle),
                repeats=len(taken),
                source=str(source.path),
            )
        )
    return items


def _gemm_shape(operator: Event) -> Shape | None:
    """The shape of a multiply, by its operator's inputs; None where they are not recorded."""
    first, second = _MATRICES[operator["name"]]
    args = operator["args"]
    try:
        left, right = args["Input Dims"][first], args["Input Dims"][second]
        dtype = torch_dtype(str(args["Input type"][first]))
        sizes = [*left, *right]
    except (KeyError, IndexError, TypeError):
        return None
    if (
        dtype is None
        or not all(isinstance(size, int) for size in sizes)
        or len(left) != len(right)
        or len(left) not in (2, 3)
        or min(sizes) < 1
        or left[-1] != right[-2]
    ):
        return None
    shape: Shape = {"m": left[-2], "n": right[-1], "k": left[-1], "dtype": dtype}
    return {"batch": left[0], **shape} if len(left) == 3 else shape


def _collectives(
    source: Source, kernels: list[Event], data: dict[str, Any], gpus: int, notes: list[str]
) -> list[Measurement]:
    best: dict[str, Measurement] = {}
    counts: dict[str, int] = defaultdict(int)
    info = data.get("distributedInfo")
    world = info.get("world_size") if isinstance(info, dict) else None
    per_node = world // source.nodes if source.nodes and isinstance(world, int) else gpus
    unlisted = left = 0
    for number, kernel in enumerate(kernels):
        args = kernel.get("args") if isinstance(kernel.get("args"), dict) else {}
        operation = known_name(str(args.get("Collective name", "")))
        if operation is None or operation in NOT_READ:
            left += "Collective name" in args
            continue
        try:
            group = 2 if operation == "send" else int(args["Group size"])
            size = ELEMENT_BYTES[str(args["dtype"]).lower()]
            nbytes = int(args[_FULL.get(operation, "In msg nelems")]) * size
        except (KeyError, TypeError, ValueError, OverflowError):
            left += 1
            continue
        if group < 2 or nbytes < 1:
            continue
        nodes = _nodes(args.get("Process Group Ranks"), per_node) if operation != "send" else None
        unlisted += nodes is None
        layout = Layout(group, min(nodes or source.nodes or 1, group))
        where = str(source.path)
        item = Measurement(
            "collective", layout.shape(operation, nbytes), _duration(source, number, kernel), source=where
        )
        counts[item.key] += 1
        best[item.key] = min(best.get(item.key, item), item, key=lambda one: one.time_s)
    if best:
        notes.append("collectives in a trace wait for other ranks; of each shape the shortest counts")
    if unlisted and source.nodes is None:
        notes.append("which ranks share a node is not stated; one node is assumed (--nodes)")
    if left:
        notes.append(f"{left} collectives without sizes, or that a profile has no place for, are left out")
    items = best.values()
    return [Measurement(i.kind, i.shape, i.time_s, repeats=counts[i.key], source=i.source) for i in items]


def _nodes(ranks: Any, per_node: int) -> int | None:
    """How many nodes a group's ranks are on, nodes being filled in order; None where that cannot be told."""
    if per_node < 2:
        return None
    numbers: Iterable[Any] = ranks if isinstance(ranks, list) else re.findall(r"\d+", str(ranks or ""))
    listed = [int(number) for number in numbers if str(number).isdigit()]
    cut_off = "..." in str(ranks)
    return len({number // per_node for number in listed}) if listed and not cut_off else None


def _external(args: Event) -> Any:
    """The id of the operator, as kernels and operators both carry it."""
    return _id(args.get("External id", args.get("external id")))


def _id(value: Any) -> int | str | None:
    return value if isinstance(value, (int, str)) else None


def _duration(source: Source, number: int, kernel: Event) -> float:
    try:
        duration = float(kernel["dur"]) * 1e-6
    except (KeyError, TypeError, ValueError):
        raise ProfileError(f"{source.path}: kernel {number} ({kernel.get('name')!r}) has no duration") from None
    if not 0 < duration < 3600:
        raise ProfileError(f"{source.path}: kernel {number} ({kernel.get('name')!r}) took {duration} s, which is none")
    return duration
