"""What NVLink and the host's bus carry: collectives, sends, copies, and collectives that overlap with compute."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flopcast_calibration.fit.solve import Draw, Fit, Prior, columns, fit_to
from sim.arrays import Number
from sim.costs.collectives import COLLECTIVES, Fabric, all_to_all, send
from sim.network.placement import Group, nvlink_shares
from sim.specs import ClusterSpec
from sim.specs.profile import LinkParams, OperationParams

LINK_PRIOR: Prior = {
    "efficiency": Draw(0.78, 0.15, 0.02, 1.0),
    "base_latency_s": Draw(2e-5, 2e-5, 1e-6, 5e-3),
    "hop_latency_s": Draw(2e-6, 2e-6, 1e-7, 5e-3),
    "half_volume_bytes": Draw(5e6, 2e7, 1e3, 5e8),
    "exponent": Draw(0.8, 0.3, 0.2, 1.0),
}
#: Processes of one host over TCP: every message wakes two threads, which takes tens of microseconds.
LOOPBACK_PRIOR: Prior = {
    "efficiency": Draw(0.4, 0.2, 0.02, 1.0),
    "base_latency_s": Draw(1e-5, 1e-5, 1e-6, 5e-3),
    "hop_latency_s": Draw(5e-5, 5e-5, 1e-6, 5e-3),
    "half_volume_bytes": Draw(1e5, 1e5, 1e3, 5e8),
    "exponent": Draw(0.8, 0.3, 0.2, 1.0),
}
#: What switches that add reach (NVLS).
IN_SWITCH_SHARE: Prior = {"in_switch_efficiency": Draw(0.55, 0.2, 0.02, 1.0)}
P2P_PRIOR: Prior = {"p2p_efficiency": Draw(0.8, 0.2, 0.02, 1.0), "latency_s": Draw(2e-5, 2e-5, 1e-6, 5e-3)}
NETWORK_LATENCY: Prior = {"latency_s": Draw(2e-5, 10.0, 1e-6, 1e-1, log=True)}
HIDDEN_PRIOR: Prior = {"hidden_share": Draw(0.6, 0.3, 0.01, 1.0)}
COPY_PRIOR: Prior = {
    "to_device_bytes_per_s": Draw(2.5e10, 2.5e10, 1e8, 1e12),
    "to_host_bytes_per_s": Draw(2.5e10, 2.5e10, 1e8, 1e12),
    "copy_latency_s": Draw(1e-5, 1e-5, 1e-7, 1e-3),
}


def drawn_to(base: OperationParams, priors: Prior = LINK_PRIOR | IN_SWITCH_SHARE) -> Prior:
    """Priors of a link whose values are those of another where measurements say nothing of them.

    All-reduces that switches add up say nothing of a ring's bandwidth, for example, and gathers take rings.
    """
    known = {name: value for name in priors if (value := getattr(base, name, None)) is not None}
    return {name: draw._replace(value=known.get(name, draw.value)) for name, draw in priors.items()}


#: What is fitted to which cost function. Points of collectives and sends have the columns num_ranks, nbytes and time_s,
#: copies nbytes, to_device and time_s. A collective beside multiplies has gemm_s and collective_s of each alone, and
#: time_s of both.
TIMES = {**COLLECTIVES, "all_to_all": all_to_all}


def fit_all_reduce(
    points: pd.DataFrame,
    cluster: ClusterSpec,
    operation: str = "all_reduce",
    prior: Prior = LINK_PRIOR,
    *,
    in_switch: bool = False,
) -> Fit:
    """NVLink's LinkParams from measured all-reduces (or other collectives) inside a domain.

    in_switch : NVLink's switches can add (NVLS); the share of the link at which they do is fitted too.
    """
    shares = nvlink_shares(cluster.node.nvlink_topology, cluster.nvlink_domain_gpus)
    ranks, nbytes, time = columns(points, "num_ranks", "nbytes", "time_s")

    def predict(params: dict[str, float]) -> np.ndarray:
        link = LinkParams.model_construct(**params, p2p_efficiency=1.0, hidden_share=1.0)
        fabric = Fabric(link, link, cluster.node.nvlink_bandwidth_bytes_per_s, 1.0, shares)
        return np.asarray(TIMES[operation](nbytes, Group(ranks, ranks), fabric))

    if not in_switch:
        return fit_to(predict, time, {name: prior[name] for name in LINK_PRIOR})
    # Where rings are faster, what the switches reach decides nothing: start also from where they are the faster.
    return fit_to(predict, time, IN_SWITCH_SHARE | prior, starts=({}, {"in_switch_efficiency": 1.0}))


def faster_than_rings(points: pd.DataFrame, link_bytes_per_s: float) -> bool:
    """Whether all-reduces reach a bus bandwidth above the link's, which no ring can: switches add (NVLS)."""
    moved = 2 * (points.num_ranks - 1) / points.num_ranks * points.nbytes
    return bool((moved > link_bytes_per_s * points.time_s).any())


def fit_p2p(
    points: pd.DataFrame, link: LinkParams, rate: Number, prior: Prior = P2P_PRIOR, *, crosses: bool = False
) -> Fit:
    """`p2p_efficiency` of a link from measured sends.

    A send's own latency is fitted with it, so that small messages do not spoil the bandwidth; the residuals are those
    of `sim.costs.collectives.send`, which takes the latency of collectives.

    rate : of the link. [bytes/s]
    crosses : whether the link is the network, whose latency is uncertain by orders of magnitude, and not NVLink.
    """
    nbytes, time = columns(points, "nbytes", "time_s")
    prior = prior | NETWORK_LATENCY if crosses else prior

    def predict(params: dict[str, float]) -> np.ndarray:
        return np.asarray(params["latency_s"] + nbytes / (params["p2p_efficiency"] * rate))

    found = {"p2p_efficiency": fit_to(predict, time, prior).params["p2p_efficiency"]}
    fitted = link.model_copy(update=found)
    return Fit(found, np.log(np.asarray(send(nbytes, crosses, Fabric(fitted, fitted, rate, rate))) / time))


def fit_copy(points: pd.DataFrame) -> Fit:
    """Bandwidth between host and device in either direction, and a copy's latency."""
    nbytes, time = columns(points, "nbytes", "time_s")
    there = points["to_device"].to_numpy(bool)

    def predict(params: dict[str, float]) -> np.ndarray:
        bandwidth = np.where(there, params["to_device_bytes_per_s"], params["to_host_bytes_per_s"])
        return np.asarray(params["copy_latency_s"] + nbytes / bandwidth)

    return fit_to(predict, time, COPY_PRIOR)


def fit_hidden_share(points: pd.DataFrame) -> Fit:
    """Share of a collective's time that overlapped compute hides: it does not lengthen the two together.

    Of the shorter of the two, that share runs for free: both = gemm + collective − share · min(gemm, collective).
    """
    gemm, collective, time = columns(points, "gemm_s", "collective_s", "time_s")

    def predict(params: dict[str, float]) -> np.ndarray:
        return np.asarray(gemm + collective - params["hidden_share"] * np.minimum(gemm, collective))

    return fit_to(predict, time, HIDDEN_PRIOR)
