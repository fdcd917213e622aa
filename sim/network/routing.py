"""Which links a flow from one GPU to another uses, for many pairs at once, and the ways around links that are down.

A path is a row of link numbers, padded with -1. Inside an NVLink domain it is two NVLink hops. Otherwise it leaves
through the GPU's card, climbs to the lowest group of switches that both cards are under, and descends. Climbing, any
cable will do; descending, the switch at the top leaves only the few that lead to the right group. The two routings
differ in how they choose:

ecmp : by a hash of source, destination and sub-flow; hashes collide.
adaptive : not at all: the flow is spread evenly over all cables and sees their trunks.

Slow and lost links have names, each for both directions: `node12` (all cards of the node), `node12.nic3` (one),
`gpu17.nic` (the card a GPU uses), `leaf4` (all cables up from one group of switches of a level), `leaf4.cable7` (one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Literal

import numpy as np

from sim.arrays import Array, FloatArray, IntArray
from sim.errors import SpecError
from sim.network.topology import Topology

Routing = Literal["ecmp", "adaptive"]
ROUTINGS = ("ecmp", "adaptive")
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def route(
    topology: Topology,
    source: IntArray,
    target: IntArray,
    routing: Routing = "adaptive",
    *,
    subflows: int = 1,
    seed: int = 0,
) -> IntArray:
    """Return the paths of flows between pairs of GPUs.

    source, target : GPUs. A flow from a GPU to itself uses no link.
    routing : "ecmp" or "adaptive".
    subflows : under ecmp, into how many flows each pair's traffic is cut: rows p · subflows … of the result belong to
        pair p.
    seed : of the hash.

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
    nics = topology.nic_of_gpu(source), topology.nic_of_gpu(target)
    columns += [start("pcie", "up") + source, start("nic", "up") + nics[0]]
    columns += _switched(topology, *nics, routing, _hashed(seed, source, target, subflow))
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
    """Return the links between switches alone of flows between NVLink domains, in the columns of `route`; −1: none.

    proxy : where rails differ, pass through the GPU of the target's rail in the source's node first, over NVLink, so
        that the network carries only traffic within a rail (NCCL's PXN).
    """
    source, target = source[:, np.newaxis], target[:, np.newaxis]  # flows × sub-flows, which differ in hashes alone
    per_node = topology.gpus_per_node
    leaving = source // per_node * per_node + target % per_node if proxy else source
    hashed = _hashed(seed, leaving, target, np.arange(subflows))
    columns = _switched(topology, topology.nic_of_gpu(leaving), topology.nic_of_gpu(target), routing, hashed)
    return [np.broadcast_to(each, (len(source), subflows)).ravel() for each in columns]


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

    # Cables, numbered within their group, and switches that are passed from the leaf to the top.
    cables, switches = list[IntArray](), [np.zeros(1, dtype=np.int64)]
    for i, (level, above) in enumerate(pairwise(levels)):
        cables.append(switches[i] * level.uplinks + hashed(level.uplinks, i))
        switches.append(_modulo(child_up[i] * level.cables_per_group + cables[i], above.switches))

    up, down, switch = [], [], switches[-1]
    for i in range(len(levels) - 2, -1, -1):
        level, above = levels[i], levels[i + 1]
        switch = np.where(climbs[i + 1], switch, switches[i + 1])  # a flow that came no higher turns here
        # Of the cables to the target's group, `first` and every `above.switches`-th after it end at this switch.
        first = _modulo(switch - child_down[i] * level.cables_per_group, above.switches)
        options: IntArray | int = level.cables_per_group // above.switches
        if level.cables_per_group % above.switches:
            options = (level.cables_per_group - first + above.switches - 1) // above.switches
        cable = first + hashed(options, len(levels) + i) * above.switches
        switch = cable // level.uplinks
        for links, groups, within, direction in ((up, groups_up, cables[i], "up"), (down, groups_down, cable, "down")):
            number = topology.start(level.name, direction) + groups[i] * level.cables_per_group + within
            links.append(np.where(climbs[i], number, -1))
    return up[::-1] + down


def _modulo(numbers: IntArray, bound: int) -> IntArray:
    """Return numbers % bound, a power of two by its bits, which is many times as fast."""
    return numbers & (bound - 1) if bound & (bound - 1) == 0 else numbers % bound


_NAME = re.compile(r"([a-zA-Z_][\w ]*?)(\d+)(?:\.(cable|nic)(\d*))?")


def link_health(topology: Topology, faults: Iterable[tuple[float, str]]) -> FloatArray:
    """What is left of every link, as a share of its capacity.

    faults : the link of that name carries that share of what it should; 0: it is down. Several on one link multiply.
    """
    health = np.ones(topology.num_links)
    for share, name in faults:
        if not 0.0 <= share <= 1.0:
            raise SpecError(f"link {name!r} at {share} of its bandwidth: give a share from 0 (down) to 1 (sound)")
        health[_links(topology, name)] *= share
    for level in topology.levels[:-1]:  # a trunk is its cables
        for direction in ("up", "down"):
            cables, trunks = topology.start(level.name, direction), topology.start(f"{level.name} trunk", direction)
            each = health[cables : cables + level.groups * level.cables_per_group].reshape(level.groups, -1)
            health[trunks : trunks + level.groups] = each.mean(axis=1)
    return health


def _links(topology: Topology, name: str) -> IntArray:
    """Links of a name, both directions, trunks left out."""
    found = _NAME.fullmatch(name)
    kind, number, part, place = found.groups() if found else ("", "0", None, None)
    levels = {level.name: level for level in topology.levels[:-1]}
    if kind in ("node", "gpu"):
        _check(name, kind, int(number), topology.num_nodes if kind == "node" else topology.num_gpus)
    if kind == "gpu" and part == "nic" and not place:
        return _both(topology, "nic", topology.nic_of_gpu(np.array([int(number)])))
    if kind == "node" and part is None:
        return _both(topology, "nic", int(number) * topology.nics_per_node + np.arange(topology.nics_per_node))
    if kind == "node" and part == "nic" and place:
        _check(name, "nic", int(place), topology.nics_per_node)
        return _both(topology, "nic", np.array([int(number) * topology.nics_per_node + int(place)]))
    if kind in levels and (part is None or (part == "cable" and place)):
        level = levels[kind]
        _check(name, kind, int(number), level.groups)
        cables = np.arange(level.cables_per_group)
        if place:
            _check(name, "cable", int(place), level.cables_per_group)
            cables = cables[int(place) :][:1]
        return _both(topology, kind, int(number) * level.cables_per_group + cables)
    if part == "nvlink" or name.endswith("nvlink"):
        raise SpecError(
            f"link {name!r}: NVLink carries tensor parallelism, which is timed within actions; slow its GPU"
        )
    above = [f"{level}0 and {level}0.cable0 (cables up from switches)" for level in levels]
    choices = ["node0 (all its cards)", "node0.nic0", "gpu0.nic", *above]
    raise SpecError(f"unknown link {name!r}; {topology.name!r} has {', '.join(choices)}")


def node_of(topology: Topology, name: str) -> int | None:
    """The node whose card a link of this name is; None for cables between switches."""
    nics = _links(topology, name) - topology.start("nic", "up")
    return int(nics[0]) // topology.nics_per_node if 0 <= nics[0] < topology.num_nics else None


def _check(name: str, kind: str, number: int, count: int) -> None:
    if number >= count:
        raise SpecError(f"link {name!r}: {kind}s are numbered 0 to {count - 1:,} here; choose one of those")


def _both(topology: Topology, kind: str, numbers: IntArray) -> IntArray:
    return np.concatenate([topology.start(kind, direction) + numbers for direction in ("up", "down")])


def link_name(topology: Topology, link: int) -> str:
    """The name of a link, with its direction: 'node3.nic1 up', 'leaf4 trunk down'."""
    of = topology.classes[int(topology.class_of_link[link])]
    number = link - of.start
    level = next((level for level in topology.levels if level.name == of.name), None)
    if level is not None:
        group, cable = divmod(number, level.cables_per_group)
        return f"{level.name}{group}.cable{cable} {of.direction}"
    if of.name == "nic":
        node, card = divmod(number, topology.nics_per_node)
        return f"node{node}.nic{card} {of.direction}"
    if of.is_trunk:
        return f"{of.name.removesuffix(' trunk')}{number} {of.direction}"
    return f"gpu{number}.{of.name} {of.direction}"


def route_around(
    topology: Topology,
    source: IntArray,
    target: IntArray,
    health: FloatArray,
    routing: Routing = "adaptive",
    *,
    subflows: int = 1,
    seed: int = 0,
) -> tuple[IntArray, FloatArray, IntArray]:
    """Paths between pairs of GPUs that use no link that is down.

    A pair whose own way is cut goes, in equal parts, over every other card that gets through: over NVLink to the GPU
    beside it, along that one's rail, and over NVLink again.

    source, target : GPUs.
    health : of every link; 0: down.
    routing, subflows, seed : as of `sim.network.routing.route`.

    Returns:
    paths : array of int, (paths, longest path)
    share : of its pair's traffic on each path.
    pair : array of int. Which pair each path belongs to.
    """
    source, target = np.asarray(source).ravel(), np.asarray(target).ravel()
    paths = route(topology, source, target, routing, subflows=subflows, seed=seed)
    share, pair = np.full(len(paths), 1.0 / subflows), np.repeat(np.arange(len(source)), subflows)
    cut = _is_cut(paths, health)
    if not cut.any():
        return paths, share, pair
    node_gpus, hops = topology.gpus_per_node, paths.shape[1]
    width = hops + 4
    found = [np.pad(paths[~cut], ((0, 0), (0, 4)), constant_values=-1)]
    shares, pairs = [share[~cut]], [pair[~cut]]
    for row in np.flatnonzero(cut).tolist():
        ends = int(source[pair[row]]), int(target[pair[row]])
        beside = [gpu // node_gpus * node_gpus + np.arange(node_gpus) for gpu in ends]
        others = np.full((node_gpus, width), -1)
        others[:, :hops] = route(topology, beside[0], beside[1], routing, seed=seed)
        for column, (come, go) in ((hops, (ends[0], beside[0])), (hops + 2, (beside[1], ends[1]))):
            moves = np.not_equal(come, go)
            others[:, column] = np.where(moves, topology.start("nvlink", "up") + come, -1)
            others[:, column + 1] = np.where(moves, topology.start("nvlink", "down") + go, -1)
        reached = others[~_is_cut(others, health)]
        if not len(reached) or ends[0] // topology.domain_gpus == ends[1] // topology.domain_gpus:
            down = [link_name(topology, link) for link in paths[row] if link >= 0 and health[link] == 0.0]
            raise SpecError(
                f"GPU {ends[0]} cannot reach GPU {ends[1]}: {' and '.join(down)} is down, and no other card of node "
                f"{ends[0] // node_gpus} gets through to node {ends[1] // node_gpus}. Bring a link back, or give it a "
                "share above 0 as a slow link"
            )
        found.append(reached)
        shares.append(np.full(len(reached), share[row] / len(reached)))
        pairs.append(np.full(len(reached), pair[row]))
    return np.concatenate(found), np.concatenate(shares), np.concatenate(pairs)


def _is_cut(paths: IntArray, health: FloatArray) -> IntArray:
    return np.asarray(((paths >= 0) & (health[paths] == 0.0)).any(axis=1))
