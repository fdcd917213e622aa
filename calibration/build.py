"""Measurements become a profile: every value with data is fitted, the rest comes from a base, and all have sources.

Multiplies, memory-bound kernels and attention are one device's; NVLink's and the network's values come from collectives
inside and between NVLink domains. Logs of one of them alone fit that, and the rest stays the base's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from flopcast_calibration import points
from flopcast_calibration.fit import kernels, links
from flopcast_calibration.fit.solve import LARGE_BYTES, PRIORS, Fit, Prior, bootstrap, drawn_intervals, unseen_error
from flopcast_calibration.measurement import MeasurementSet
from sim.errors import ProfileError
from sim.specs import ClusterSpec, GpuSpec, Profile
from sim.specs.presets import peak_in_16_bits
from sim.specs.profile import LinkParams, OperationParams

#: Collectives with values of their own in a profile; the others take the all-reduce's.
OWN_VALUES = ("all_gather", "reduce_scatter", "all_to_all")
#: Multiplies of all GPUs of a node at once.
TOGETHER = "gemm on all GPUs"
#: Begins the names of the network's fits of single operations.
NETWORK = "network "
#: Begins the names of the fits of what groups reach that use the network at once.
SHARED = "network shared"
_LEAST_SIZES, _LEAST_SENDS = 6, 3
BANDWIDTHS = {
    "efficiency": "rings and exchanges reach",
    "in_switch_efficiency": "switches that add (NVLS) reach",
    "p2p_efficiency": "sends reach",
}
"""What large messages tell of a link, however few they are, in words."""


Points = Callable[[str], pd.DataFrame]
"""Points of the operation of a name."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile, its fits, and what could not be fitted.

    left_out : measurements that no fit takes, and why.
    """

    profile: Profile
    fits: dict[str, Fit]
    not_measured: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """What is known so far of a profile under construction."""

    draws: int
    most_error: float = math.inf
    say: Callable[[str], None] = lambda words: None
    fits: dict[str, Fit] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    refused: dict[str, float] = field(default_factory=dict)

    def add(
        self, name: str, found: pd.DataFrame, fit: Callable[..., Fit], least: int, prior: Prior | None = None
    ) -> dict[str, float]:
        """Parameters fitted to the points found, bootstrapped; none if these are too few, or too far from it.

        prior : of a link; fewer points are fitted drawn to it, if one of them is large.
        """
        few = len(found) < least
        if few and not (prior and (found.nbytes >= LARGE_BYTES).any()):
            large = f", or one of {LARGE_BYTES / 1e6:.0f} MB and more" if prior else ""
            said = f"{name} ({len(found)} measurements; give at least {least} sizes{large})"
            self.missing.append(said if len(found) else name)
            return {}
        result = fit(found, prior=prior) if few else fit(found)
        if result.median_error > self.most_error:
            self.refused[name] = result.median_error
            return {}

        def noted_fit(points: pd.DataFrame, **given: Prior) -> Fit:
            self.say(f"fitting {name}")
            return fit(points, **given)

        if few and prior:
            self.missing.append(f"{name}: latency and small messages (give {least} sizes or more)")
            more = {"intervals": drawn_intervals(found, noted_fit, prior, self.draws), "short": True}
        else:
            more = {"intervals": bootstrap(found, noted_fit, self.draws), "unseen": unseen_error(found, fit)}
        self.fits[name] = replace(result, count=len(found), **more)
        return result.params


def calibrate(
    name: str,
    data: MeasurementSet,
    cluster: ClusterSpec,
    base: Profile,
    draws: int = 20,
    most_error: float = math.inf,
    say: Callable[[str], None] = lambda words: None,
) -> Calibration:
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
    most_error : float
        A fit whose median error on its own data is above this is not taken: the base's values stand.
    say : callable
        Told what is fitted, before every fit.

    Raises
    ------
    ProfileError
        No part of a profile could be fitted, or a measurement is beyond what the hardware can do.
    """
    points.check_rates(data, cluster)
    draft = _Draft(draws, most_error, say)
    changes = _kernels(draft, data, cluster, base)
    linked = points.link_points(data, cluster)
    nvlink = changes["nvlink"] = _nvlink(draft, data, linked[linked.domains == 1], cluster, base.nvlink)
    changes["network"] = _network(draft, data, linked[linked.domains > 1], cluster, base.replace(nvlink=nvlink))
    launch = draft.add("launch", points.launch_points(data), kernels.fit_launch, 1)
    graphs = points.launch_points(data, graph=True)
    in_graphs = draft.add("graph launch", graphs, kernels.fit_graph_launch, 1) if len(graphs) else {}
    copies = draft.add("copies", points.copy_points(data), links.fit_copy, 4)
    changes["host"] = base.host.replace(**launch, **in_graphs, **copies)
    if not draft.fits and draft.refused:
        listed = ", ".join(f"{part} {error:.0%}" for part, error in draft.refused.items())
        raise ProfileError(
            f"nothing could be fitted: half of the measurements are further from the fit than {most_error:.0%} "
            f"({listed}); is the machine right (--node {cluster.name}, --network)? --force takes the fits all the same"
        )
    if not draft.fits:
        # Where a part was measured too little, that is all there is to say.
        begun = [each for each in draft.missing if "measurements; give" in each]
        listed, unused = ", ".join(begun or draft.missing), "; ".join(left_out(data, cluster))
        remedy = "; measure it with flopcast calibrate run, or give logs that have it"
        why = f" (not used: {unused})" if unused else remedy
        raise ProfileError(f"nothing could be fitted, for want of measurements: {listed}{why}")
    device = data.machine.get("device", "a machine the data do not name")
    software = f", torch {data.machine['torch']}" if "torch" in data.machine else ""
    far = (f"{part} (measured, but {error:.0%} from its fit)" for part, error in draft.refused.items())
    missing = (*far, *draft.missing, f"all else (as in profile {base.name!r})")
    changes |= {
        "name": name,
        "gpu": base.gpu if base.gpu in cluster.gpu.name else cluster.gpu.name,
        "residuals": {part: fit.median_error for part, fit in draft.fits.items()},
        "unseen": {part: fit.unseen for part, fit in draft.fits.items() if fit.unseen is not None},
        "provenance": base.provenance.replace(
            method=f"micro-benchmarks on the machine itself{software}"
            if "device_kind" in data.machine
            else "given measurements",
            fitted_on=tuple(f"{fit.count} {part} measurements on {device}" for part, fit in draft.fits.items()),
            not_measured=missing,
            date=str(data.machine.get("date", "")),
            of_datasheet=base.provenance.of_datasheet and "gemm" not in draft.fits,
            **_network_provenance(draft, data, cluster),
        ),
    }
    return Calibration(base.replace(**changes), draft.fits, missing, left_out(data, cluster))


def _kernels(draft: _Draft, data: MeasurementSet, cluster: ClusterSpec, base: Profile) -> dict[str, Any]:
    """Sections of the profile about what one device computes."""
    gpu = cluster.gpu
    memory = draft.add("memory", points.memory_points(data), partial(kernels.fit_memory, gpu=gpu), 4)
    efficiency = memory.get("efficiency", base.memory.efficiency)
    floor = memory.get("kernel_floor_s", base.gemm.kernel_floor_s)
    sorts = {name: share for name, share in memory.items() if name not in ("efficiency", "kernel_floor_s")}
    (precision, multiplies), *others = points.gemm_points(data).items() or [("bf16", points.multiplies_of(()))]
    bounds = base.gemm.alignment
    fit_one = partial(
        kernels.fit_gemm, gpu=gpu, precision=precision, kernel_floor_s=floor, memory_efficiency=efficiency
    )
    met = kernels.bounds_met(multiplies, kernels.NUMBER_BYTES[precision], bounds)
    gemm = draft.add("gemm", multiplies, partial(fit_one, alignment=bounds, fitted=met), 6)
    attention = base.attention.replace(**_attention(draft, data, gpu, precision, base))
    if not memory and not gemm:
        return {"attention": attention}
    flop = 2.0 * multiplies.m * multiplies.n * multiplies.k * multiplies.batch
    measured = {"measured_flop": (float(flop.min()), float(flop.max())), "precisions": {}} if gemm else {}
    fitted = kernels.with_fitted(base.gemm, gemm).replace(kernel_floor_s=floor, **measured)
    share = partial(kernels.fit_max_efficiency, gpu=gpu, gemm=fitted, memory_efficiency=efficiency)
    shares = {}
    for name, found in others if gemm else ():
        one = draft.add(f"gemm {name}", found, partial(share, precision=name), 3)
        shares |= {name: one["max_efficiency"]} if one else {}
    busy = points.together_points(data, precision)
    if gemm and len(busy):
        # A node whose GPUs are all busy is hotter and draws more power than one with a single GPU at work.
        fitted = fitted.replace(**draft.add(TOGETHER, busy, partial(share, precision=precision), 1))
    alone = bool(gemm) and data.machine.get("device_kind") == "cuda"  # logs do not say
    board = {"max_power_w": gpu.max_power_w, "peak_flop_per_s": peak_in_16_bits(gpu)}
    return {
        "memory": base.memory.replace(efficiency=efficiency, operations=sorts or base.memory.operations),
        "gemm": fitted.replace(precisions=fitted.precisions | shares),
        "clock": base.clock.replace(**board) if gemm and base.clock else base.clock,
        "attention": attention,
        "fitted_gpus": cluster.node.gpus_per_node if TOGETHER in draft.fits else 1 if alone else base.fitted_gpus,
    }


def _attention(draft: _Draft, data: MeasurementSet, gpu: GpuSpec, precision: str, base: Profile) -> dict[str, Any]:
    """Values of attention, and of kernels that carry a state; none where neither was measured."""
    attended, carried = points.attention_points(data), points.state_points(data)
    found: dict[str, Any] = dict(
        draft.add("attention", attended, partial(kernels.fit_attention, gpu=gpu, precision=precision), 4)
    )
    if found:
        found["measured_length"] = (attended["length"].min(), attended["length"].max())
    found |= draft.add("state", carried, partial(kernels.fit_state, gpu=gpu), 2) if len(carried) else {}
    kernel, speeds = points.attention_kernel(data), points.attention_speeds(data)
    if kernel is not None:  # kernels that were not measured keep their speed relative to one that was
        known = {version: base.attention.speed(version) for version in (*base.attention.versions, kernel)}
        speeds = {version: speed / known[kernel] for version, speed in known.items()} | speeds | {kernel: 1.0}
    return {**found, "versions": speeds} if found else {}


def _nvlink(
    draft: _Draft, data: MeasurementSet, inside: pd.DataFrame, cluster: ClusterSpec, base: LinkParams
) -> LinkParams:
    """The profile's NVLink: collectives inside a domain, sends, and what compute leaves of them."""
    link = base
    prior = PRIORS["loopback"] if data.machine.get("device_kind") == "cpu" else links.drawn_to(base)
    fit_one = partial(links.fit_all_reduce, cluster=cluster, prior=prior)
    measured = partial(_of, inside)
    found = measured("all_reduce")
    # Switches add where the base knows that they do, or where a ring cannot be as fast.
    known, fast = base.in_switch_efficiency, links.faster_than_rings(found, cluster.node.nvlink_bandwidth_bytes_per_s)
    adds = cluster.node.nvlink_topology == "switch" and (known is not None or fast)
    reduces = draft.add("nvlink", found, partial(fit_one, in_switch=adds), _LEAST_SIZES, prior)
    if known is not None and not fast and (share := reduces.get("in_switch_efficiency", known)) < known:
        draft.missing.append(
            "whether NVLink's switches add, or rings ran (no all-reduce has a bus bandwidth above the link's; "
            f"in_switch_efficiency became {share:.2f}, and was {known:.2f})"
        )
    own = _own_values(
        draft, measured, fit_one, "", bool(reduces), lambda name: links.drawn_to(base.of(name), links.LINK)
    )
    link = link.replace(**reduces, operations=_kept_operations(base, bool(reduces)) | own)
    fit_sends = partial(links.fit_p2p, link=link, rate=cluster.node.nvlink_bandwidth_bytes_per_s)
    sends = draft.add("send", measured("send"), fit_sends, _LEAST_SENDS, PRIORS["send"])
    hidden = draft.add("interference", measured(points.BESIDE), links.fit_hidden_share, 3)
    return link.replace(**sends, **hidden)


def _of(linked: pd.DataFrame, operation: str) -> pd.DataFrame:
    return linked[linked.operation == operation]


def _network(
    draft: _Draft, data: MeasurementSet, outside: pd.DataFrame, cluster: ClusterSpec, base: Profile
) -> LinkParams:
    """The profile's network, of what was measured between NVLink domains; NVLink is `base`'s, fitted already."""
    if not any(points.domains_of(item, cluster) > 1 for item in data.measurements):
        draft.missing.append("network between NVLink domains (only one domain was measured)")
        return base.network
    node = cluster.node
    between, together = (partial(_of, outside[(outside.groups > 1) == many]) for many in (False, True))
    fit_one = partial(links.fit_network, node=node, profile=base)
    alone = between("all_reduce")
    network = base.network
    reduces = draft.add(
        "network", alone, fit_one, _LEAST_SIZES, links.drawn_to(network, links.NETWORK | PRIORS["trees"])
    )
    own = _own_values(
        draft, between, fit_one, NETWORK, bool(reduces), lambda name: links.drawn_to(network.of(name), links.NETWORK)
    )
    # What a collective reaches in a job was not measured.
    in_jobs = {str(name): each.job_efficiency for name, each in network.operations.items()}
    own = {
        name: {"base_latency_s": network.base_latency_s, "job_efficiency": in_jobs.get(name), **found}
        for name, found in own.items()
    }
    operations = _kept_operations(network, bool(reduces)) | own
    values: dict[str, Any] = dict(reduces)
    if reduces:
        values["two_domain_trees"] = bool(reduces.get("two_domain_trees", network.two_domain_trees))
        for name in ("shared_efficiency", "job_efficiency"):
            # A benchmark of one group bounds what training reaches, alone and beside others, until that is measured.
            if (known := getattr(network, name)) is not None:
                values[name] = min(known, reduces["efficiency"])
    network = network.replace(**values, operations=operations)
    network = _shared(draft, together, partial(links.fit_shared, node=node), base, network)
    sends = _network_sends(draft, between, together, cluster, network)
    if sends and not reduces:
        # No collective that was not measured reaches more of a card than one message stream does.
        names = ("efficiency", "shared_efficiency", "job_efficiency", "dispatch_efficiency")
        known = {name: value for name in names if (value := getattr(network, name)) is not None}
        network = network.replace(**{name: min(value, sends["p2p_efficiency"]) for name, value in known.items()})
    hidden = draft.add("network interference", between(points.BESIDE), links.fit_hidden_share, 3)
    at = {"hidden_at_bytes_per_s": cluster.inter_node_bandwidth_bytes_per_s} if hidden else {}
    return network.replace(**sends, **hidden, **at)


def _network_sends(
    draft: _Draft, between: Points, together: Points, cluster: ClusterSpec, network: LinkParams
) -> dict[str, float]:
    """`p2p_efficiency` of many sends at once, as a stage's GPUs send; of one at a time where only that was measured."""
    rate = cluster.inter_node_bandwidth_bytes_per_s
    fit = partial(links.fit_p2p, link=network, rate=rate, crosses=True)
    if len(many := together("send")) >= _LEAST_SENDS:
        return draft.add("network sends", many, fit, _LEAST_SENDS)
    found = draft.add("network sends", between("send"), fit, _LEAST_SENDS, PRIORS["send"])
    if found:
        draft.missing.append("sends between nodes many at a time (one at a time was measured)")
    return found


def _shared(draft: _Draft, together: Points, fit: Callable[..., Fit], base: Profile, network: LinkParams) -> LinkParams:
    """The network with what groups reach that use it at once: in all-reduces, and in collectives with own values."""
    reduces = draft.add(SHARED, together("all_reduce"), partial(fit, profile=base.replace(network=network)), 3)
    network = network.replace(**reduces)
    own: dict[str, OperationParams] = {str(name): params for name, params in network.operations.items()}
    for operation in OWN_VALUES:
        found = together(operation)
        if len(found) and operation not in own:
            draft.missing.append(f"{operation} of many groups at once (of one group it was not measured)")
        elif len(found):
            fit_one = partial(fit, profile=base.replace(network=network), operation=operation)
            own[operation] = own[operation].replace(**draft.add(f"{SHARED} {operation}", found, fit_one, 3))
    return network.replace(operations=own)


def _own_values(
    draft: _Draft,
    measured: Points,
    fit: Callable[..., Fit],
    link: str,
    wanted: bool,
    prior: Callable[[str], Prior],
) -> dict[str, dict[str, float]]:
    """Values of the collectives that were measured, beside all-reduces or alone.

    wanted : those that were not measured are listed as missing: all-reduces of this link were.
    prior : of a collective on this link, to which few sizes are drawn.
    """
    own = {}
    for operation in OWN_VALUES:
        points_of = measured(operation)
        if wanted and operation != "all_to_all" and not len(points_of):
            draft.missing.append(f"{link}{operation} (taken as all-reduces)")
        elif wanted or len(points_of):
            fit_one = partial(fit, operation=operation)
            found = draft.add(f"{link}{operation}", points_of, fit_one, _LEAST_SIZES, prior(operation))
            own |= {operation: found} if found else {}
    return own


def _kept_operations(link: LinkParams, reduces: bool) -> dict[str, Any]:
    """What the base knows of single collectives that stays where they are not measured.

    reduces : all-reduces were measured on this machine; then gathers are taken to be as those. All-to-alls, which have
    little in common with reductions, stay in any case.
    """
    return {name: params for name, params in link.operations.items() if not reduces or name == "all_to_all"}


def _network_provenance(draft: _Draft, data: MeasurementSet, cluster: ClusterSpec) -> dict[str, Any]:
    """The machine between whose domains the network was measured, if it was."""
    if not any(part.startswith("network") for part in draft.fits):
        return {}
    between = [item for item in data.measurements if points.domains_of(item, cluster) > 1]
    most = max(int(item.shape.get("num_ranks", 1)) * int(item.shape.get("groups", 1)) for item in between)
    nodes = max(int(item.shape.get("num_nodes", 1)) for item in between)
    return {
        "network_measured_on": f"{nodes} nodes of {data.machine.get('device', cluster.gpu.name)}",
        "network_bandwidth_bytes_per_s": cluster.inter_node_bandwidth_bytes_per_s,
        "network_gpus": most,
    }


def left_out(data: MeasurementSet, cluster: ClusterSpec) -> tuple[str, ...]:
    """Measurements that no fit takes, counted, each with the reason."""
    reasons: Counter[str] = Counter()
    for item in data.measurements:
        operation = str(item.shape.get("operation"))
        why = points.why_not(item, data, cluster)
        if item.kind == "grouped" or (item.kind == "collective" and operation not in (*links.TIMES, "send")):
            why = "which no part of an estimate uses"  # as journals of earlier releases have them
        if why:
            label = operation if item.kind == "collective" else item.kind
            reasons[f"{label} {why}"] += 1
    return tuple(f"{count} {reason}" for reason, count in reasons.items())
