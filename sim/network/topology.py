"""The machine as a graph of links: NVLink, PCIe, network cards, and the cables of every level of switches.

A level has groups of switches. The cables from one group up are numbered in a row, and those of all groups that share
a parent group are dealt to its switches in turn: cable x goes to switch x mod S. Where a switch has as many cables up
as the level above has switches, each gets one; where fewer, the level above falls into planes by itself.

A topology is a few numbers; arrays over links (capacity, endpoints) are computed from them on demand. Links of one
class are numbered in a row, so that a link's number is arithmetic and nothing is searched.

Every group of switches also has two *trunks*, all its cables in one direction together: the link that a flow sees which
is spread evenly over them (ideal adaptive routing). A simulation uses trunks or cables, not both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sim.arrays import IntArray
from sim.errors import SpecError
from sim.specs import ClusterSpec
from sim.specs.hardware import LevelSpec


@dataclass(frozen=True, slots=True)
class Level:
    """One level of switches, built.

    groups : groups of switches, one for each rail and each block of nodes; the top is one group.
    below : blocks of the level below (nodes, under a leaf) that a group joins.
    switches : in a group.
    uplinks : cables up from each switch; 0 at the top.
    down_ports : cables down from each switch.
    cable_bytes_per_s : of one cable up. Where oversubscription leaves a fraction of a cable, all are a little slower.
    """

    name: str
    groups: int
    below: int
    switches: int
    uplinks: int
    down_ports: int
    ports: int
    cable_bytes_per_s: float

    @property
    def cables_per_group(self) -> int:
        """Cables from one group up."""
        return self.switches * self.uplinks

    @property
    def trunk_bytes_per_s(self) -> float:
        """All cables from one group up together, per direction. [bytes/s]"""
        return self.cables_per_group * self.cable_bytes_per_s


def build_levels(cluster: ClusterSpec, num_nodes: int) -> tuple[Level, ...]:
    """Return the fewest levels of a cluster's switches that join all cards of `num_nodes` nodes, leaf first."""
    assert cluster.network is not None
    specs, nics = cluster.network.levels, cluster.node.nics_per_node
    # inter_node_bandwidth may be given instead of following from the cards: then they are as fast as it says.
    rate = cluster.inter_node_bandwidth_bytes_per_s * cluster.node.gpus_per_node / nics
    rails = nics if cluster.network.rail_optimised else 1
    below: list[Level] = []
    problem = ""
    for place, (name, spec) in enumerate(specs.items()):
        is_last = place + 1 == len(specs)
        child = below[-1] if below else None
        most = _most_below(list(specs.values())[place:], child, nics // rails)
        top = _top(name, spec, child, most, num_nodes, nics, rails, is_last)
        if isinstance(top, Level):
            return (*below, top)
        problem = top
        if not is_last:
            below.append(_inner(name, spec, child, num_nodes, nics, rails, rate))
    top, stated = list(specs.items())[-1]
    remedy = "lower num_nodes, add a level above, or take switches with more ports"
    if stated.switches:
        remedy = (
            f"network.levels.{top}.switches says {stated.switches:,}; state another number, or none (null), "
            "which takes the fewest that suffice"
        )
    raise SpecError(
        f"{num_nodes:,} nodes are more than the {len(specs)} levels of the network join: {problem}; {remedy}"
    )


def _most_below(specs: list[LevelSpec], child: Level | None, cards: int) -> float:
    """Return how many groups, or nodes, the first of these levels joins at most where it is the top.

    As the top it needs no ports for cables up, and joins more than `below` states for the level in the whole design.
    Where no level from here on is oversubscribed, that changes no bandwidth. Else what is stated is built.
    """
    spec, is_inner = specs[0], child is not None and len(specs) > 1
    if any(each.oversubscription > 1.0 for each in specs):
        return _joined(spec, child, cards)
    return math.inf if is_inner else spec.below or math.inf


def _joined(spec: LevelSpec, child: Level | None, cards: int) -> int:
    """Return what one group of a level under the top joins, where `cards` of a node go to one leaf."""
    return spec.below or (_ports_down(spec) if child else max(1, _ports_down(spec) // cards))


def _ports_down(spec: LevelSpec) -> int:
    """Return the ports down of a switch that has cables up."""
    return int(spec.ports * spec.oversubscription / (1 + spec.oversubscription) + 1e-9)


def _inner(
    name: str, spec: LevelSpec, child: Level | None, num_nodes: int, nics: int, rails: int, rate: float
) -> Level:
    """Return a level under the top, whose switches have cables both down and up."""
    down_ports, joined = _ports_down(spec), _joined(spec, child, nics // rails)
    if child:
        child_blocks = child.groups // rails
        blocks, joined = math.ceil(child_blocks / joined), min(joined, child_blocks)
        cables, rate = joined * child.cables_per_group, child.cable_bytes_per_s
        switches = spec.switches or _even(math.ceil(cables / down_ports), child.cables_per_group)
    else:  # leaves are cabled for all the nodes they can take, even where some are missing
        blocks, cables, switches = math.ceil(num_nodes / joined), joined * (nics // rails), 1
    down = math.ceil(cables / switches)
    uplinks = math.ceil(cables / switches / spec.oversubscription - 1e-9)
    if down + uplinks > spec.ports:
        raise SpecError(
            f"a {name} switch needs {down} ports down and {uplinks} up at oversubscription {spec.oversubscription:g}, "
            f"but has {spec.ports}; lower network.levels.{name}.below or raise its oversubscription or its switches"
        )
    cable_bytes_per_s = cables * rate / spec.oversubscription / (switches * uplinks)
    return Level(name, blocks * rails, joined, switches, uplinks, down, spec.ports, cable_bytes_per_s)


def _top(
    name: str, spec: LevelSpec, child: Level | None, most: float, num_nodes: int, nics: int, rails: int, is_last: bool
) -> Level | str:
    """Return the level that joins everything, or why this one cannot; `most` as of `_most_below`."""
    joined = child.groups if child else num_nodes
    if joined > most:
        what = f"groups of {child.name} switches" if child else "nodes"
        return f"network.levels.{name}.below allows {most:,} {what}, not {joined:,}"
    if not child:
        cards = num_nodes * nics
        if rails > 1:
            return f"one {name} switch cannot join {rails} rails (network.rail_optimised)"
        if cards > spec.ports:
            return f"one {name} switch cannot join {cards:,} cards"
        return Level(name, 1, num_nodes, 1, 0, cards, spec.ports, 0.0)
    cables = child.groups * child.cables_per_group
    # A number of switches is stated for the role the level has in the whole design.
    switches = (spec.switches if is_last else None) or _even(math.ceil(cables / spec.ports), child.cables_per_group)
    down = math.ceil(cables / switches)
    if down > spec.ports:
        return f"each of {switches} {name} switches would need {down:,} ports and has {spec.ports}"
    if switches > child.cables_per_group:
        return (
            f"{cables:,} cables go up to {switches:,} {name} switches, but a group of {child.name} switches has only "
            f"{child.cables_per_group} of them and cannot reach every one"
        )
    return Level(name, 1, child.groups // rails, switches, 0, down, spec.ports, 0.0)


def _even(fewest: int, cables_per_child: int) -> int:
    """Return at least `fewest` switches, each with the same share of the cables of every group below where possible."""
    return next((s for s in range(fewest, cables_per_child + 1) if cables_per_child % s == 0), fewest)


Direction = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class LinkClass:
    """Links that are alike, one direction of each.

    name : nvlink, pcie, nic, the name of the level whose switches the cable leaves upward, or that name and " trunk".
    start, count : the links' numbers are start … start + count − 1.
    capacity_bytes_per_s : of each. [bytes/s]
    """

    name: str
    direction: Direction
    start: int
    count: int
    capacity_bytes_per_s: float

    @property
    def is_trunk(self) -> bool:
        """Whether these links stand for bundles of cables that are links of their own too."""
        return self.name.endswith(" trunk")


@dataclass(frozen=True)
class Topology:
    """A machine of `num_nodes` nodes.

    GPU g sits in node g // gpus_per_node and uses card `nic_of_gpu(g)`; cards are numbered node by node.
    levels : leaf first; the last one joins everything.
    rails : leaves that the cards of one node are spread over.
    """

    name: str
    num_nodes: int
    gpus_per_node: int
    nics_per_node: int
    domain_gpus: int
    rails: int
    levels: tuple[Level, ...]
    classes: tuple[LinkClass, ...]

    @property
    def num_gpus(self) -> int:
        """GPUs of the machine."""
        return self.num_nodes * self.gpus_per_node

    @property
    def num_nics(self) -> int:
        """Network cards of the machine."""
        return self.num_nodes * self.nics_per_node

    @property
    def num_domains(self) -> int:
        """NVLink domains; the last one may be incomplete."""
        return -(-self.num_gpus // self.domain_gpus)

    @property
    def num_links(self) -> int:
        """Links, trunks included."""
        return self.classes[-1].start + self.classes[-1].count

    @cached_property
    def groups_of_nics(self) -> list[IntArray]:
        """Group of each level above every card."""
        node, local = np.divmod(np.arange(self.num_nics), self.nics_per_node)
        return [self.group_of(level, node, local) for level in range(1, len(self.levels) + 1)]

    @cached_property
    def places_of_nics(self) -> list[IntArray]:
        """Place of every card's group of each level but the last among its parent's children."""
        return [parent_of_group(self, level, group)[1] for level, group in enumerate(self.groups_of_nics[:-1], start=1)]

    @cached_property
    def capacity(self) -> np.ndarray:
        """Capacity of every link. [bytes/s]"""
        return np.repeat([c.capacity_bytes_per_s for c in self.classes], [c.count for c in self.classes])

    @cached_property
    def class_of_link(self) -> IntArray:
        """Number of every link's class in `classes`."""
        return np.repeat(np.arange(len(self.classes)), [c.count for c in self.classes])

    def start(self, name: str, direction: str) -> int:
        """Return the number of the first link of a class."""
        return self._starts[name, direction]

    @cached_property
    def _starts(self) -> dict[tuple[str, str], int]:
        return {(c.name, c.direction): c.start for c in self.classes}

    def nic_of_gpu(self, gpus: IntArray) -> IntArray:
        """The card each GPU uses; neighbours share one where there are fewer cards than GPUs."""
        node, local = np.divmod(gpus, self.gpus_per_node)
        nics: IntArray = node * self.nics_per_node + local * self.nics_per_node // self.gpus_per_node
        return nics

    def group_of(self, level: int, nodes: IntArray, local_nics: IntArray) -> IntArray:
        """Group of switches of a level (1 is the leaves) above cards `local_nics` of `nodes`."""
        if level == len(self.levels):
            return np.zeros_like(nodes)
        block = nodes // np.prod([below.below for below in self.levels[:level]], dtype=int)
        group: IntArray = block * self.rails + local_nics % self.rails
        return group


def build_topology(cluster: ClusterSpec) -> Topology:
    """The links of a cluster.

    Where a node has fewer cards than GPUs, neighbouring GPUs share one. NVLink is taken to go through switches.
    """
    node, network, nodes = cluster.node, cluster.network, cluster.num_nodes
    if network is None:
        raise SpecError(
            f"cluster {cluster.name!r} does not describe its switches; add a section network with rail_optimised and "
            "levels (flopcast presets show superpod-h100 has one)"
        )
    gpus, nics = node.gpus_per_node, node.nics_per_node
    if gpus % nics:
        raise SpecError(
            f"node {node.name!r} has {nics} network cards for {gpus} GPUs; links are simulated for cards that are "
            "shared evenly: set nics_per_node to a divisor of gpus_per_node"
        )
    levels, cards = build_levels(cluster, nodes), nodes * nics
    counted = [
        ("nvlink", nodes * gpus, node.nvlink_bandwidth_bytes_per_s),
        ("pcie", nodes * gpus, network.pcie_bandwidth_bytes_per_s or np.inf),
        ("nic", cards, cluster.inter_node_bandwidth_bytes_per_s * gpus / nics),
        *((level.name, level.groups * level.cables_per_group, level.cable_bytes_per_s) for level in levels[:-1]),
        *((f"{level.name} trunk", level.groups, level.trunk_bytes_per_s) for level in levels[:-1]),
    ]
    classes, start = [], 0
    directions: tuple[Direction, ...] = ("up", "down")
    for name, count, capacity in counted:
        for direction in directions:
            classes.append(LinkClass(name, direction, start, count, capacity))
            start += count
    rails = nics if network.rail_optimised else 1
    return Topology(cluster.name, nodes, gpus, nics, cluster.nvlink_domain_gpus, rails, levels, tuple(classes))


def switch_counts(topology: Topology) -> dict[str, int]:
    """Switches of every level."""
    return {level.name: level.groups * level.switches for level in topology.levels}


def cable_counts(topology: Topology) -> dict[str, int]:
    """Cables from the nodes to the leaves, and from every level up."""
    uplinks = {level.name: level.groups * level.cables_per_group for level in topology.levels[:-1]}
    return {"node": topology.num_nics, **uplinks}


def bisection_bytes_per_s(topology: Topology) -> float:
    """Bandwidth per direction between two halves of the machine whose traffic all goes through the top.  [bytes/s]

    Half of what the groups below the top can send up, each no more than its cables or what is below it.
    """
    nic_rate = next(c.capacity_bytes_per_s for c in topology.classes if c.name == "nic")
    # By block and rail; every card of a node belongs to one rail.
    sending = np.full((topology.num_nodes, topology.rails), topology.nics_per_node / topology.rails * nic_rate)
    for level in topology.levels[:-1]:
        sums = np.add.reduceat(sending, np.arange(0, len(sending), level.below), axis=0)
        sending = np.minimum(sums, level.trunk_bytes_per_s)
    return float(sending.sum()) / 2


def parent_of_group(topology: Topology, level: int, groups: IntArray) -> tuple[IntArray, IntArray]:
    """(group of the level above, place among its children) of groups of a level."""
    if level + 1 == len(topology.levels):
        return np.zeros_like(groups), groups
    block, rail = np.divmod(groups, topology.rails)
    parent, child = np.divmod(block, topology.levels[level].below)
    return parent * topology.rails + rail, child
