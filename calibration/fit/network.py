"""What the network between NVLink domains carries: collectives alone and many at a time, and sends."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flopcast_calibration.fit.links import IN_SWITCH_SHARE, TIMES
from flopcast_calibration.fit.solve import Draw, Fit, Prior, columns, fit_to
from sim.costs.collectives import Fabric, in_switch_all_reduce
from sim.network.placement import Group
from sim.specs import NodeSpec, Profile
from sim.specs.profile import LinkParams

#: Latencies and sizes are uncertain by orders of magnitude: InfiniBand, Ethernet in a cloud, a loopback.
NETWORK_PRIOR: Prior = {
    "efficiency": Draw(0.7, 0.3, 0.02, 1.0),
    "hop_latency_s": Draw(2e-5, 10.0, 1e-6, 1e-1, log=True),
    "half_volume_bytes": Draw(3e6, 50.0, 1e2, 1e9, log=True),
    "exponent": Draw(0.8, 0.3, 0.2, 1.0),
}
TREES: Prior = {"two_domain_trees": Draw(1.0, 1.0, 0.0, 1.0)}
"""Whether all-reduces between two domains go through trees, where too few sizes tell it."""
#: Reductions in NVLink's switches (NVLS), their ramp.
IN_SWITCH_PRIOR: Prior = IN_SWITCH_SHARE | {"in_switch_half_volume_bytes": Draw(5e7, 2e8, 1e3, 5e9)}
#: Residuals without a mechanism over those with it, below which it is taken to be absent.
_CLEARLY = 0.8
SMALL_BYTES = 2.0**16
"""Messages up to this size take as long as their latency."""
#: As a factor: how well the smallest messages tell it.
_LATENCY_WIDTH = 1.3
SHARED_PRIOR: Prior = {"shared_efficiency": Draw(0.6, 0.3, 0.02, 1.0)}


COLUMNS = ("num_ranks", "per_domain", "network_bytes_per_s", "nbytes", "time_s")
"""Points of the network: a collective or send over NVLink domains with `per_domain` GPUs each, the network's rate per
GPU and direction, and `groups`, those that used it at once, each with `num_ranks` members."""


def fit_network(
    points: pd.DataFrame,
    node: NodeSpec,
    profile: Profile,
    operation: str = "all_reduce",
    prior: Prior = NETWORK_PRIOR,
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

    def predict(params: dict[str, float]) -> np.ndarray:
        nvlink = profile.nvlink
        if in_switch:
            ramp = {"half_volume_bytes": params["in_switch_half_volume_bytes"], "exponent": 1.0}
            nvlink = nvlink.model_copy(update={"in_switch_efficiency": params["in_switch_efficiency"], **ramp})
        values = {name: params[name] for name in NETWORK_PRIOR}
        trees = bool(params.get("two_domain_trees", 1.0))
        network = _one_group(profile.network, values | {"two_domain_trees": trees})
        return np.asarray(collective(nbytes, group, Fabric(nvlink, network, nvlink_rate, rate)))

    # Which algorithm is the fastest changes with the values, and with it what decides: there are several valleys.
    starts = [
        {"efficiency": efficiency, "half_volume_bytes": half}
        for efficiency, half in ((0.15, 1e6), (0.5, 5e7), (0.9, 1e6))
    ]
    trees_known = prior.get("two_domain_trees")
    prior = (
        {name: prior[name] for name in NETWORK_PRIOR}
        | _latency(points, operation, profile)
        | (IN_SWITCH_PRIOR if in_switch else {})
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
    low, high = NETWORK_PRIOR["hop_latency_s"].low, NETWORK_PRIOR["hop_latency_s"].high
    return {"hop_latency_s": Draw(min(high, max(low, float(shown.min()))), _LATENCY_WIDTH, low, high, log=True)}


def fit_shared(points: pd.DataFrame, node: NodeSpec, profile: Profile, operation: str = "all_reduce") -> Fit:
    """`shared_efficiency`: what each card keeps when groups that are not the whole job use the network at once.

    All else is the profile's network, measured with one group at a time; what that reaches is the most.
    """
    ranks, per_domain, rate, nbytes, time = columns(points, *COLUMNS)
    group = Group(ranks, per_domain, np.ones_like(ranks, dtype=bool))
    alone = profile.network.of(operation)
    drawn = SHARED_PRIOR["shared_efficiency"]
    prior = drawn._replace(value=min(drawn.value, alone.efficiency), high=alone.efficiency)

    def predict(params: dict[str, float]) -> np.ndarray:
        network = alone.model_copy(update={**params, "operations": {}})
        fabric = Fabric(profile.nvlink, network, node.nvlink_bandwidth_bytes_per_s, rate)
        return np.asarray(TIMES[operation](nbytes, group, fabric))

    return fit_to(predict, time, {"shared_efficiency": prior})


def _one_group(network: LinkParams, values: dict[str, float | bool]) -> LinkParams:
    """The link with these values for every operation, one group on it at a time."""
    unknown = {"shared_efficiency": None, "job_efficiency": None, "dispatch_efficiency": None, "operations": {}}
    return network.model_copy(update=values | unknown)
