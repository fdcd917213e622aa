"""From measurements to a profile: every fit there is data for, the rest from a base profile, provenance for all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from calibration.fit import (
    AllReducePoint,
    AttentionPoint,
    Fit,
    GemmPoint,
    MemoryPoint,
    fit_all_reduce,
    fit_attention,
    fit_gemm,
    fit_memory,
)
from calibration.measurement import Measurement, MeasurementSet
from sim.errors import ProfileError
from sim.specs import ClusterSpec, Profile

Points = Sequence[Any]
Fitter = Callable[[Sequence[Any]], Fit]
_SORTS = {name: name for name in ("copy", "add", "norm", "softmax", "dropout", "adam")} | {"gelu": "activation"}
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile, its fits, and what could not be fitted.

    intervals : 90 % bootstrap interval of every fitted parameter, by fit and parameter.
    """

    profile: Profile
    fits: dict[str, Fit]
    counts: dict[str, int]
    intervals: dict[str, dict[str, tuple[float, float]]]
    not_measured: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """What is known so far of a profile under construction."""

    fits: dict[str, Fit] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(
        self, name: str, points: Sequence[Any], fit: Callable[[Sequence[Any]], Fit], least: int, draws: int
    ) -> Fit | None:
        """Fit `points` and bootstrap the fit, if there are enough of them."""
        if len(points) < least:
            self.missing.append(f"{name} ({len(points)} measurements, {least} needed)")
            return None
        result = self.fits[name] = fit(points)
        self.counts[name] = len(points)
        self.intervals[name] = bootstrap(points, fit, draws)
        return result


def bootstrap(
    points: Sequence[Any], fit: Callable[[Sequence[Any]], Fit], draws: int, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """90 % interval of every parameter, refitting on points drawn with replacement."""
    rng = np.random.default_rng(seed)
    values: dict[str, list[float]] = {}
    for _ in range(draws):
        chosen = [points[index] for index in rng.integers(0, len(points), len(points))]
        for name, value in fit(chosen).params.items():
            values.setdefault(name, []).append(value)
    return {name: (float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))) for name, drawn in values.items()}


def calibrate(name: str, data: MeasurementSet, cluster: ClusterSpec, base: Profile, draws: int = 20) -> Calibration:
    """Fit everything the measurements identify.

    Parameters
    ----------
    name : str
        Of the new profile.
    data : MeasurementSet
    cluster : ClusterSpec
        The hardware that was measured: its peaks, bandwidths and SM count.
    base : Profile
        Where values come from that the measurements do not identify; each is listed as not measured.
    draws : int
        Bootstrap refits.

    Raises
    ------
    ProfileError
        No matrix multiplies were measured: without them there is no profile.
    """
    gpu = cluster.gpu
    draft = _Draft()
    memory = draft.add("memory", memory_points(data), lambda points: fit_memory(points, gpu), 4, draws)
    efficiency = memory.params["efficiency"] if memory else base.memory.efficiency
    shares = memory.params if memory else {}
    sorts = {name: value for name, value in shares.items() if name not in ("efficiency", "kernel_floor_s")}
    floor = memory.params["kernel_floor_s"] if memory else base.gemm.kernel_floor_s
    multiplies, precision = gemm_points(data)

    def fit_multiplies(points: Sequence[GemmPoint]) -> Fit:
        return fit_gemm(points, gpu, precision, kernel_floor_s=floor, memory_efficiency=efficiency)

    gemm = draft.add("gemm", multiplies, fit_multiplies, 6, draws)
    if gemm is None:
        raise ProfileError("a profile needs at least 6 measured matrix multiplies; run flopcast calibrate run first")
    attention = draft.add(
        "attention", attention_points(data), lambda points: fit_attention(points, gpu, precision), 4, draws
    )
    nvlink = draft.add("nvlink", all_reduce_points(data), lambda points: fit_all_reduce(points, cluster), 6, draws)

    changes: dict[str, Any] = {
        "name": name,
        "gpu": gpu.name,
        "memory": base.memory.replace(efficiency=efficiency, operations=sorts),
        "gemm": base.gemm.replace(**gemm.params, kernel_floor_s=floor, measured_flop=_range(multiplies)),
        "residuals": {part: fit.median_error for part, fit in draft.fits.items()},
    }
    if attention:
        changes["attention"] = base.attention.replace(**attention.params)
    if nvlink:
        others = {}
        for operation in ("all_gather", "reduce_scatter"):
            points = collective_points(data, operation)
            own = draft.add(operation, points, partial(fit_all_reduce, cluster=cluster, operation=operation), 6, draws)
            others |= {operation: own.params} if own else {}
        changes["nvlink"] = base.nvlink.replace(**nvlink.params, operations=others)
    device = data.machine.get("device", "a machine the data do not name")
    missing = (*draft.missing, f"network and everything else not listed as fitted (as in profile {base.name!r})")
    changes["provenance"] = base.provenance.replace(
        method="micro-benchmarks on the machine itself",
        fitted_on=tuple(f"{count} {part} measurements on {device}" for part, count in draft.counts.items()),
        not_measured=missing,
        date=str(data.machine.get("date", "")),
    )
    return Calibration(base.replace(**changes), draft.fits, draft.counts, draft.intervals, missing)


def _range(points: Sequence[GemmPoint]) -> tuple[float, float]:
    flop = [2.0 * point.m * point.n * point.k for point in points]
    return min(flop), max(flop)


def gemm_points(data: MeasurementSet) -> tuple[list[GemmPoint], str]:
    """Measured multiplies, and their precision."""
    items = data.of("gemm")
    precisions = {_DTYPES.get(str(item.shape.get("dtype", "bfloat16")), "bf16") for item in items}
    if len(precisions) > 1:
        raise ProfileError(f"multiplies of several precisions ({', '.join(sorted(precisions))}); fit one at a time")
    points = [GemmPoint(*(item.number(axis) for axis in "mnk"), item.time_s) for item in items]
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


def collective_points(data: MeasurementSet, operation: str) -> list[AllReducePoint]:
    """Measured collectives of one kind inside the machine."""
    return [
        AllReducePoint(int(item.number("num_ranks")), item.number("nbytes"), item.time_s)
        for item in data.of("collective", operation=operation)
    ]


def all_reduce_points(data: MeasurementSet) -> list[AllReducePoint]:
    """Measured all-reduces inside the machine."""
    return collective_points(data, "all_reduce")
