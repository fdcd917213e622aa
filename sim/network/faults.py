"""Slow and lost links: how they are named, what is left of every link, and the ways around those that are down.

Names, each for both directions: `node12` (all cards of the node), `node12.nic3` (one), `gpu17.nic` (the card a GPU
uses), `leaf4` (all cables up from one group of switches of a level), `leaf4.cable7` (one of them).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import SpecError
from sim.network.routing import Routing, route
from sim.network.topology import Topology

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
