"""What switches leave of a card when all groups of one kind talk at once: one number for a layout, from its flows.

Groups of a kind work in step: tensor-parallel ones of all ranks in the same layer, replicas at the end of a step. Rings
go as fast as their slowest hop, so all flows of a kind are given the same rate, which is what its fullest link allows.
It is found on the links of the machine as it is built and routed, and counts only where switches have fewer cables up
than down, or flows are hashed: in other trees nothing is lost (`NetworkSpec.is_nonblocking`). The share is one over the
load factor of the flows, a lower bound on the time of their delivery (Greenberg, Leiserson 1986, MIT-LCS-TM-307).

The first 16,384 GPUs stand for a larger machine: all that they send is routed, and the rest is built like them.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import prod

import numpy as np

from sim.arrays import IntArray
from sim.network.placement import Pattern
from sim.network.routing import switched_links
from sim.network.topology import Topology, build_topology
from sim.specs import ClusterSpec

_KEPT = 16
_AT_ONCE = 32_768
"""Flows routed at once: what they need in between stays in a processor's cache."""
_MOST_SENDERS = 16_384
"""GPUs whose flows are routed, and what is missing of their last part of the machine below the top switches."""
_MOST_FLOWS = 2**18
"""Flows of all groups' all-to-alls that are routed. Where there are more, some partners of each member stand for all of
them: at least eight, evenly spread over the group."""
_machines: dict[int, tuple[ClusterSpec, Topology, dict[object, float]]] = {}
"""The last few clusters by identity: each with its machine, and the shares that are known there."""


def card_share(
    cluster: ClusterSpec, groups: Callable[[], IntArray], pattern: Pattern, shape: tuple[int, int, int] | None = None
) -> float:
    """Return the share of a card's rate that every flow reaches where all groups of a kind talk at once.

    cluster : with switches, and cards that its GPUs share evenly.
    groups : lists the GPUs of every group, (groups, members).
    pattern : whom each member sends to.
    shape : size, stride and GPUs of groups of ranks that fill the machine in turn, by which they are known again.
    """
    if id(cluster) not in _machines or _machines[id(cluster)][0] is not cluster:
        while len(_machines) >= _KEPT:
            del _machines[next(iter(_machines))]
        _machines[id(cluster)] = (cluster, build_topology(cluster), {})
    _, topology, known = _machines[id(cluster)]
    assert cluster.network is not None
    inner = [level.name for level in topology.levels[:-1]]
    if not inner or cluster.network.is_nonblocking(inner):  # under a single switch no links between switches are shared
        return 1.0
    if shape is None or (shape, pattern) not in known:
        sources, targets, weight = flows_of(groups(), pattern, topology.domain_gpus)
        part = topology.gpus_per_node * prod(level.below for level in topology.levels[:-1])
        routed = np.flatnonzero(sources < -(-_MOST_SENDERS // part) * part)
        routed = routed[np.lexsort((targets[routed], sources[routed]))]
        # Plans that cut differently often have the same flows.
        key = blake2b(sources[routed].tobytes() + targets[routed].tobytes()).digest(), weight
        if key not in known:
            known[key] = _share_of(sources[routed], targets[routed], weight, cluster, topology)
        known[shape, pattern] = known[key]
    return known[shape, pattern]


def _share_of(sources: IntArray, targets: IntArray, weight: float, cluster: ClusterSpec, topology: Topology) -> float:
    """Return the share of full speed at which the fullest of all links is just full."""
    network, rate = cluster.network, cluster.inter_node_bandwidth_bytes_per_s
    assert network is not None
    first, few = topology.start(topology.levels[0].name, "up"), max(1, _AT_ONCE // network.subflows)
    flows = np.zeros(topology.num_links - first + 1, dtype=np.int64)  # of the links between switches
    for begin in range(0, len(sources), few):
        ends = sources[begin : begin + few], targets[begin : begin + few]
        for links in switched_links(
            topology, *ends, network.routing, subflows=network.subflows, proxy=network.rail_optimised
        ):
            places = np.maximum(links - first + 1, 0)  # flows that take no link of a level count first
            counted = np.bincount(places)
            flows[: len(counted)] += counted
    busy = np.flatnonzero(flows[1:])
    shares = topology.capacity[first + busy] / (flows[1:][busy] * rate * weight / network.subflows)
    return float(min(1.0, shares.min(initial=1.0)))


def flows_of(groups: IntArray, pattern: Pattern, domain_gpus: int) -> tuple[IntArray, IntArray, float]:
    """Return senders and receivers between NVLink domains, and the share of a card's bytes that each flow carries."""
    size, domain = groups.shape[1], groups // domain_gpus
    weight, members = 1.0, int((domain == domain[:, :1]).sum(axis=1).min())
    if pattern == "all_to_all":
        partners = min(size - 1, max(8, _MOST_FLOWS // groups.size))
        shifts = np.unique(np.linspace(1, size - 1, partners).astype(int))
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
