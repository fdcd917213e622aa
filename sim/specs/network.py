"""The switches between nodes: levels of a tree, from the leaves up, as its builder would order them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from sim.specs.base import Spec


class LevelSpec(Spec):
    """One level of switches, all alike."""

    ports: PositiveInt
    """Ports of a switch, each as fast as a network card."""
    below: PositiveInt | None = None
    """What one group of this level joins: nodes under a leaf, groups of the level below elsewhere; the top joins all.
    Default: as many as the ports allow."""
    switches: PositiveInt | None = None
    """Switches in a group; a leaf stands alone. Default: the fewest whose ports suffice and that take an equal share of
    the cables from each group below."""
    oversubscription: float = Field(default=1.0, ge=1.0)
    """Bandwidth down over bandwidth up of a switch."""


class NetworkSpec(Spec):
    """How the network cards of all nodes reach each other."""

    levels: dict[str, LevelSpec] = Field(min_length=1)
    """Levels of switches, leaf first. A machine that is small enough leaves the upper ones out."""
    rail_optimised: bool
    """The cards of one index in their nodes share a leaf (a rail); rails meet at the top level only."""
    routing: Literal["deterministic", "ecmp", "adaptive"] = "adaptive"
    """How a flow chooses among equal paths: by its destination, by a hash, or over all of them at once."""
    subflows: PositiveInt = 1
    """Under ecmp: how many flows of their own hash a pair of GPUs spreads its bytes over."""
    in_network_reduction: bool = False
    """The switches can add what all-reduces carry (SHARP)."""
    pcie_bandwidth_bytes_per_s: PositiveFloat | None = None
    """Bandwidth between a GPU and its network card, per direction, where that is less than the card's. [bytes/s]"""

    def is_nonblocking(self, used: Iterable[str] | None = None) -> bool:
        """Return whether no flow meets a full link, whoever talks: flows use all paths, and no level is oversubscribed.

        used : levels that have cables up, where the machine does not need all of them.
        """
        levels = self.levels if used is None else used
        return self.routing == "adaptive" and all(self.levels[name].oversubscription == 1.0 for name in levels)

    @model_validator(mode="after")
    def _check(self) -> NetworkSpec:
        leaf = next(iter(self.levels.values()))
        if leaf.switches not in (None, 1):
            raise ValueError(f"switches = {leaf.switches} on the lowest level: a leaf stands alone; leave it out")
        if self.subflows > 1 and self.routing != "ecmp":
            raise ValueError(f"subflows {self.subflows} has no effect with {self.routing} routing; set routing to ecmp")
        return self
