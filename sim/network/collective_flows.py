"""Collectives on a machine: their phases as flows over its links, and their time with the machine to themselves."""

from __future__ import annotations

import numpy as np

from sim.network.flow_run import simulate_flows
from sim.network.flows import FloatArray, Flows, flows_on
from sim.network.in_network import network_tree, nvlink_tree
from sim.network.patterns import Latencies, Pattern, Phase
from sim.network.routing import Routing, route
from sim.network.topology import Topology


def phase_flows(
    phase: Phase,
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
    phase : Phase
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


def in_step(flows: Flows, nbytes: FloatArray) -> tuple[Flows, float]:
    """Flows that advance together, each by the same share of its bytes, as one: a ring moves at the pace of its slowest
    link.

    Returns
    -------
    flows : Flows
        One flow; its loads are bytes on a link for a byte of the largest of the flows.
    nbytes : float
        Of the largest. [bytes]
    """
    largest = float(nbytes.max(initial=0.0))
    links, place = np.unique(flows.link, return_inverse=True)
    loads = np.bincount(place, flows.load * nbytes[flows.flow], minlength=len(links))
    used = loads > 0
    return Flows(1, np.zeros(used.sum(), dtype=int), links[used], loads[used] / (largest or 1.0), np.ones(1)), largest


def effective_capacity(topology: Topology, nvlink_efficiency: float, network_efficiency: float) -> FloatArray:
    """Capacity of every link as collectives reach it.  [bytes/s]"""
    shares = [
        nvlink_efficiency if links.name in ("nvlink", "pcie") else network_efficiency for links in topology.classes
    ]
    capacity: FloatArray = topology.capacity * np.array(shares)[topology.class_of_link]
    return capacity


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
    """
    capacity = topology.capacity if capacity is None else capacity
    total = 0.0
    for phase in pattern:
        flows, sizes = phase_flows(phase, topology, routing, subflows=subflows, seed=seed, proxy=proxy)
        run = simulate_flows(capacity, flows, 0.0, sizes)
        total += latencies.of(phase) + float(run.finish_s.max(initial=0.0))
    return total
