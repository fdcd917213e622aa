"""What switches leave of a card when all groups of one kind talk at once: one number for a layout, from its flows.

Groups of a kind work in step: tensor-parallel ones of all ranks in the same layer, replicas at the end of a step. Rings
go as fast as their slowest hop, so all flows of a kind are given the same rate, which is what its fullest link allows.
It is found on the links of the machine as it is built and routed, and counts only where switches have fewer cables up
than down, or flows are hashed; in a tree of full bisection whose flows use all paths nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sim.arrays import IntArray
from sim.network.lattice import Lattice
from sim.network.ranks import Nodes
from sim.network.routing import switched_links
from sim.network.topology import Topology, build_topology
from sim.specs import ClusterSpec
from sim.specs.network import NetworkSpec

Pattern = Literal["ring", "all_to_all", "chain"]
"""Every member to the next one, to all others, or to the next but for the last."""

_KEPT = 16
_AT_ONCE = 32_768
"""Flows routed at once: what they need in between stays in a processor's cache."""
_MOST_SHIFTS = 8
"""Partners of an all-to-all that stand for all of them, evenly spread over the group."""


@dataclass(slots=True)
class Switches:
    """The links between nodes of a machine, and what was asked of them.

    even : no layout loses anything: all flows use all paths, and no switch has fewer cables up than it needs.
    """

    topology: Topology
    cluster: ClusterSpec
    network: NetworkSpec
    card_bytes_per_s: float
    even: bool
    known: dict[tuple[Lattice, Pattern], float] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: ClusterSpec) -> Switches | None:
        """Those of a cluster; None where it does not describe them, or its GPUs do not share cards evenly.

        Raises
        ------
        SpecError
            They cannot be built: too few ports, or more nodes than they join.
        """
        if cluster.network is None or cluster.node.gpus_per_node % cluster.node.nics_per_node:
            return None
        kept = _machines.get(id(cluster))
        if kept is not None and kept[0] is cluster:
            return kept[1]
        topology = build_topology(cluster)
        cards = cluster.inter_node_bandwidth_bytes_per_s
        even = cluster.network.routing == "adaptive" and _full_bisection(topology)
        found = cls(topology, cluster, cluster.network, cards, even)
        while len(_machines) >= _KEPT:
            del _machines[next(iter(_machines))]
        _machines[id(cluster)] = cluster, found
        return found

    def card_share(self, size: int, stride: int, num_gpus: int, pattern: Pattern = "ring") -> float:
        """Share of a card's rate that every flow reaches where all groups of a kind talk at once.

        Parameters
        ----------
        size, stride : int
            Members of a group, and how many GPUs apart they are; groups follow each other through `num_gpus`.
        """
        domain, whole = self.topology.domain_gpus, not self.cluster.fragmentation
        if self.even or size == 1 or (size * stride <= domain and domain % (size * stride) == 0 and whole):
            return 1.0
        return self.share_of(Lattice(((size, stride),), num_gpus), pattern)

    def share_of(self, lattice: Lattice, pattern: Pattern) -> float:
        """The same of groups that lie on a lattice of the job's places."""
        if self.even:
            return 1.0
        key = (lattice, pattern)
        if key not in self.known:
            gpus = Nodes.of(self.cluster).gpu_of_place(lattice.num_gpus)
            self.known[key] = self._fullest(*self._flows(gpus[lattice.groups()], pattern))
        return self.known[key]

    def _flows(self, groups: IntArray, pattern: Pattern) -> tuple[IntArray, IntArray, float]:
        """Senders and receivers between domains, and what share of a card's bytes each flow carries; GPUs by group."""
        size = groups.shape[1]
        domain = groups // self.topology.domain_gpus
        if pattern == "all_to_all":
            inside = int((domain == domain[:, :1]).sum(axis=1).min())
            shifts = np.unique(np.linspace(1, size - 1, min(_MOST_SHIFTS, size - 1)).astype(int))
            sources = np.tile(groups, (1, len(shifts)))
            targets = np.concatenate([np.roll(groups, -shift, axis=1) for shift in shifts], axis=1)
            away = sources // self.topology.domain_gpus != targets // self.topology.domain_gpus
            # Those that stand for all carry what all others of a member's partners outside its domain get.
            weight = groups.size / max(1, int(away.sum())) * (size - inside > 0)
            return sources[away], targets[away], weight
        if pattern == "chain":
            sources, targets = groups[:, :-1].ravel(), groups[:, 1:].ravel()
        else:
            # Each member of a domain drives a ring of its own, over its own card.
            members = int((domain == domain[:, :1]).sum(axis=1).min())
            each = members if size % members == 0 else 1
            rings = groups.reshape(len(groups), -1, each)
            sources, targets = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
        away = sources // self.topology.domain_gpus != targets // self.topology.domain_gpus
        return sources[away], targets[away], 1.0

    def _fullest(self, sources: IntArray, targets: IntArray, weight: float) -> float:
        """The share of full speed at which the fullest of all links is just full."""
        if not sources.size:
            return 1.0
        topology, network = self.topology, self.network
        subflows = network.subflows if network.routing == "ecmp" else 1
        # The first place is that of flows that take no link of a column.
        flows = np.zeros(topology.num_links + 1, dtype=np.int64)
        few = _pairs_at_once(topology, subflows)
        for begin in range(0, len(sources), few):
            some = slice(begin, begin + few)
            for links in switched_links(
                topology, sources[some], targets[some], network.routing, subflows=subflows, proxy=network.rail_optimised
            ):
                flows += np.bincount(links + 1, minlength=len(flows))
        load = flows[1:] * self.card_bytes_per_s * weight / subflows
        used = load > 0
        return float(min(1.0, np.min(topology.capacity[used] / load[used], initial=1.0)))


def _pairs_at_once(topology: Topology, subflows: int) -> int:
    """Pairs of GPUs that are routed together; counting on very many links pays for more flows only."""
    return max(1, max(_AT_ONCE, topology.num_links // 4) // subflows)


_machines: dict[int, tuple[ClusterSpec, Switches]] = {}
"""Of the last few clusters, by identity."""


def card_share(cluster: ClusterSpec, size: int, stride: int, num_gpus: int, pattern: Pattern = "ring") -> float:
    """As of `Switches`; 1 where the cluster does not describe its switches."""
    switches = Switches.of(cluster)
    return 1.0 if switches is None else switches.card_share(size, stride, num_gpus, pattern)


def share_of(cluster: ClusterSpec, lattice: Lattice, pattern: Pattern) -> float:
    """As of `Switches`; 1 where the cluster does not describe its switches."""
    switches = Switches.of(cluster)
    return 1.0 if switches is None else switches.share_of(lattice, pattern)


def _full_bisection(topology: Topology) -> bool:
    """Whether every group of switches has as much bandwidth up as down."""
    sending = np.full((topology.num_nodes, topology.rails), topology.nics_per_node / topology.rails)
    rate = next(links.capacity_bytes_per_s for links in topology.classes if links.name == "nic")
    for level in topology.levels[:-1]:
        sums = np.add.reduceat(sending, np.arange(0, len(sending), level.below), axis=0)
        if (sums * rate > level.trunk_bytes_per_s * (1 + 1e-9)).any():
            return False
        sending = sums
    return True
