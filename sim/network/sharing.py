"""What switches leave of a card when all groups of one kind talk at once: one number for a layout, from its flows.

Groups of a kind work in step: tensor-parallel ones of all ranks in the same layer, replicas at the end of a step. Rings
go as fast as their slowest hop, so all flows of a kind are given the same rate, which is what its fullest link allows.
It is found on the links of the machine as it is built and routed, and counts only where switches have fewer cables up
than down, or flows are hashed: in other trees nothing is lost (`NetworkSpec.is_nonblocking`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from sim.arrays import IntArray
from sim.network.placement import Pattern
from sim.network.routing import switched_links
from sim.network.topology import Topology, build_topology
from sim.specs import ClusterSpec

_KEPT = 16
_AT_ONCE = 32_768
"""Flows routed at once: what they need in between stays in a processor's cache."""
_MOST_SHIFTS = 8
"""Partners of an all-to-all that stand for all of them, evenly spread over the group."""


@dataclass
class _Load:
    """Flows on the links of a machine: of all groups of a shape that lie on its first GPUs.

    by_class : (first link, links) -> flows on each, by class of links, so that counts stay in a cache; the first place
        is that of flows that take none of them.
    """

    shape: tuple[Any, ...] = ()
    num_gpus: int = 0
    by_class: dict[tuple[int, int], IntArray] = field(default_factory=dict)


@dataclass
class _Machine:
    """A cluster that is built, with what was asked of it, and the flows that were counted last."""

    cluster: ClusterSpec
    topology: Topology
    known: dict[tuple[Any, ...], float] = field(default_factory=dict)
    load: _Load = field(default_factory=_Load)


_machines: dict[int, _Machine] = {}
"""The last few clusters by identity."""


def card_share(
    cluster: ClusterSpec, groups: Callable[[], IntArray], pattern: Pattern, shape: tuple[int, int, int] | None = None
) -> float:
    """Return the share of a card's rate that every flow reaches where all groups of a kind talk at once.

    cluster : with switches, and cards that its GPUs share evenly.
    groups : lists the GPUs of every group, (groups, members).
    pattern : whom each member sends to.
    shape : size, stride and GPUs of groups of ranks that fill the machine in turn, which are counted without being
        listed.
    """
    machine = _machines.get(id(cluster))
    if machine is None or machine.cluster is not cluster:
        while len(_machines) >= _KEPT:
            del _machines[next(iter(_machines))]
        machine = _machines[id(cluster)] = _Machine(cluster, build_topology(cluster))
    known, topology = machine.known, machine.topology
    assert cluster.network is not None
    if cluster.network.is_nonblocking(level.name for level in topology.levels[:-1]):
        return 1.0
    if shape is not None and (shape, pattern) in known:
        return known[shape, pattern]
    if shape is not None and _alike(shape, pattern, topology.domain_gpus):
        return known.setdefault((shape, pattern), _grown(machine, shape, pattern))
    # Plans that cut differently often have the same groups.
    listed = groups()
    key = blake2b(listed[listed[:, 0].argsort()].tobytes()).digest(), listed.shape[1], pattern
    if key not in known:
        load = _Load()
        sources, targets, weight = flows_of(listed, pattern, topology.domain_gpus)
        _count(load, machine, sources, targets)
        known[key] = _fullest(load, machine, weight)
    return known[key]


def _alike(shape: tuple[int, int, int], pattern: Pattern, domain_gpus: int) -> bool:
    """Whether groups on more GPUs are those on fewer and some more of the same."""
    size, stride, _ = shape
    return pattern == "chain" or (pattern == "ring" and size * stride % domain_gpus == 0)


def _grown(machine: _Machine, shape: tuple[int, int, int], pattern: Pattern) -> float:
    """Return the share of groups of a shape: the flows of those on fewer GPUs, if they were counted last, and others.

    Searches ask for the same groups on hundreds of numbers of GPUs, the fewest first.
    """
    (size, stride, num_gpus), load = shape, machine.load
    like = (stride, pattern) if pattern == "chain" else (size, stride, pattern)
    if load.shape != like or load.num_gpus > num_gpus:
        load = machine.load = _Load(like)
    if pattern == "chain":
        first = np.arange(max(load.num_gpus - stride, 0), num_gpus - stride)
        groups = np.stack([first, first + stride], axis=1)
    else:
        blocks = np.arange(load.num_gpus, num_gpus).reshape(-1, size, stride)
        groups = blocks.transpose(0, 2, 1).reshape(-1, size)
    load.num_gpus = num_gpus
    if len(groups):
        _count(load, machine, *flows_of(groups, pattern, machine.topology.domain_gpus)[:2])
    return _fullest(load, machine, 1.0)


def flows_of(groups: IntArray, pattern: Pattern, domain_gpus: int) -> tuple[IntArray, IntArray, float]:
    """Return senders and receivers between NVLink domains, and the share of a card's bytes that each flow carries."""
    size, domain = groups.shape[1], groups // domain_gpus
    weight, members = 1.0, int((domain == domain[:, :1]).sum(axis=1).min())
    if pattern == "all_to_all":
        shifts = np.unique(np.linspace(1, size - 1, min(_MOST_SHIFTS, size - 1)).astype(int))
        sources = np.tile(groups, (1, len(shifts)))
        targets = np.concatenate([np.roll(groups, -shift, axis=1) for shift in shifts], axis=1)
    elif pattern == "chain":
        sources, targets = groups[:, :-1], groups[:, 1:]
    else:
        # Each member of a domain drives a ring of its own, over its own card.
        rings = groups.reshape(len(groups), -1, members if size % members == 0 else 1)
        sources, targets = rings, np.roll(rings, -1, axis=1)
    away = sources // domain_gpus != targets // domain_gpus
    if pattern == "all_to_all":
        # Those that stand for all carry what all others of a member's partners outside its domain get.
        weight = groups.size / max(1, int(away.sum())) * (size > members)
    return sources[away], targets[away], weight


def _count(load: _Load, machine: _Machine, sources: IntArray, targets: IntArray) -> None:
    """Add flows to a load."""
    network, topology = machine.cluster.network, machine.topology
    assert network is not None
    few = max(1, _AT_ONCE // network.subflows)
    for begin in range(0, len(sources), few):
        ends = sources[begin : begin + few], targets[begin : begin + few]
        for links in switched_links(
            topology, *ends, network.routing, subflows=network.subflows, proxy=network.rail_optimised
        ):
            most = int(links.max(initial=-1))
            for start, count in ((c.start, c.count) for c in topology.classes if c.start <= most < c.start + c.count):
                flows = np.bincount(np.maximum(links - (start - 1), 0), minlength=count + 1)
                load.by_class[start, count] = load.by_class.get((start, count), 0) + flows


def _fullest(load: _Load, machine: _Machine, weight: float) -> float:
    """Return the share of full speed at which the fullest of all links, alike within a class, is just full."""
    network, rate = machine.cluster.network, machine.cluster.inter_node_bandwidth_bytes_per_s
    assert network is not None
    most = {start: int(flows[1:].max()) for (start, _), flows in load.by_class.items()}
    capacity = {each.start: each.capacity_bytes_per_s for each in machine.topology.classes}
    shares = [capacity[start] / (flows * rate * weight / network.subflows) for start, flows in most.items() if flows]
    return float(min([1.0, *shares]))
