"""What one device computes: matrix multiplies, memory-bound kernels, attention, and the host time of launching them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import pandas as pd

from flopcast_calibration.fit.solve import PRIORS, Draw, Fit, Prior, columns, fit_to
from sim.arrays import Number
from sim.costs.compute import alignment_rate, attention_efficiency, gemm_time
from sim.specs import GpuSpec
from sim.specs.profile import AlignmentRate, GemmParams
from sim.work.operations import Layout

_RATE_WIDTH = 0.3
"""How far a bound's rate may lie from that of the GPU it was taken from, as a prior has it."""
LEAST_OF_BOUND = 3
"""Multiplies that a bound's rate is fitted to at least."""
#: Bytes of an operand's number.
NUMBER_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}


Points = pd.DataFrame
"""Measurements, one a row, in SI units. Their columns:

of multiplies : m, n, k, batch, layout (as in `Kernel`), time_s.
of memory-bound kernels : nbytes, sort, time_s.
of fused attention : flop (that it executes), length, backward, columns (that a head is padded to), time_s.
of launches : kernels (that do nothing to speak of, in a row), framework (through modules and autograd), time_s.
"""


def fit_gemm(
    points: Points,
    gpu: GpuSpec,
    precision: str,
    *,
    kernel_floor_s: float = 2e-6,
    memory_efficiency: float = 0.85,
    alignment: Mapping[str, AlignmentRate] | None = None,
    fitted: Collection[str] = (),
) -> Fit:
    """Parameters of `sim.costs.compute.gemm_time` from measured multiplies of one GPU.

    `gpu` and `precision` set the peak, SMs and memory bandwidth. `kernel_floor_s` [s] and `memory_efficiency` are held
    fixed: large multiplies do not identify them. `alignment` holds the bounds by name, with the rates that these are
    drawn to; those of `fitted` (`bounds_met`) are parameters too, the others keep theirs.
    """
    start = {name: draw.value for name, draw in PRIORS["gemm"].items()}
    gemm = GemmParams(**start, kernel_floor_s=kernel_floor_s, alignment=dict(alignment or {}))
    return _fit_multiplies(points, gpu, precision, gemm, memory_efficiency, PRIORS["gemm"] | _rates_prior(gemm, fitted))


def fit_alignment(points: Points, gpu: GpuSpec, precision: str, gemm: GemmParams, memory_efficiency: float) -> Fit:
    """Rates of the bounds of `gemm` that unaligned multiplies meet; all else stays."""
    prior = _rates_prior(gemm, bounds_met(points, NUMBER_BYTES[precision], gemm.alignment))
    return _fit_multiplies(points, gpu, precision, gemm, memory_efficiency, prior)


def _fit_multiplies(
    points: Points, gpu: GpuSpec, precision: str, gemm: GemmParams, memory_efficiency: float, prior: Prior
) -> Fit:
    """The parameters of a prior from measured multiplies, all else as in `gemm`."""
    (time,) = columns(points, "time_s")

    def predict(params: dict[str, float]) -> np.ndarray:
        return gemm_times(points, gpu, precision, with_fitted(gemm, params), memory_efficiency)

    return fit_to(predict, time, prior)


def _rates_prior(gemm: GemmParams, fitted: Collection[str]) -> Prior:
    return {name: Draw(gemm.alignment[name].rate, _RATE_WIDTH, 0.01, 1.0) for name in fitted}


def gemm_times(points: Points, gpu: GpuSpec, precision: str, gemm: GemmParams, memory_efficiency: float) -> np.ndarray:
    """Predicted times of measured multiplies, each in its layout. [s]"""

    def times(layout: Layout, *shape: np.ndarray) -> Number:
        return gemm_time(*shape, precision, NUMBER_BYTES[precision], gpu, gemm, memory_efficiency, layout=layout)

    return _by_layout(points, times)


def _by_layout(points: Points, value: Callable[..., Number]) -> np.ndarray:
    """A value of every multiply, from those of one layout at a time."""
    shapes, values = np.array(columns(points, "m", "n", "k", "batch")), np.empty(len(points))
    layouts = points["layout"].to_numpy()
    for layout in set(layouts.tolist()):
        values[layouts == layout] = value(layout, *shapes[:, layouts == layout])
    return values


def with_fitted(gemm: GemmParams, params: Mapping[str, float]) -> GemmParams:
    """The values with fitted ones in their places, and rates in those of their bounds."""
    own = {name: value for name, value in params.items() if name in GemmParams.model_fields}
    bounds = {
        name: bound.model_copy(update={"rate": params.get(name, bound.rate)}) for name, bound in gemm.alignment.items()
    }
    return gemm.model_copy(update={**own, "alignment": bounds})


def bounds_met(points: Points, width: float, alignment: Mapping[str, AlignmentRate]) -> tuple[str, ...]:
    """Names of the bounds that are the lowest for enough of the measured multiplies to be fitted to them."""

    def rates(without: str = "") -> np.ndarray:
        bounds = [bound for name, bound in alignment.items() if name != without]
        return _by_layout(points, lambda layout, *shape: alignment_rate(*shape, width, layout, bounds))

    return tuple(name for name in alignment if np.sum(rates() < rates(name)) >= LEAST_OF_BOUND)


def fit_max_efficiency(points: Points, gpu: GpuSpec, precision: str, gemm: GemmParams, memory_efficiency: float) -> Fit:
    """`max_efficiency` of multiplies in another precision, whose tiles and waves are those of `gemm`."""
    prior = {"max_efficiency": PRIORS["gemm"]["max_efficiency"]}
    return _fit_multiplies(points, gpu, precision, gemm, memory_efficiency, prior)


def fit_memory(points: Points, gpu: GpuSpec) -> Fit:
    """Share of the memory bandwidth that each sort of kernel reaches, and the floor under the smallest of them.

    `efficiency` is the median of the sorts': what kernels get that were not measured.
    """
    nbytes, time = columns(points, "nbytes", "time_s")
    sorts, which = np.unique(points["sort"].to_numpy(str), return_inverse=True)
    centre, width, low, *_ = PRIORS["memory"]["efficiency"]
    prior = {"kernel_floor_s": PRIORS["memory"]["kernel_floor_s"]}
    # Above 1 where a kernel's data stay in a cache, far below where it computes more than it moves.
    prior |= dict.fromkeys(sorts.tolist(), Draw(centre, width, low / 10, 20.0))

    def predict(params: dict[str, float]) -> np.ndarray:
        share = np.array([params[sort] for sort in sorts])[which]
        return np.asarray(nbytes / (share * gpu.memory_bandwidth_bytes_per_s) + params["kernel_floor_s"])

    fit = fit_to(predict, time, prior)
    usual = min(1.0, float(np.median([fit.params[sort] for sort in sorts])))
    return Fit({"efficiency": usual, **fit.params}, fit.residuals, fit.misfit)


def fit_attention(points: Points, gpu: GpuSpec, precision: str) -> Fit:
    """Parameters of `sim.costs.compute.attention_efficiency`, forward and backward.

    Heads that are all as wide do not say what others reach: `half_columns` is fitted only where they differ.
    """
    flop, length, time, wide = columns(points, "flop", "length", "time_s", "columns")
    backward = points["backward"].to_numpy(bool)
    alike = {"half_columns"} if len(set(wide)) < 2 else set()
    prior = {name: draw for name, draw in PRIORS["attention"].items() if name not in alike}

    def predict(params: dict[str, float]) -> np.ndarray:
        share = np.where(backward, params["backward_efficiency"], params["forward_efficiency"])
        half = params.get("half_columns", 0.0)
        reached = attention_efficiency(length, share, params["half_length"], wide, half)
        return np.asarray(flop / (gpu.peak(precision) * reached))

    return fit_to(predict, time, prior)


def fit_state(points: Points, gpu: GpuSpec) -> Fit:
    """Speed of the kernels that carry a state, over an H100's share of peak."""
    flop, time = columns(points, "flop", "time_s")
    ratios = flop / (gpu.peak("bf16") * time)
    speed = float(np.median(ratios))
    return Fit({"state_speed": speed}, np.log(ratios / speed))


def fit_launch(points: Points) -> Fit:
    """Host time a kernel: Python, autograd, dispatch and driver where that was measured, a bare launch otherwise."""
    through = points[points["framework"].astype(bool)]
    kernels, time = columns(through if len(through) else points, "kernels", "time_s")
    each = float(np.median(time / kernels))
    return Fit({"kernel_launch_s": each}, np.log(each * kernels / time))


def fit_graph_launch(points: Points) -> Fit:
    """Time between kernels that a CUDA graph launches, the shortest kernel's own included."""
    found = fit_launch(points)
    return Fit({"graph_launch_s": found.params["kernel_launch_s"]}, found.residuals)
