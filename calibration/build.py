"""From measurements to a profile: every fit there is data for, the rest from a base profile, provenance for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from calibration import points
from calibration.fit import (
    LINK_PRIOR,
    LOOPBACK_PRIOR,
    Fit,
    GemmPoint,
    bootstrap,
    fit_all_reduce,
    fit_attention,
    fit_copy,
    fit_gemm,
    fit_hidden_share,
    fit_launch,
    fit_memory,
    fit_p2p,
    unseen_error,
)
from calibration.measurement import MeasurementSet
from sim.costs.collectives import COLLECTIVES
from sim.errors import ProfileError
from sim.specs import ClusterSpec, Profile
from sim.specs.profile import LinkParams

#: Collectives with values of their own in a profile; the others take the all-reduce's.
OWN_VALUES = ("all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile, its fits, and what could not be fitted.

    intervals : 90 % bootstrap interval of every fitted parameter, by fit and parameter.
    left_out : measurements that no fit takes, and why.
    """

    profile: Profile
    fits: dict[str, Fit]
    counts: dict[str, int]
    intervals: dict[str, dict[str, tuple[float, float]]]
    not_measured: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """What is known so far of a profile under construction."""

    draws: int
    fits: dict[str, Fit] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, found: Sequence[Any], fit: Callable[[Sequence[Any]], Fit], least: int) -> dict[str, float]:
        """Parameters fitted to the points found, if there are enough of them, bootstrapped."""
        if len(found) < least:
            self.missing.append(f"{name} ({len(found)} measurements, {least} needed)")
            return {}
        result = self.fits[name] = fit(found)
        self.counts[name] = len(found)
        self.intervals[name] = bootstrap(found, fit, self.draws)
        unseen = unseen_error(found, fit)
        self.unseen |= {} if unseen is None else {name: unseen}
        return result.params


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
    draft = _Draft(draws)
    changes = _kernels(draft, data, cluster, base)
    changes["nvlink"] = _links(draft, data, cluster, base.nvlink)
    launch = draft.add("launch", points.launch_points(data), fit_launch, 1)
    copies = draft.add("copies", points.copy_points(data), fit_copy, 4)
    changes["host"] = base.host.replace(**launch, **copies)
    device = data.machine.get("device", "a machine the data do not name")
    software = f", torch {data.machine['torch']}" if "torch" in data.machine else ""
    missing = (*draft.missing, f"network and everything else not listed as fitted (as in profile {base.name!r})")
    changes |= {
        "name": name,
        "gpu": cluster.gpu.name,
        "residuals": {part: fit.median_error for part, fit in draft.fits.items()},
        "unseen": draft.unseen,
        "provenance": base.provenance.replace(
            method=f"micro-benchmarks on the machine itself{software}",
            fitted_on=tuple(f"{count} {part} measurements on {device}" for part, count in draft.counts.items()),
            not_measured=missing,
            date=str(data.machine.get("date", "")),
        ),
    }
    profile = base.replace(**changes)
    return Calibration(profile, draft.fits, draft.counts, draft.intervals, missing, left_out(data, cluster))


def _kernels(draft: _Draft, data: MeasurementSet, cluster: ClusterSpec, base: Profile) -> dict[str, Any]:
    """Sections of the profile about what one device computes."""
    gpu = cluster.gpu
    memory = draft.add("memory", points.memory_points(data), partial(fit_memory, gpu=gpu), 4)
    efficiency = memory.get("efficiency", base.memory.efficiency)
    floor = memory.get("kernel_floor_s", base.gemm.kernel_floor_s)
    sorts = {name: share for name, share in memory.items() if name not in ("efficiency", "kernel_floor_s")}
    multiplies, precision = points.gemm_points(data)
    fit_multiplies = partial(fit_gemm, gpu=gpu, precision=precision, kernel_floor_s=floor, memory_efficiency=efficiency)
    gemm = draft.add("gemm", multiplies, fit_multiplies, 6)
    if not gemm:
        raise ProfileError("a profile needs at least 6 measured matrix multiplies; run flopcast calibrate run first")
    attended = points.attention_points(data)
    attention = draft.add("attention", attended, partial(fit_attention, gpu=gpu, precision=precision), 4)
    lengths = [point.length for point in attended]
    reach = {"measured_length": (min(lengths), max(lengths))} if attention else {}
    return {
        "memory": base.memory.replace(efficiency=efficiency, operations=sorts),
        "gemm": base.gemm.replace(**gemm, kernel_floor_s=floor, measured_flop=_range(multiplies)),
        "attention": base.attention.replace(versions={}, **attention, **reach),
    }


def _links(draft: _Draft, data: MeasurementSet, cluster: ClusterSpec, base: LinkParams) -> LinkParams:
    """The profile's NVLink: collectives, sends, and what compute leaves of them."""
    link = base
    prior = LOOPBACK_PRIOR if data.machine.get("device_kind") == "cpu" else LINK_PRIOR
    fit_one = partial(fit_all_reduce, cluster=cluster, prior=prior)
    reduces = draft.add("nvlink", points.collective_points(data, "all_reduce", cluster), fit_one, 6)
    if reduces:
        others = {}
        for operation in OWN_VALUES:
            found = points.collective_points(data, operation, cluster)
            own = draft.add(operation, found, partial(fit_one, operation=operation), 6)
            others |= {operation: own} if own else {}
        link = link.replace(**reduces, operations=others)
    sends = draft.add("send", points.send_points(data, cluster), partial(fit_p2p, cluster=cluster, nvlink=link), 3)
    hidden = draft.add("interference", points.pair_points(data, cluster), fit_hidden_share, 3)
    return link.replace(**sends, **hidden)


def left_out(data: MeasurementSet, cluster: ClusterSpec) -> tuple[str, ...]:
    """Measurements that no fit takes, counted, each with the reason."""
    reasons: Counter[str] = Counter()
    for item in data.measurements:
        operation = str(item.shape.get("operation"))
        why = points.why_not(item, data, cluster)
        if item.kind == "collective" and operation not in COLLECTIVES and operation != "send":
            why = "which no part of an estimate uses yet"
        if why:
            label = operation if item.kind == "collective" else item.kind
            reasons[f"{label} {why}"] += 1
    return tuple(f"{count} {reason}" for reason, count in reasons.items())


def _range(multiplies: Sequence[GemmPoint]) -> tuple[float, float]:
    flop = [2.0 * point.m * point.n * point.k * point.batch for point in multiplies]
    return min(flop), max(flop)
