"""What NVLink, the network between its domains and the host's bus carry: collectives, sends, copies, and overlap."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flopcast_calibration.fit.solve import PRIORS, Draw, Fit, Prior, columns, fit_to
from sim.arrays import Number
from sim.costs.collectives import COLLECTIVES, Fabric, all_to_all, in_switch_all_reduce, send
from sim.network.placement import Group, nvlink_shares
from sim.specs import ClusterSpec, NodeSpec, Profile
from sim.specs.profile import LinkParams, OperationParams

LINK, NETWORK = PRIORS["link"], PRIORS["network"]


def drawn_to(base: OperationParams, priors: Prior = LINK | PRIORS["in_switch"]) -> Prior:
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
    prior: Prior = LINK,
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
        return fit_to(predict, time, {name: prior[name] for name in LINK})
    # Where rings are faster, what the switches reach decides nothing: start also from where they are the faster.
    return fit_to(predict, time, PRIORS["in_switch"] | prior, starts=({}, {"in_switch_efficiency": 1.0}))


def faster_than_rings(points: pd.DataFrame, link_bytes_per_s: float) -> bool:
    """Whether all-reduces reach a bus bandwidth above the link's, which no ring can: switches add (NVLS)."""
    moved = 2 * (points.num_ranks - 1) / points.num_ranks * points.nbytes
    return bool((moved > link_bytes_per_s * points.time_s).any())


def fit_p2p(
    points: pd.DataFrame, link: LinkParams, rate: Number, prior: Prior = PRIORS["send"], *, crosses: bool = False
) -> Fit:
    """`p2p_efficiency` of a link from measured sends.

    A send's own latency is fitted with it, so that small messages do not spoil the bandwidth; the residuals are those
    of `sim.costs.collectives.send`, which takes the latency of collectives.

    rate : of the link. [bytes/s]
    crosses : whether the link is the network, whose latency is uncertain by orders of magnitude, and not NVLink.
    """
    nbytes, time = columns(points, "nbytes", "time_s")
    prior = prior | PRIORS["network_send"] if crosses else prior

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

    return fit_to(predict, time, PRIORS["copies"])


def fit_hidden_share(points: pd.DataFrame) -> Fit:
    """Share of a collective's time that overlapped compute hides: it does not lengthen the two together.

    Of the shorter of the two, that share runs for free: both = gemm + collective − share · min(gemm, collective).
    """
    gemm, collective, time = columns(points, "gemm_s", "collective_s", "time_s")

    def predict(params: dict[str, float]) -> np.ndarray:
        return np.asarray(gemm + collective - params["hidden_share"] * np.minimum(gemm, collective))

    return fit_to(predict, time, PRIORS["hidden"])


#: Residuals without a mechanism over those with it, below which it is taken to be absent.
_CLEARLY = 0.8
SMALL_BYTES = 2.0**16
"""Messages up to this size take as long as their latency."""
#: As a factor: how well the smallest messages tell it.
_LATENCY_WIDTH = 1.3

COLUMNS = ("num_ranks", "per_domain", "network_bytes_per_s", "nbytes", "time_s")
"""Points of the network: a collective or send over NVLink domains with `per_domain` GPUs each, the network's rate per
GPU and direction, and `groups`, those that used it at once, each with `num_ranks` members."""


def fit_network(
    points: pd.DataFrame,
    node: NodeSpec,
    profile: Profile,
    operation: str = "all_reduce",
    prior: Prior = NETWORK,
    *,
    in_switch: bool = False,
    always: bool = False,
) -> Fit:
    """The network's LinkParams from measured collectives between domains, one group at a time; NVLink is the profile's.

    Whether all-reduces between two domains go through trees, which cross half as often as rings, is the library's
    choice on that network (NVIDIA/nccl:src/graph/tuning.cc); it shows in the times, and what explains them better is
    taken, unless the prior says it.

    in_switch : NVLink's switches add: how fast, and how their bandwidth grows with size, is fitted too.
    always : they do so at every point, instead of where that is the fastest.
    """
    collective = in_switch_all_reduce if always else TIMES[operation]
    ranks, per_domain, rate, nbytes, time = columns(points, *COLUMNS)
    group, nvlink_rate = Group(ranks, per_domain), node.nvlink_bandwidth_bytes_per_s
    one_group = {"shared_efficiency": None, "job_efficiency": None, "dispatch_efficiency": None, "operations": {}}

    def predict(params: dict[str, float]) -> np.ndarray:
        nvlink = profile.nvlink
        if in_switch:
            ramp = {"half_volume_bytes": params["in_switch_half_volume_bytes"], "exponent": 1.0}
            nvlink = nvlink.model_copy(update={"in_switch_efficiency": params["in_switch_efficiency"], **ramp})
        values = {name: params[name] for name in NETWORK}
        trees = bool(params.get("two_domain_trees", 1.0))
        network = profile.network.model_copy(update=values | {"two_domain_trees": trees} | one_group)
        return np.asarray(collective(nbytes, group, Fabric(nvlink, network, nvlink_rate, rate)))

    # Which algorithm is the fastest changes with the values, and with it what decides: there are several valleys.
    starts = [
        {"efficiency": efficiency, "half_volume_bytes": half}
        for efficiency, half in ((0.15, 1e6), (0.5, 5e7), (0.9, 1e6))
    ]
    trees_known = prior.get("two_domain_trees")
    prior = (
        {name: prior[name] for name in NETWORK}
        | _latency(points, operation, profile)
        | (PRIORS["in_switch"] | PRIORS["in_switch_ramp"] if in_switch else {})
    )
    if operation != "all_reduce" or always or not np.any(np.asarray(group.num_domains) == 2):
        return fit_to(predict, time, prior, starts=starts)
    found = []
    for trees in ({"two_domain_trees": value} for value in (1.0, 0.0)):
        if trees_known and trees["two_domain_trees"] != round(trees_known.value):
            continue
        fit = fit_to(lambda params, trees=trees: predict(params | trees), time, prior, starts=starts)
        found.append(Fit(fit.params | trees, fit.residuals, lambda params: np.log(predict(params) / time)))
    if len(found) == 1:
        return found[0]
    with_trees, without = found
    two = np.asarray(group.num_domains) == 2
    missed = [np.abs(fit.residuals[two]).sum() for fit in (with_trees, without)]
    return without if missed[1] < _CLEARLY * missed[0] else with_trees


def _latency(points: pd.DataFrame, operation: str, profile: Profile) -> Prior:
    """The latency that the smallest messages show, where small ones were measured.

    With groups of one size alone, the latency and a bandwidth that saturates late cannot be told apart from the times;
    the latency is what other numbers of nodes are predicted by.
    """
    small = points[points.nbytes <= SMALL_BYTES]
    if small.empty:
        return {}
    ranks, per_domain, _, _, time = columns(small, *COLUMNS)
    domains = np.asarray(Group(ranks, per_domain).num_domains, dtype=float)
    ways = 2.0 if operation == "all_reduce" else 1.0
    steps = ways * (np.ceil(np.log2(domains)) if operation == "all_reduce" else domains - 1.0)
    inside = ways * (per_domain - 1) * profile.nvlink.hop_latency_s
    shown = (time - profile.network.base_latency_s - inside) / steps
    low, high = NETWORK["hop_latency_s"].low, NETWORK["hop_latency_s"].high
    return {"hop_latency_s": Draw(min(high, max(low, float(shown.min()))), _LATENCY_WIDTH, low, high, log=True)}


def fit_shared(points: pd.DataFrame, node: NodeSpec, profile: Profile, operation: str = "all_reduce") -> Fit:
    """`shared_efficiency`: what each card keeps when groups that are not the whole job use the network at once.

    All else is the profile's network, measured with one group at a time; what that reaches is the most.
    """
    ranks, per_domain, rate, nbytes, time = columns(points, *COLUMNS)
    group = Group(ranks, per_domain, np.ones_like(ranks, dtype=bool))
    alone = profile.network.of(operation)
    drawn = PRIORS["shared"]["shared_efficiency"]
    prior = drawn._replace(value=min(drawn.value, alone.efficiency), high=alone.efficiency)

    def predict(params: dict[str, float]) -> np.ndarray:
        network = alone.model_copy(update={**params, "operations": {}})
        fabric = Fabric(profile.nvlink, network, node.nvlink_bandwidth_bytes_per_s, rate)
        return np.asarray(TIMES[operation](nbytes, group, fabric))

    return fit_to(predict, time, {"shared_efficiency": prior})
