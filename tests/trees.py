"""The 1T run's machine with other trees of switches, and with what saves traffic switched off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sim import Scenario, load_scenario
from sim.specs.hardware import LevelSpec, NetworkSpec

_CORE = LevelSpec(ports=8000)  # one switch for all, where only what lies below matters
TREES = ("full, adaptive", "full, ecmp", "1:8, adaptive")
CASES: dict[str, tuple[list[str], bool]] = {
    "as it is": ([], True),
    "no scatter/gather": (["stack.p2p_scatter_gather=false"], True),
    "no rails": ([], False),
    "pipeline ranks closer than replicas": (["plan.placement=tp-pp-cp-dp"], True),
    "nodes anywhere in the machine": (["cluster.fragmentation=1"], True),
}
"""What is switched off, as overrides, and whether there are rails."""


def on_tree(path: Path, tree: str, case: str, changes: Sequence[str] = ()) -> Scenario:
    """The scenario of a file in a case, on another tree of switches of 40 ports.

    Without rails a leaf holds all cards of as many nodes as its ports allow.
    """
    overrides, rails = CASES[case]
    scenario = load_scenario(path, [*changes, *overrides])
    full = tree.startswith("full")
    network = scenario.cluster.network
    if full and not rails:  # two nodes' cards on a leaf
        levels = {"leaf": LevelSpec(ports=40, below=2), "spine": LevelSpec(ports=40, below=10), "core": _CORE}
        network = NetworkSpec(levels=levels, rail_optimised=False)
    elif not full:
        leaf = LevelSpec(ports=40, below=20 if rails else 4, oversubscription=8.0)
        network = NetworkSpec(levels={"leaf": leaf, "core": _CORE}, rail_optimised=rails)
    network = network.replace(routing="ecmp" if tree.endswith("ecmp") else "adaptive")
    return scenario.replace(cluster=scenario.cluster.replace(network=network))
