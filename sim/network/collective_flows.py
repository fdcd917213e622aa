"""Collectives on a machine: their phases as flows over its links, and their time with the machine to themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.arrays import FloatArray
from sim.errors import SpecError
from sim.network import patterns
from sim.network.flow_run import finish_times
from sim.network.flows import Flows, flows_on
from sim.network.in_network import network_tree, nvlink_tree
from sim.network.patterns import Latencies, Pattern, PatternPhase, members_by_domain
from sim.network.routing import Routing, route
from sim.network.topology import Topology
from sim.specs.network import NetworkSpec


def phase_flows(
    phase: PatternPhase,
    topology: Topology,
    routing: Routing = "adaptive",
    *,
    subflows: int = 1,
    seed: int = 0,
    proxy: bool = False,
) -> tuple[Flows, FloatArray]:
    """Flows of one phase over a machine's links, and the bytes of each.

    Parameters
    ----------
    phase : PatternPhase
    topology : Topology
    routing, subflows, seed, proxy
        As of `sim.network.routing.route`.

    Returns
    -------
    flows : Flows
    nbytes : array
        By flow. [bytes]
    """
    paths = route(topology, phase.source, phase.target, routing, subflows=subflows, seed=seed, proxy=proxy)
    flows, sizes = flows_on(paths), np.repeat(phase.nbytes / subflows, subflows)
    if phase.trees:
        trees = [
            nvlink_tree(topology, tree)
            if phase.over_nvlink
            else network_tree(topology, tree, number, trunks=routing == "adaptive")
            for number, tree in enumerate(phase.trees)
        ]
        longest = max(len(tree) for tree in trees)
        padded = np.stack([np.pad(tree, (0, longest - len(tree)), constant_values=-1) for tree in trees])
        flows, sizes = flows + flows_on(padded), np.concatenate([sizes, np.full(len(trees), phase.tree_bytes)])
    return flows, sizes


def pattern_time(
    pattern: Pattern,
    topology: Topology,
    latencies: Latencies,
    routing: Routing = "adaptive",
    *,
    capacity: FloatArray | None = None,
    subflows: int = 1,
    seed: int = 0,
    proxy: bool = False,
    done_share: float = 1e-9,
) -> float:
    """Time of a collective that has the machine to itself.  [s]

    Parameters
    ----------
    pattern : Pattern
    topology : Topology
    latencies : Latencies
    routing, subflows, seed, proxy
        As of `sim.network.routing.route`.
    capacity : array, optional
        Of every link. Default: the topology's. [bytes/s]
    done_share : float
        As of `sim.network.flow_run.finish_times`.
    """
    capacity = topology.capacity if capacity is None else capacity
    total = 0.0
    for phase in pattern:
        flows, sizes = phase_flows(phase, topology, routing, subflows=subflows, seed=seed, proxy=proxy)
        finish = finish_times(capacity, flows, 0.0, sizes, done_share=done_share)
        total += latencies.of(phase) + float(finish.max(initial=0.0))
    return total


ALGORITHMS = {
    "ring all-reduce": patterns.ring_all_reduce,
    "tree all-reduce": patterns.tree_all_reduce,
    "hierarchical all-reduce": patterns.hierarchical_all_reduce,
    "all-reduce in the switches": patterns.sharp_all_reduce,
    "all-gather": patterns.all_gather,
    "reduce-scatter": patterns.reduce_scatter,
    "all-to-all": patterns.all_to_all,
}
"""Between NVLink domains; inside one, of the all-reduces the ring and the switches' (NVLS)."""
MOST_TO_ALL = 256
"""GPUs beyond which an all-to-all, a flow for every pair, is left out."""


def collective_times(topology: Topology, num_gpus: int, nbytes: float, network: NetworkSpec) -> dict[str, float]:
    """What the links alone allow: collectives over the machine's first GPUs, with all to themselves, no latency.  [s]

    Routed as the network says, added up in its switches if they can. Flows that share links unevenly count as done with
    a hundredth left. Of more than MOST_TO_ALL GPUs without the all-to-all; by rails, what goes to a GPU of another rail
    goes over NVLink to the neighbour on that rail first (NCCL's PXN).

    Raises
    ------
    SpecError
        Fewer than two GPUs, more than the machine has, or not equally many in every NVLink domain.
    """
    if not 2 <= num_gpus <= topology.num_gpus:
        raise SpecError(f"a collective over {num_gpus} GPUs: give 2 to {topology.num_gpus:,}, those of the machine")
    members = members_by_domain(np.arange(num_gpus), topology.domain_gpus)
    names = list(ALGORITHMS)
    if len(members) == 1:
        names = [name for name in names if name not in ("tree all-reduce", "hierarchical all-reduce")]
    if len(members) > 1 and not network.in_network_reduction:
        names.remove("all-reduce in the switches")
    if num_gpus > MOST_TO_ALL:
        names.remove("all-to-all")
    switches = patterns.sharp_all_reduce if len(members) > 1 else patterns.nvls_all_reduce
    chosen = ALGORITHMS | {"all-reduce in the switches": switches}
    found = {name: chosen[name](members, nbytes) for name in names}
    way: dict[str, Any] = {"routing": network.routing, "subflows": network.subflows, "done_share": 0.01}
    times = {name: pattern_time(pattern, topology, Latencies(), **way) for name, pattern in found.items()}
    if "all-to-all" in times and len(members) > 1 and topology.rails > 1:
        times["all-to-all by rails"] = pattern_time(found["all-to-all"], topology, Latencies(), proxy=True, **way)
    return times
