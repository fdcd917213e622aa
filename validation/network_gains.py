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
from dataclasses import dataclass

from flopcast_validation.bisection import data_parallel_cut, pipeline_cut
from sim import Scenario, estimate, load_scenario, simulate
from sim.files import SCENARIOS
from sim.specs.hardware import LevelSpec, NetworkSpec
from sim.units import show

_SCENARIO = SCENARIOS / "gpt-1t-3072-a100.yaml"
_X160 = _SCENARIO.with_name("x160-38640-a100.yaml")
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


LAYERED = {
    "layered, ZeRO 3": ["plan.offloaded_layers=160"],
    "1F1B, ZeRO 3": ["plan.schedule=1f1b", "plan.num_chunks=1"],
    "1F1B, ZeRO 1": ["plan.schedule=1f1b", "plan.num_chunks=1", "plan.zero_stage=1"],
}
"""X_160 on tp 16 and pp 5. ZeRO 1 keeps weights and gradients whole, which would not fit in 80 GB."""
REPLICAS = (483, 69, 35)
_ETHERNET = ["cluster.inter_node_bandwidth=25 Gbit/s", "cluster.network.routing=ecmp"]


@dataclass(frozen=True, slots=True)
class LayeredRow:
    """Step times of one plan on so many GPUs, links shared. [s]

    fits : in the GPUs' memory.
    """

    num_gpus: int
    plan: str
    fits: bool
    infiniband_s: float
    ethernet_s: float


def layered_rows(replicas: Sequence[int] = REPLICAS, plans: Sequence[str] = tuple(LAYERED)) -> Iterator[LayeredRow]:
    """Every plan at every number of data-parallel replicas, on HDR InfiniBand and on 25 Gbit/s Ethernet a GPU."""
    for dp in replicas:
        for plan in plans:
            overrides = [*LAYERED[plan], f"plan.dp={dp}"]
            fast, slow = (load_scenario(_X160, [*overrides, *network]) for network in ([], _ETHERNET))
            times = [simulate(scenario, contention=True).mean_s for scenario in (fast, slow)]
            yield LayeredRow(fast.plan.num_gpus, plan, estimate(fast).fits, *times)


PUBLISHED_BISECTION = {"pipeline sends": 892e9, "gradient all-reduce": 12.9e12}
"""Narayanan et al. 2021, section 5.9. [bytes/s]"""


def bisection_rows() -> dict[str, float]:
    """Rate at which the 1T run's traffic crosses the middle of every group.  [bytes/s]"""
    scenario = load_scenario(_SCENARIO)
    cuts = {"pipeline sends": pipeline_cut, "gradient all-reduce": data_parallel_cut}
    return {name: cut(scenario).bytes_per_s for name, cut in cuts.items()}


def report() -> Iterator[str]:
    """The tables as text."""
    yield "Effective bisection bandwidth of the 1T run: published and predicted"
    for name, rate in bisection_rows().items():
        published = PUBLISHED_BISECTION[name]
        yield f"  {name:20} {show(published, 'B/s', 3):>9} {show(rate, 'B/s', 3):>11} {rate / published - 1:+4.0%}"
    yield ""
    yield "1T parameters on 3,072 A100: step time with each mechanism switched off"
    yield f"  {'switches':15} {'case':36} {'formula':>8} {'shared links':>13}"
    for row in network_rows():
        yield f"  {row.tree:15} {row.case:36} {row.formula_s:6.1f} s {row.shared_s:11.1f} s"
    yield ""
    yield "X_160, 2,415 sequences per step: HDR InfiniBand and 25 Gbit/s Ethernet per GPU,"
    yield "with shared links"
    yield f"  {'GPUs':>6}  {'plan':18} {'fits':4} {'InfiniBand':>11} {'Ethernet':>11} {'times':>6}"
    for each in layered_rows():
        yield (
            f"  {each.num_gpus:6,}  {each.plan:18} {'yes' if each.fits else 'no':4} {each.infiniband_s:9.1f} s "
            f"{each.ethernet_s:9.1f} s {each.ethernet_s / each.infiniband_s:6.2f}"
        )
