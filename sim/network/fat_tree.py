"""How many switches and cables a tree of switches needs: levels from the radix of their switches, leaf to core.

A level has groups of switches. The cables from one group up are numbered in a row, and those of all groups that share
a parent group are dealt to its switches in turn: cable x goes to switch x mod S. Where a switch has as many cables up
as the level above has switches, each gets one; where fewer, the level above falls into planes by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.errors import SpecError
from sim.specs import ClusterSpec
from sim.specs.network import LevelSpec


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
    """Return the fewest levels of a cluster's switches that join all cards of `num_nodes` nodes, leaf first.

    Raises
    ------
    SpecError
        Too few ports, or more nodes than all levels together reach.
    """
    assert cluster.network is not None
    specs, nics = cluster.network.levels, cluster.node.nics_per_node
    # inter_node_bandwidth may be given instead of following from the cards: then they are as fast as it says.
    rate = cluster.inter_node_bandwidth_bytes_per_s * cluster.node.gpus_per_node / nics
    rails = nics if cluster.network.rail_optimised else 1
    below: list[Level] = []
    problem = ""
    for name, spec in specs.items():
        is_last = len(below) + 1 == len(specs)
        child = below[-1] if below else None
        top = _top(name, spec, child, num_nodes, nics, rails, is_last)
        if isinstance(top, Level):
            return (*below, top)
        problem = top
        if not is_last:
            below.append(_inner(name, spec, child, num_nodes, nics, rails, rate))
    raise SpecError(
        f"{num_nodes:,} nodes are more than the {len(specs)} levels of the network join: {problem}; "
        "lower num_nodes, add a level above, or take switches with more ports"
    )


def _inner(
    name: str, spec: LevelSpec, child: Level | None, num_nodes: int, nics: int, rails: int, rate: float
) -> Level:
    """Return a level under the top, whose switches have cables both down and up."""
    down_ports = int(spec.ports * spec.oversubscription / (1 + spec.oversubscription) + 1e-9)
    if child:
        child_blocks = child.groups // rails
        joined = spec.below or down_ports
        blocks, joined = math.ceil(child_blocks / joined), min(joined, child_blocks)
        cables, rate = joined * child.cables_per_group, child.cable_bytes_per_s
        switches = spec.switches or _even(math.ceil(cables / down_ports), child.cables_per_group)
    else:  # leaves are cabled for all the nodes they can take, even where some are missing
        joined = spec.below or max(1, down_ports // (nics // rails))
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
    name: str, spec: LevelSpec, child: Level | None, num_nodes: int, nics: int, rails: int, is_last: bool
) -> Level | str:
    """Return the level that joins everything, or why this one cannot."""
    if not child:
        cards = num_nodes * nics
        if rails > 1 or cards > spec.ports or num_nodes > (spec.below or num_nodes):
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
            f"{switches:,} {name} switches are needed for {cables:,} cables, but a group of {child.name} switches has "
            f"{child.cables_per_group} and cannot reach them all"
        )
    return Level(name, 1, child.groups // rails, switches, 0, down, spec.ports, 0.0)


def _even(fewest: int, cables_per_child: int) -> int:
    """Return at least `fewest` switches, each with the same share of the cables of every group below where possible."""
    return next((s for s in range(fewest, cables_per_child + 1) if cables_per_child % s == 0), fewest)
