"""What scatter/gather, rails and placement are worth: the 1T run with each switched off, on three trees of switches.

Narayanan et al. 2021 (arXiv:2104.04473) gain up to 11 % from scatter/gather for a 175B model with interleaving (section
5.7) and say that slower links between nodes would hold the 1T run back (section 5.9). The trees other than Selene's own
are what-if questions: the same machine with routing by hash, and with an eighth of the cables above the
leaves. Without rails a leaf holds all cards of as many nodes as its ports allow.

Lamy-Poirier 2021 (arXiv:2106.02679, abstract) holds that layered accumulation lowers what the network must carry to a
point where a fast InfiniBand connection is not necessary: fixed plans for X_160 on both networks.

Section 5.9 of the first also gives two effective bisection bandwidths of the 1T run, without a definition;
`flopcast_validation.bisection` has ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flopcast_validation.bisection import data_parallel_cut, pipeline_cut
from flopcast_validation.tables import table_of
from sim import Scenario, estimate, load_scenario, simulate
from sim.files import SCENARIOS
from sim.specs.hardware import LevelSpec, NetworkSpec
from sim.units import show

_SCENARIO = SCENARIOS / "gpt-1t-3072-a100.yaml"
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
LAYERED = {
    "layered, ZeRO 3": ["plan.offloaded_layers=160"],
    "1F1B, ZeRO 3": ["plan.schedule=1f1b", "plan.num_chunks=1"],
    "1F1B, ZeRO 1": ["plan.schedule=1f1b", "plan.num_chunks=1", "plan.zero_stage=1"],
}
"""X_160 on tp 16 and pp 5. ZeRO 1 keeps weights and gradients whole, which would not fit in 80 GB."""
REPLICAS = (483, 69, 35)
_ETHERNET = ["cluster.inter_node_bandwidth=25 Gbit/s", "cluster.network.routing=ecmp"]
PUBLISHED_BISECTION = {"pipeline sends": 892e9, "gradient all-reduce": 12.9e12}
"""Narayanan et al. 2021, section 5.9. [bytes/s]"""


class NetworkRow(NamedTuple):
    """Step times of one case on one tree: by the formulas without contention, and with links shared. [s]"""

    tree: str
    case: str
    formula_s: float
    shared_s: float


class LayeredRow(NamedTuple):
    """Step times of one plan on so many GPUs, links shared; whether it fits in the GPUs' memory. [s]"""

    num_gpus: int
    plan: str
    fits: bool
    infiniband_s: float
    ethernet_s: float


def network_rows(
    trees: Sequence[str] = TREES, cases: Sequence[str] = tuple(CASES), changes: Sequence[str] = ()
) -> Iterator[NetworkRow]:
    """Every case on every tree, one after the other; `changes` are overrides of the 1T run in all of them."""
    for tree in trees:
        for case in cases:
            overrides, rails = CASES[case]
            scenario = on_tree(load_scenario(_SCENARIO, [*changes, *overrides]), tree, rails)
            answer = simulate(scenario, contention=True)
            yield NetworkRow(tree, case, answer.noiseless_s, answer.mean_s)


def on_tree(scenario: Scenario, tree: str, rails: bool) -> Scenario:
    """The scenario on another tree of switches of 40 ports."""
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


def layered_rows(replicas: Sequence[int] = REPLICAS, plans: Sequence[str] = tuple(LAYERED)) -> Iterator[LayeredRow]:
    """Every plan at every number of data-parallel replicas, on HDR InfiniBand and on 25 Gbit/s Ethernet a GPU."""
    x160 = _SCENARIO.with_name("x160-38640-a100.yaml")
    for dp in replicas:
        for plan in plans:
            overrides = [*LAYERED[plan], f"plan.dp={dp}"]
            fast, slow = (load_scenario(x160, [*overrides, *network]) for network in ([], _ETHERNET))
            times = [simulate(scenario, contention=True).mean_s for scenario in (fast, slow)]
            yield LayeredRow(fast.plan.num_gpus, plan, estimate(fast).fits, *times)


def bisection_rows() -> dict[str, float]:
    """Rate at which the 1T run's traffic crosses the middle of every group.  [bytes/s]"""
    scenario = load_scenario(_SCENARIO)
    cuts = {"pipeline sends": pipeline_cut, "gradient all-reduce": data_parallel_cut}
    return {name: cut(scenario).bytes_per_s for name, cut in cuts.items()}


def view() -> Iterator[Any]:
    """The three tables with their titles."""
    yield "Effective bisection bandwidth of the 1T run"
    yield table_of(
        {
            "": lambda row: row[0],
            "published": lambda row: show(PUBLISHED_BISECTION[row[0]], "B/s", 3),
            "predicted": lambda row: show(row[1], "B/s", 3),
            "off": lambda row: f"{row[1] / PUBLISHED_BISECTION[row[0]] - 1:+.0%}",
        },
        bisection_rows().items(),
    )
    yield "\n1T parameters on 3,072 A100: step time with each mechanism switched off"
    times = {"formula [s]": "formula_s:.1f", "shared links [s]": "shared_s:.1f"}
    yield table_of({"switches": "tree", "case": "case", **times}, network_rows(), left=("switches", "case"))
    yield "\nX_160, 2,415 sequences per step: HDR InfiniBand and 25 Gbit/s Ethernet per GPU, links shared"
    times = {"InfiniBand [s]": "infiniband_s:.1f", "Ethernet [s]": "ethernet_s:.1f"}
    fits = {"fits": lambda row: "yes" if row.fits else "no"}
    ratio = {"times": lambda row: f"{row.ethernet_s / row.infiniband_s:.2f}"}
    yield table_of({"GPUs": "num_gpus:,", "plan": "plan", **fits, **times, **ratio}, layered_rows(), left=("plan",))
