"""Which links a flow from one GPU to another uses, for many pairs at once.

A path is a row of link numbers, padded with -1. Inside an NVLink domain it is two NVLink hops. Otherwise it leaves
through the GPU's card, climbs to the lowest group of switches that both cards are under, and descends. Climbing, any
cable will do; descending, the switch at the top leaves only the few that lead to the right group. The three routings
differ in how they choose:

deterministic : by the destination alone, as InfiniBand's forwarding tables do, so that on a full tree no two flows of a
    shift permutation share a cable (Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on
    real life fat trees", CCIT report 776, 2010).
ecmp : by a hash of source, destination and sub-flow; hashes collide.
adaptive : not at all: the flow is spread evenly over all cables and sees their trunks.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np

from sim.arrays import Array, IntArray
from sim.errors import SpecError
from sim.network.topology import Level, Topology

Routing = Literal["deterministic", "ecmp", "adaptive"]
ROUTINGS = ("deterministic", "ecmp", "adaptive")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def route(
    topology: Topology,
    source: IntArray,
    target: IntArray,
    routing: Routing = "adaptive",
    *,
    subflows: int = 1,
    seed: int = 0,
    proxy: bool = False,
) -> IntArray:
    """Return the paths of flows between pairs of GPUs.

    source, target : GPUs. A flow from a GPU to itself uses no link.
    routing : "deterministic", "ecmp" or "adaptive".
    subflows : under ecmp, into how many flows each pair's traffic is cut: rows p · subflows … of the result belong to
        pair p.
    seed : of the hash.
    proxy : where rails differ, pass through the GPU of the target's rail in the source's node first, over NVLink, so
        that the network carries only traffic within a rail (NCCL's PXN).

    Returns link numbers, (pairs · subflows, longest path)
    """
    if routing not in ROUTINGS:
        raise SpecError(f"unknown routing {routing!r}; choose from {', '.join(ROUTINGS)}")
    source, target = (np.repeat(np.asarray(gpus, dtype=np.int64).ravel(), subflows) for gpus in (source, target))
    for gpus in (source, target):
        if gpus.size and not 0 <= gpus.min() <= gpus.max() < topology.num_gpus:
            raise SpecError(
                f"GPUs {gpus.min()} to {gpus.max()} are asked for; {topology.name!r} has 0 to {topology.num_gpus - 1}"
            )
    subflow = np.arange(len(source)) % subflows
    inside = source // topology.domain_gpus == target // topology.domain_gpus
    start = topology.start
    columns: list[IntArray] = [
        np.where(inside, start("nvlink", "up") + source, -1),
        np.where(inside, start("nvlink", "down") + target, -1),
    ]
    leaving = source
    if proxy:
        leaving = _same_rail(topology, source, target)
        hop = ~inside & (leaving != source)
        columns[0] = np.where(hop, start("nvlink", "up") + source, columns[0])
        columns[1] = np.where(hop, start("nvlink", "down") + leaving, columns[1])
    nics = topology.nic_of_gpu(leaving), topology.nic_of_gpu(target)
    columns += [start("pcie", "up") + leaving, start("nic", "up") + nics[0]]
    columns += _switched(topology, *nics, routing, _hashed(seed, leaving, target, subflow))
    columns += [start("nic", "down") + nics[1], start("pcie", "down") + target]
    paths = np.stack(columns, axis=1)
    paths[inside, 2:] = -1
    paths[source == target] = -1
    return paths


def switched_links(
    topology: Topology,
    source: IntArray,
    target: IntArray,
    routing: Routing,
    *,
    subflows: int = 1,
    seed: int = 0,
    proxy: bool = False,
) -> list[IntArray]:
    """Return the links between switches alone of flows between NVLink domains, in the columns of `route`; −1: none."""
    source, target = source[:, np.newaxis], target[:, np.newaxis]  # flows × sub-flows, which differ in hashes alone
    leaving = _same_rail(topology, source, target) if proxy else source
    hashed = _hashed(seed, leaving, target, np.arange(subflows))
    columns = _switched(topology, topology.nic_of_gpu(leaving), topology.nic_of_gpu(target), routing, hashed)
    return [np.broadcast_to(each, (len(source), subflows)).ravel() for each in columns]


def _same_rail(topology: Topology, source: IntArray, target: IntArray) -> IntArray:
    """Return the GPU of the source's node that has the target's place in its node."""
    per_node = topology.gpus_per_node
    proxy: IntArray = source // per_node * per_node + target % per_node
    return proxy


def _hashed(seed: int, *flow: IntArray) -> Callable[[IntArray | int, int], IntArray]:
    """Return a function (bound, place) of pseudo-random numbers from 0 to below a bound, one for every flow.

    They depend on the seed, on what tells the flow from others (source, target, sub-flow), and on the place alone.
    """
    key = np.full(1, np.uint64(seed))
    for part in flow:
        key = _mixed(key + part.astype(np.uint64))

    def below(bound: IntArray | int, place: int) -> IntArray:
        number, most = _mixed(key + np.uint64(place)), np.max(bound, initial=1)
        if most & (most - 1) == 0 and np.min(bound, initial=most) == most:  # a power of two: much faster than dividing
            return (number & np.uint64(most - 1)).astype(np.int64)
        return (number % np.asarray(bound, dtype=np.uint64)).astype(np.int64)

    return below


def _mixed(key: np.ndarray) -> np.ndarray:
    """Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators": the finaliser of SplitMix64."""
    key = key + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * _MIX[0]
    key = (key ^ (key >> np.uint64(27))) * _MIX[1]
    key ^= key >> np.uint64(31)
    return key


def _trunks(topology: Topology, climbs: list[Array], groups: list[IntArray], direction: str) -> list[IntArray]:
    """Return the columns of trunks, which stand for all cables of a group, that flows take one way."""
    return [
        np.where(climbs[i], topology.start(f"{level.name} trunk", direction) + groups[i], -1)
        for i, level in enumerate(topology.levels[:-1])
    ]


def _switched(
    topology: Topology,
    source: IntArray,
    target: IntArray,
    routing: Routing,
    hashed: Callable[[IntArray | int, int], IntArray],
) -> list[IntArray]:
    """Return columns of links between switches, up to the first common group, then down, of flows between cards."""
    levels = topology.levels
    groups_up, groups_down = ([groups[nics] for groups in topology.groups_of_nics] for nics in (source, target))
    climbs = [up != down for up, down in zip(groups_up, groups_down, strict=True)]
    if routing == "adaptive":
        up, down = (
            _trunks(topology, climbs, groups, direction)
            for direction, groups in (("up", groups_up), ("down", groups_down))
        )
        return up + down[::-1]

    child_up, child_down = ([places[nics] for places in topology.places_of_nics] for nics in (source, target))

    ports, wanted = [hashed(level.uplinks, i) for i, level in enumerate(levels[:-1])], list[IntArray]()
    if routing == "deterministic":
        keys = _destination_keys(topology, *np.divmod(target, topology.nics_per_node), child_down)
        ports = [_modulo(key, level.uplinks) for key, level in zip(keys, levels[:-1], strict=True)]
        # A destination is best reached over the cables that its own key would take it up by: no other one's does.
        wanted = _climb(levels, child_down, ports)[0]
    cables, switches = _climb(levels, child_up, ports)

    up, down, switch = [], [], switches[-1]
    for i in range(len(levels) - 2, -1, -1):
        level, above = levels[i], levels[i + 1]
        switch = np.where(climbs[i + 1], switch, switches[i + 1])  # a flow that came no higher turns here
        # Of the cables to the target's group, `first` and every `above.switches`-th after it end at this switch.
        first = _modulo(switch - child_down[i] * level.cables_per_group, above.switches)
        options: IntArray | int = level.cables_per_group // above.switches
        if level.cables_per_group % above.switches:
            options = (level.cables_per_group - first + above.switches - 1) // above.switches
        if wanted:
            choice = np.clip((wanted[i] - first + above.switches // 2) // above.switches, 0, options - 1)
        else:
            choice = hashed(options, len(levels) + i)
        cable = first + choice * above.switches
        switch = cable // level.uplinks
        for links, groups, within, direction in ((up, groups_up, cables[i], "up"), (down, groups_down, cable, "down")):
            number = topology.start(level.name, direction) + groups[i] * level.cables_per_group + within
            links.append(np.where(climbs[i], number, -1))
    return up[::-1] + down


def _modulo(numbers: IntArray, bound: int) -> IntArray:
    """Return numbers % bound, a power of two by its bits, which is many times as fast."""
    return numbers & (bound - 1) if bound & (bound - 1) == 0 else numbers % bound


def _climb(
    levels: tuple[Level, ...], child: list[IntArray], ports: list[IntArray]
) -> tuple[list[IntArray], list[IntArray]]:
    """Return cables (numbered within their group) and switches passed from the leaf to the top, by ports of switches.

    child : places of the flows' groups among their parents' children, by level.
    """
    cables, switches = list[IntArray](), [np.zeros(1, dtype=np.int64)]
    for i, (level, above) in enumerate(pairwise(levels)):
        cables.append(switches[i] * level.uplinks + ports[i])
        switches.append(_modulo(child[i] * level.cables_per_group + cables[i], above.switches))
    return cables, switches


def _destination_keys(topology: Topology, node: IntArray, nic: IntArray, child: list[IntArray]) -> list[IntArray]:
    """Return what tells the destinations apart that share a switch, at every level: they should share no cable."""
    levels = topology.levels
    cards = topology.nics_per_node // topology.rails
    keys, distinct = [node % levels[0].below * cards + nic // topology.rails], levels[0].below * cards
    for i, above in enumerate(levels[1:-1], start=1):
        # A switch of this level gets every `switches`-th destination of each group below.
        distinct = -(-distinct // above.switches)
        keys.append(child[i - 1] * distinct + keys[-1] // above.switches)
        distinct *= above.below
    return keys


def expected_max_load(num_flows: int, num_links: int) -> float:
    """Return the expected number of flows on the busiest of equal links when each flow picks one at random.

    P(max ≤ m) is n!/kⁿ times the coefficient of zⁿ in (Σ_{j ≤ m} zʲ/j!)ᵏ.
    """
    from math import lgamma

    powers = np.arange(num_flows + 1)
    logs = np.array([lgamma(power + 1) for power in powers])
    fewest = -(-num_flows // num_links)  # the busiest link never carries less
    expected = float(fewest)
    for most in range(fewest, num_flows):
        # Of the Poisson law with mean n/k the same coefficient, which keeps every number near one.
        mean = num_flows / num_links
        term = np.where(powers <= most, np.exp(powers * np.log(mean) - mean - logs), 0.0)
        total, power, rest = np.eye(1, num_flows + 1)[0], term, num_links
        while rest:  # term to the power of num_links, by squaring
            if rest % 2:
                total = np.convolve(total, power)[: num_flows + 1]
            power, rest = np.convolve(power, power)[: num_flows + 1], rest // 2
        poisson = np.exp(num_flows * np.log(num_flows) - num_flows - logs[num_flows])
        missing = 1.0 - total[num_flows] / poisson
        expected += missing
        if missing < 1e-12:
            break
    return float(expected)
