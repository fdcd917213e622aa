"""From measurements to the points that fits take, and what of them no fit takes."""

from __future__ import annotations

import json

import numpy as np

from calibration.fit import (
    AllReducePoint,
    AttentionPoint,
    CopyPoint,
    GemmPoint,
    LaunchPoint,
    MemoryPoint,
    PairPoint,
    SendPoint,
)
from calibration.measurement import Measurement, MeasurementSet
from sim.errors import ProfileError
from sim.specs import ClusterSpec

_SORTS = {name: name for name in ("copy", "add", "norm", "softmax", "dropout", "adam")} | {"gelu": "activation"}
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def gemm_points(data: MeasurementSet) -> tuple[list[GemmPoint], str]:
    """Measured multiplies, batched ones (as math attention runs them) included, and their precision."""
    items = [*data.of("gemm"), *data.of("bmm")]
    precisions = {_DTYPES.get(str(item.shape.get("dtype", "bfloat16")), "bf16") for item in items}
    if len(precisions) > 1:
        raise ProfileError(f"multiplies of several precisions ({', '.join(sorted(precisions))}); fit one at a time")
    points = [
        GemmPoint(*(item.number(axis) for axis in "mnk"), item.time_s, float(item.shape.get("batch", 1)))
        for item in items
    ]
    return points, next(iter(precisions), "bf16")


def memory_points(data: MeasurementSet) -> list[MemoryPoint]:
    """Measured memory-bound operations."""
    return [
        MemoryPoint(item.number("nbytes"), item.time_s, _SORTS.get(str(item.shape.get("operation")), "copy"))
        for item in data.of("memory")
    ]


def attention_points(data: MeasurementSet) -> list[AttentionPoint]:
    """Measured fused attention, by the FLOPs it executes.

    Whether a causal kernel skips the masked half is told from the times: on GPUs it does, on CPUs it may not.
    """
    items = data.of("attention")
    times = {json.dumps(item.shape, sort_keys=True): item.time_s for item in items}
    ratios = []
    for item in items:
        if item.shape.get("causal"):
            twin = times.get(json.dumps({**item.shape, "causal": 0}, sort_keys=True))
            ratios += [item.time_s / twin] if twin else []
    skips = not ratios or float(np.median(ratios)) < 0.75
    return [_attention(item, skips) for item in items]


def _attention(item: Measurement, skips: bool) -> AttentionPoint:
    heads, length, head_dim = (item.number(name) for name in ("heads", "length", "head_dim"))
    backward = bool(item.shape.get("backward", 0))
    share = 0.5 if item.shape.get("causal") and skips else 1.0
    flop = 4.0 * heads * length**2 * head_dim * share * (2.5 if backward else 1.0)
    return AttentionPoint(flop, length, backward, item.time_s)


def launch_points(data: MeasurementSet) -> list[LaunchPoint]:
    """Measured launches."""
    return [
        LaunchPoint(float(item.shape.get("kernels", 1)), item.time_s, "kernels" in item.shape)
        for item in data.of("launch")
    ]


def copy_points(data: MeasurementSet) -> list[CopyPoint]:
    """Measured copies between host and device."""
    return [
        CopyPoint(item.number("nbytes"), item.shape.get("direction", "to_device") == "to_device", item.time_s)
        for item in data.of("copy")
    ]


def collective_points(data: MeasurementSet, operation: str, cluster: ClusterSpec) -> list[AllReducePoint]:
    """Measured collectives of one kind inside one NVLink domain."""
    return [
        AllReducePoint(int(item.number("num_ranks")), item.number("nbytes"), item.time_s)
        for item in data.of("collective", operation=operation)
        if why_not(item, data, cluster) is None
    ]


def send_points(data: MeasurementSet, cluster: ClusterSpec) -> list[SendPoint]:
    """Measured sends inside one NVLink domain."""
    return [SendPoint(point.nbytes, point.time_s) for point in collective_points(data, "send", cluster)]


def pair_points(data: MeasurementSet, cluster: ClusterSpec) -> list[PairPoint]:
    """Measured multiplies that overlap with a collective."""
    return [
        PairPoint(_alone(item, "gemm_s"), _alone(item, "collective_s"), item.time_s)
        for item in data.of("interference")
        if why_not(item, data, cluster) is None
    ]


def _alone(item: Measurement, name: str) -> float:
    return float(item.extra[name] if name in item.extra else item.shape[name])


def why_not(item: Measurement, data: MeasurementSet, cluster: ClusterSpec) -> str | None:
    """Why a measurement over several ranks says nothing about NVLink; None where it does."""
    ranks = int(item.shape.get("num_ranks", 1))
    if item.shape.get("num_nodes", 1) != 1:
        return "across nodes"
    if ranks > cluster.nvlink_domain_gpus:
        return f"on more ranks than the {cluster.nvlink_domain_gpus} of node {cluster.node.name!r}"
    cores = data.machine.get("cores") if data.machine.get("device_kind") == "cpu" else None
    if cores and ranks > cores:
        return f"on more ranks than the machine's {cores} cores (they time the scheduler)"
    return None
