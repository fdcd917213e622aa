"""Fits: for each cost function of `sim.costs` the function that finds its parameters in measurements.

Few points are common (a data sheet of ten multiplies), so every fit is drawn weakly to prior values, in units of a
prior width; many points overrule them. Residuals are relative (logarithms of time), and outliers count less (soft L1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from sim.costs.collectives import COLLECTIVES, Fabric
from sim.costs.efficiency import attention_efficiency, gemm_time
from sim.network.nvlink import nvlink_shares
from sim.network.placement import Group
from sim.specs import ClusterSpec, GpuSpec
from sim.specs.profile import GemmParams, LinkParams

#: parameter -> (prior, prior width, lower bound, upper bound)
GEMM_PRIOR = {
    "max_efficiency": (0.82, 0.15, 0.3, 1.0),
    "k_overhead": (100.0, 100.0, 0.0, 1000.0),
    "tile_exponent": (0.2, 0.15, 0.0, 0.6),
    "wave_quantisation": (0.6, 0.4, 0.0, 1.0),
}
LINK_PRIOR = {
    "efficiency": (0.78, 0.15, 0.2, 1.0),
    "base_latency_s": (2e-5, 2e-5, 1e-6, 1e-4),
    "hop_latency_s": (2e-6, 2e-6, 1e-7, 5e-5),
    "half_volume_bytes": (5e6, 2e7, 1e3, 5e8),
    "exponent": (0.8, 0.3, 0.2, 1.0),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters and how far the fit is from its own data.

    residuals : log(predicted time / measured time) of every point.
    """

    params: dict[str, float]
    residuals: np.ndarray

    @property
    def median_error(self) -> float:
        """Median absolute relative error."""
        return float(np.median(np.abs(np.expm1(self.residuals))))


@dataclass(frozen=True, slots=True)
class GemmPoint:
    """One measured multiply: shape and time. [s]"""

    m: float
    n: float
    k: float
    time_s: float


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """One measured memory-bound kernel: bytes moved, time, and which sort it is. [bytes, s]"""

    nbytes: float
    time_s: float
    sort: str = "copy"


@dataclass(frozen=True, slots=True)
class AttentionPoint:
    """One measured fused attention: FLOPs it executes, sequence length, direction, time. [FLOP, tokens, s]"""

    flop: float
    length: float
    backward: bool
    time_s: float


@dataclass(frozen=True, slots=True)
class AllReducePoint:
    """One measured all-reduce over `num_ranks` GPUs of one NVLink domain. [bytes, s]"""

    num_ranks: int
    nbytes: float
    time_s: float


def fit_to(
    predict: Callable[[dict[str, float]], np.ndarray],
    measured: np.ndarray,
    prior: dict[str, tuple[float, float, float, float]],
    noise: float = 0.05,
) -> Fit:
    """Find the parameters whose predicted times are nearest to the measured ones.

    Parameters
    ----------
    predict : function
        Parameters by name -> times. [s]
    measured : array
        Times. [s]
    prior : dict
        Parameter -> (prior value, prior width, lower bound, upper bound).
    noise : float
        Relative noise of a measurement, which sets how much a point weighs against the prior.
    """
    names = list(prior)
    centre, width, low, high = (np.array([prior[name][i] for name in names]) for i in range(4))

    def misfit(x: np.ndarray) -> np.ndarray:
        return np.log(predict(dict(zip(names, x * width, strict=True))) / measured)

    def objective(x: np.ndarray) -> np.ndarray:
        pull = x - centre / width
        # Soft L1 on the data alone: scaled so that the solver's plain squares see it.
        r = misfit(x) / noise
        return np.concatenate([np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r**2) - 1)), pull])

    result = least_squares(objective, centre / width, bounds=(low / width, high / width), diff_step=1e-3)
    return Fit(dict(zip(names, (result.x * width).tolist(), strict=True)), misfit(result.x))


def fit_gemm(
    points: Sequence[GemmPoint],
    gpu: GpuSpec,
    precision: str,
    *,
    kernel_floor_s: float = 2e-6,
    memory_efficiency: float = 0.85,
) -> Fit:
    """Parameters of `sim.costs.efficiency.gemm_time` from measured multiplies of one GPU.

    Parameters
    ----------
    points : sequence of GemmPoint
    gpu, precision
        Whose peak, SMs and memory bandwidth apply.
    kernel_floor_s, memory_efficiency : float
        Held fixed: large multiplies do not identify them.
    """
    m, n, k, time = (np.array([getattr(point, name) for point in points]) for name in ("m", "n", "k", "time_s"))

    def predict(params: dict[str, float]) -> np.ndarray:
        gemm = GemmParams.model_construct(**params, kernel_floor_s=kernel_floor_s)
        return np.asarray(gemm_time(m, n, k, np.ones_like(m), precision, 2.0, gpu, gemm, memory_efficiency))

    return fit_to(predict, time, GEMM_PRIOR)


MEMORY_PRIOR = {
    "efficiency": (0.8, 0.2, 0.05, 1.0),
    "kernel_floor_s": (2e-6, 3e-6, 1e-7, 1e-4),
}
ATTENTION_PRIOR = {
    "forward_efficiency": (0.5, 0.3, 0.01, 1.0),
    "backward_efficiency": (0.4, 0.3, 0.01, 1.0),
    "half_length": (200.0, 300.0, 0.0, 4000.0),
}


def fit_memory(points: Sequence[MemoryPoint], gpu: GpuSpec) -> Fit:
    """Share of the memory bandwidth that each sort of kernel reaches, and the floor under the smallest of them.

    `efficiency` is the median of the sorts': what kernels get that were not measured.
    """
    nbytes, time = (np.array([getattr(point, name) for point in points]) for name in ("nbytes", "time_s"))
    sorts = sorted({point.sort for point in points})
    which = np.array([sorts.index(point.sort) for point in points])
    centre, width, low, _ = MEMORY_PRIOR["efficiency"]
    prior = {"kernel_floor_s": MEMORY_PRIOR["kernel_floor_s"]}
    # Above 1 where a kernel's data stay in a cache, far below where it computes more than it moves.
    prior |= dict.fromkeys(sorts, (centre, width, low / 10, 20.0))

    def predict(params: dict[str, float]) -> np.ndarray:
        share = np.array([params[sort] for sort in sorts])[which]
        return np.asarray(nbytes / (share * gpu.memory_bandwidth_bytes_per_s) + params["kernel_floor_s"])

    fit = fit_to(predict, time, prior)
    return Fit(
        {"efficiency": min(1.0, float(np.median([fit.params[sort] for sort in sorts]))), **fit.params}, fit.residuals
    )


def fit_attention(points: Sequence[AttentionPoint], gpu: GpuSpec, precision: str) -> Fit:
    """Parameters of `sim.costs.efficiency.attention_efficiency`, forward and backward."""
    flop, length, time = (np.array([getattr(point, name) for point in points]) for name in ("flop", "length", "time_s"))
    backward = np.array([point.backward for point in points])

    def predict(params: dict[str, float]) -> np.ndarray:
        share = np.where(backward, params["backward_efficiency"], params["forward_efficiency"])
        return np.asarray(flop / (gpu.peak(precision) * attention_efficiency(length, share, params["half_length"])))

    return fit_to(predict, time, ATTENTION_PRIOR)


def fit_all_reduce(points: Sequence[AllReducePoint], cluster: ClusterSpec, operation: str = "all_reduce") -> Fit:
    """NVLink's LinkParams from measured all-reduces (or all-gathers, reduce-scatters) inside a node."""
    shares = nvlink_shares(cluster.node.nvlink_topology, cluster.nvlink_domain_gpus)
    ranks, nbytes, time = (
        np.array([getattr(p, name) for p in points], dtype=float) for name in ("num_ranks", "nbytes", "time_s")
    )

    def predict(params: dict[str, float]) -> np.ndarray:
        link = LinkParams.model_construct(**params, p2p_efficiency=1.0, hidden_share=1.0)
        fabric = Fabric(link, link, cluster.node.nvlink_bandwidth_bytes_per_s, 1.0, shares)
        return np.asarray(COLLECTIVES[operation](nbytes, Group(ranks, ranks), fabric))

    return fit_to(predict, time, LINK_PRIOR)
