"""How many switches and cables a tree of switches needs: levels from the radix of their switches, leaf to core.

A level has groups of switches. The cables from one group up are numbered in a row, and those of all groups that share
a parent group are dealt to its switches in turn: cable x goes to switch x mod S. Where a switch has as many cables up
as the level above has switches, each gets one; where fewer, the level above falls into planes by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.errors import SpecError
from sim.specs.network import LevelSpec, NetworkSpec


@dataclass(frozen=True, slots=True)
class Level:
    """One level of switches, built.

    blocks : groups along the nodes; there are that many for every rail, except at the top, which is one group.
    below : blocks of the level below (nodes, under a leaf) that a group joins.
    switches : in a group.
    uplinks : cables up from each switch; 0 at the top.
    down_ports : cables down from each switch.
    cable_bytes_per_s : of one cable up. Where oversubscription leaves a fraction of a cable, all are a little slower.
    """

    name: str
    blocks: int
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


def build_levels(network: NetworkSpec, num_nodes: int, nics_per_node: int, nic_bytes_per_s: float) -> tuple[Level, ...]:
    """The fewest levels that join all cards of `num_nodes` nodes.

    Parameters
    ----------
    network : NetworkSpec
    num_nodes, nics_per_node : int
    nic_bytes_per_s : float
        Of one card, per direction. [bytes/s]

    Raises
    ------
    SpecError
        Too few ports, or more nodes than all levels together reach.
    """
    specs = list(network.levels.items())
    problem = ""
    for height in range(1, len(specs) + 1):
        below: list[Level] = []
        for name, spec in specs[: height - 1]:
            below.append(_inner(name, spec, below, network, num_nodes, nics_per_node, nic_bytes_per_s))
        name, spec = specs[height - 1]
        top, problem = _top(name, spec, below, network, num_nodes, nics_per_node, height == len(specs))
        if top:
            return (*below, top)
    raise SpecError(
        f"{num_nodes:,} nodes are more than the {len(specs)} levels of the network join: {problem}; "
        "lower num_nodes, add a level above, or take switches with more ports"
    )


def _inner(
    name: str,
    spec: LevelSpec,
    below: list[Level],
    network: NetworkSpec,
    num_nodes: int,
    nics_per_node: int,
    nic_bytes_per_s: float,
) -> Level:
    """A level under the top: its switches have cables both down and up."""
    rails = nics_per_node if network.rail_optimised else 1
    down_ports = int(spec.ports * spec.oversubscription / (1 + spec.oversubscription) + 1e-9)
    if not below:
        # Leaves are cabled for all the nodes they can take, even where some are missing.
        hosts = nics_per_node // rails
        joined = spec.below or max(1, down_ports // hosts)
        blocks, switches, cables, rate = math.ceil(num_nodes / joined), 1, joined * hosts, nic_bytes_per_s
    else:
        child = below[-1]
        joined = spec.below or down_ports
        blocks = math.ceil(child.blocks / joined)
        joined = min(joined, child.blocks)
        cables, rate = joined * child.cables_per_group, child.cable_bytes_per_s
        switches = spec.switches or _even(math.ceil(cables / down_ports), child.cables_per_group)
    down = math.ceil(cables / switches)
    uplinks = math.ceil(cables / switches / spec.oversubscription - 1e-9)
    if down + uplinks > spec.ports:
        raise SpecError(
            f"a {name} switch needs {down} ports down and {uplinks} up at oversubscription {spec.oversubscription:g}, "
            f"but has {spec.ports}; lower network.levels.{name}.below or raise its oversubscription or its switches"
        )
    return Level(
        name=name,
        blocks=blocks,
        groups=blocks * rails,
        below=joined,
        switches=switches,
        uplinks=uplinks,
        down_ports=down,
        ports=spec.ports,
        cable_bytes_per_s=cables * rate / spec.oversubscription / (switches * uplinks),
    )


def _top(
    name: str,
    spec: LevelSpec,
    below: list[Level],
    network: NetworkSpec,
    num_nodes: int,
    nics_per_node: int,
    is_last: bool,
) -> tuple[Level | None, str]:
    """The level that joins everything, or None and why this one cannot."""
    if not below:
        cards = num_nodes * nics_per_node
        fits = cards <= spec.ports and (spec.below is None or num_nodes <= spec.below)
        if not fits or (network.rail_optimised and nics_per_node > 1):
            return None, f"one {name} switch cannot join {cards:,} cards"
        return Level(name, 1, 1, num_nodes, 1, 0, cards, spec.ports, 0.0), ""
    child = below[-1]
    cables = child.groups * child.cables_per_group
    # A number of switches is stated for the role the level has in the whole design.
    switches = (spec.switches if is_last else None) or _even(math.ceil(cables / spec.ports), child.cables_per_group)
    down = math.ceil(cables / switches)
    if down > spec.ports:
        return None, f"each of {switches} {name} switches would need {down:,} ports and has {spec.ports}"
    if switches > child.cables_per_group:
        return None, (
            f"{switches:,} {name} switches are needed for {cables:,} cables, but a group of {child.name} switches has "
            f"{child.cables_per_group} and cannot reach them all"
        )
    return Level(name, 1, 1, child.blocks, switches, 0, down, spec.ports, 0.0), ""


def _even(fewest: int, cables_per_child: int) -> int:
    """At least `fewest` switches, each with the same share of the cables of every group below where possible."""
    return next((s for s in range(fewest, cables_per_child + 1) if cables_per_child % s == 0), fewest)
