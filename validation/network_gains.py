"""What scatter/gather, rails and placement are worth: the 1T run with each switched off, on three trees of switches.

Narayanan et al. 2021 (arXiv:2104.04473) gain up to 11 % from scatter/gather for a 175B model with interleaving (section
5.7) and say that slower links between nodes would hold the 1T run back (section 5.9). The trees other than Selene's own
are what-if questions: the same machine with routing by hash, and with a quarter of the cables above the
leaves. Without rails a leaf holds all cards of as many nodes as its ports allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import Scenario, load_scenario, simulate
from sim.specs.network import LevelSpec, NetworkSpec

_SCENARIO = Path(__file__).parents[1] / "scenarios" / "gpt-1t-3072-a100.yaml"
_CORE = LevelSpec(ports=8000)  # one switch for all, where only what lies below matters
TREES = ("full, adaptive", "full, ecmp", "1:4, adaptive")
CASES: dict[str, tuple[list[str], bool, dict[str, Any]]] = {
    "as it is": ([], True, {}),
    "no scatter/gather": (["stack.p2p_scatter_gather=false"], True, {}),
    "no rails": ([], False, {}),
    "pipeline ranks closer than replicas": ([], True, {"placement": "tp-pp-cp-dp"}),
    "nodes anywhere in the machine": ([], True, {"fragmentation": 1.0}),
}
"""What is switched off: overrides, whether there are rails, and where the ranks sit."""


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """Step times of one case on one tree. [s]

    formula_s : by the formulas, without contention.
    shared_s : with links shared.
    """

    tree: str
    case: str
    formula_s: float
    shared_s: float


def network_rows(trees: Sequence[str] = TREES, cases: Sequence[str] = tuple(CASES)) -> Iterator[NetworkRow]:
    """Every case on every tree, one after the other."""
    for tree in trees:
        for case in cases:
            overrides, rails, where = CASES[case]
            scenario = _on(load_scenario(_SCENARIO, overrides), tree, rails)
            answer = simulate(scenario, contention=True, **where)
            yield NetworkRow(tree, case, answer.noiseless_s, answer.mean_s)


def _on(scenario: Scenario, tree: str, rails: bool) -> Scenario:
    """The scenario on another tree of switches of 40 ports."""
    full = tree.startswith("full")
    network = scenario.cluster.network
    assert network is not None
    if full and not rails:  # two nodes' cards on a leaf
        levels = {"leaf": LevelSpec(ports=40, below=2), "spine": LevelSpec(ports=40, below=10), "core": _CORE}
        network = NetworkSpec(levels=levels, rail_optimised=False)
    elif not full:
        leaf = LevelSpec(ports=40, below=20 if rails else 3, oversubscription=4.0)
        network = NetworkSpec(levels={"leaf": leaf, "core": _CORE}, rail_optimised=rails)
    network = network.replace(routing="ecmp" if tree.endswith("ecmp") else "adaptive")
    return scenario.replace(cluster=scenario.cluster.replace(network=network))


def report() -> Iterator[str]:
    """The table as text."""
    yield "1T parameters on 3,072 A100: step time with each switched off"
    yield f"  {'tree of switches':18} {'case':36} {'formula':>9} {'links shared':>13}"
    for row in network_rows():
        yield f"  {row.tree:18} {row.case:36} {row.formula_s:7.1f} s {row.shared_s:11.1f} s"
