"""Collectives as flows over a machine's links: who sends how much to whom, phase by phase, and their time alone.

A flow is a stream of bytes over a set of links. Its path is not a sequence here but an incidence: how many bytes each
link carries for one byte of the flow. That is 1 along a path, and whatever a collective puts on each link when the
whole collective is one flow.

A collective runs over a placement: an array of GPUs whose row d holds its members in NVLink domain d. Phases follow
each other; the flows of one phase run together. The many steps of a ring are one phase, because in every step each
member sends the same amount over the same links. A phase takes the bytes on its busiest link over that link's
bandwidth, and the collectives what the formulas of `sim.costs.collectives` say of bandwidth.

Where switches add what passes (NVLS inside an NVLink domain, SHARP between nodes), a member sends its data up a tree
once and receives the sum once; a link between switches carries one stream each way however many members are below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.errors import SpecError
from sim.network.routing import Routing, route
from sim.network.topology import Direction, Topology
from sim.specs.hardware import NetworkSpec

SLACK = 1e-9
"""Relative difference that rounding may make between a link's capacity and what is asked of it."""
_TIE = 1e-12
"""Relative difference below which two links are taken to saturate together."""


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows as a sparse matrix: entry e puts `load[e]` bytes on link `link[e]` for every byte of flow `flow[e]`.

    flow : ascending; flows are numbered 0 … num_flows − 1, and one without an entry uses no link.
    load : positive.
    share : what each flow is entitled to relative to the others on a saturated link.
    """

    num_flows: int
    flow: IntArray
    link: IntArray
    load: FloatArray
    share: FloatArray


def flows_on(paths: IntArray) -> Flows:
    """Return one flow for each row of `paths` (link numbers, padded with -1), as `sim.network.routing.route` gives."""
    paths = np.atleast_2d(paths)
    flow, place = np.nonzero(paths >= 0)
    return Flows(len(paths), flow, paths[flow, place], np.ones(len(flow)), np.ones(len(paths)))


def max_min_rates(flows: Flows, capacity: FloatArray) -> FloatArray:
    """Rates at which no flow can go faster without slowing one that is no faster (per share).  [bytes/s]

    Progressive filling: all rates rise together, in proportion to the flows' shares, until a link is full; its flows
    are frozen, the others rise on [1]_. Many links are filled at once: one that would be the first to saturate for
    every flow on it does so at that very level, because the level at which a link saturates never falls while flows
    are frozen below it. Rates are infinite for flows that use no link of finite capacity.

    .. [1] Bertsekas, Gallager 1992, "Data Networks", section 6.5.2.
    """
    links, link = np.unique(flows.link, return_inverse=True)
    free, rates = capacity[links].astype(float), np.full(flows.num_flows, np.inf)
    finite = np.isfinite(free[link])
    flow, link, load = flows.flow[finite], link[finite], flows.load[finite]
    while flow.size:
        demand = np.bincount(link, load * flows.share[flow], minlength=len(free))
        saturates = np.full(len(free), np.inf)
        np.divide(free, demand, out=saturates, where=demand > 0)
        first = np.flatnonzero(np.diff(flow, prepend=-1))
        entries = np.diff(first, append=len(flow))
        level = np.minimum.reduceat(saturates[link], first)
        saturates_elsewhere = saturates[link] > np.repeat(level, entries) * (1 + _TIE)
        full = np.bincount(link, saturates_elsewhere, minlength=len(free)) == 0
        frozen = np.maximum.reduceat(full[link], first)
        ids = flow[first[frozen]]
        rates[ids] = level[frozen] * flows.share[ids]
        gone = np.repeat(frozen, entries)
        used = np.bincount(link[gone], load[gone] * rates[flow[gone]], minlength=len(free))
        free = np.maximum(free - used, 0.0)
        flow, link, load = flow[~gone], link[~gone], load[~gone]
    return rates


_NOBODY = np.empty(0, dtype=int)


class Tree(NamedTuple):
    """GPUs whose data switches add and hand out: one flow, up and down at once.

    nbytes : that each GPU sends, and receives. [bytes]
    over_nvlink : whether the switches are NVLink's (NVLS) or the network's (SHARP).
    """

    gpus: IntArray
    nbytes: float
    over_nvlink: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """Flows that run together.

    source, target : GPUs.
    nbytes : of each flow, over all steps. [bytes]
    trees : what switches add meanwhile.
    """

    source: IntArray
    target: IntArray
    nbytes: FloatArray
    trees: tuple[Tree, ...] = ()


Pattern = tuple[Phase, ...]


def members_by_domain(gpus: IntArray, domain_gpus: int) -> IntArray:
    """Return the GPUs of a group as an array (domains, members a domain)."""
    gpus = np.asarray(gpus)
    domains, counts = np.unique(gpus // domain_gpus, return_counts=True)
    if len(set(counts.tolist())) > 1:
        raise SpecError(
            f"a group has {counts.min()} to {counts.max()} members in its {len(domains)} NVLink domains; collectives "
            "are laid out for equally many: choose degrees that divide the domain"
        )
    order = np.argsort(gpus // domain_gpus, kind="stable")
    return gpus[order].reshape(len(domains), -1)


def ring(placement: IntArray, nbytes: float, passes: int) -> Pattern:
    """Rings that carry (n−1)/n of the buffer `passes` times: 2 an all-reduce, 1 an all-gather or a reduce-scatter.

    Between domains there is one ring for each member of a domain, with its share of the buffer, so that every card is
    used. A ring runs through a domain and leaves over the card of its last member; every second domain is passed
    backwards, so that it stays on one rail (with an odd number of domains, but for its last hop). Each of g members
    uses NVLink in all rings but the one it leaves the domain with, (g−1)/g of what it sends; the formulas of
    `sim.costs.collectives` count all of it, which shows only where g cards are faster than NVLink.
    """
    domains, per_domain = placement.shape
    n = placement.size
    if n == 1:
        return ()
    channels = per_domain if domains > 1 else 1
    places = (np.arange(channels)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    order = np.concatenate([row[places if d % 2 == 0 else places[:, ::-1]] for d, row in enumerate(placement)], axis=1)
    volume = passes * (n - 1) / n * nbytes / channels
    return (Phase(order.ravel(), np.roll(order, -1, axis=1).ravel(), np.full(order.size, volume)),)


def tree_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """Double binary tree between domains, chains inside them, up and down at once.

    Half of the buffer climbs one tree over the domains, half the other; a domain that branches in one is a leaf of the
    other, so none sends or receives more than twice its buffer [1]_. Members share the buffer, each with the card
    and the chain of its own.

    .. [1] Sanders, Speck, Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    domains, per_domain = placement.shape
    if domains == 1:
        raise SpecError("a tree all-reduce joins NVLink domains; inside one, use a ring or NVLS")
    parents, ranks = _tree_parents(domains), np.arange(domains)
    # The second tree is the first with the domains renamed so that its leaves branch here.
    renamed = np.argsort(domains - 1 - ranks if domains % 2 == 0 else (ranks - 1) % domains)
    child = np.flatnonzero(parents >= 0)
    source, target = (
        np.concatenate([placement[ends], placement[renamed[ends]]]).ravel() for ends in (child, parents[child])
    )
    share = nbytes / 2 / per_domain
    # Channel c gathers on member c: a chain from c − 1 down to c + 1 … to c, and back.
    turn = (np.arange(per_domain)[:, np.newaxis] + np.arange(per_domain)) % per_domain
    chain = placement[:, turn]  # domain, channel, from the head on
    links = chain[:, :, 1:].ravel(), chain[:, :, :-1].ravel()
    sizes = np.concatenate([np.full(2 * source.size, share), np.full(2 * links[0].size, 2 * share)])
    return (Phase(np.concatenate([source, target, *links]), np.concatenate([target, source, *links[::-1]]), sizes),)


def _tree_parents(n: int) -> IntArray:
    """Return the parent of each rank (-1: none) in an in-order binary tree with odd ranks as leaves.

    Rank 0 is a root with one child. A rank whose lowest set bit is 2ᵏ hangs under the neighbour whose lowest set bit is
    2ᵏ⁺¹, or, where that is past the end, under the next one down.
    """
    parents = np.full(n, -1)
    for rank in range(1, n):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        parents[rank] = parent if parent < n else rank ^ bit
    return parents


def hierarchical_all_reduce(placement: IntArray, nbytes: float) -> Pattern:
    """Reduce-scatter inside each domain, ring all-reduce of the shares between domains, all-gather inside."""
    inside = _together([ring(row[np.newaxis], nbytes, 1) for row in placement])
    rails = [ring(column[:, np.newaxis], nbytes / placement.shape[1], 2) for column in placement.T]
    return (*inside, *_together(rails), *inside)


def switch_all_reduce(placement: IntArray, nbytes: float, nvlink_adds: bool = True) -> Pattern:
    """All-reduce that switches add up: NVLink's inside a domain (NVLS), the network's between several (SHARP).

    Of n members of one domain each sends its whole buffer to be added and its 1/n of the sum to be handed out, and
    receives as much: (n+1)/n of the buffer each way instead of 2 (n−1)/n. Between domains each member sends its share
    up once. The buffer passes NVLink and the network in pieces, one behind the other: all of it at once
    (NVIDIA/nccl:src/device/all_reduce.h, NVLS and COLLNET_DIRECT).

    nvlink_adds : else members of a domain reduce and gather round a ring.
    """
    domains, n = placement.shape
    if placement.size == 1:
        return ()
    inside = Phase(_NOBODY, _NOBODY, np.empty(0), tuple(Tree(row, nbytes * (n + 1) / n, True) for row in placement))
    if n == 1 or not nvlink_adds:
        around = _together([ring(row[np.newaxis], nbytes, 2) for row in placement])
        inside = around[0] if around else Phase(_NOBODY, _NOBODY, np.empty(0))
    between = tuple(Tree(column, nbytes / n, False) for column in placement.T) if domains > 1 else ()
    return (replace(inside, trees=inside.trees + between),)


def all_to_all(placement: IntArray, nbytes: float) -> Pattern:
    """Every member sends 1/n of its `nbytes` to every other."""
    members = placement.ravel()
    n = len(members)
    apart = (np.arange(n)[:, np.newaxis] + np.arange(1, n)) % n
    return (Phase(np.repeat(members, n - 1), members[apart].ravel(), np.full(n * (n - 1), nbytes / n)),)


def _together(patterns: Sequence[Pattern]) -> Pattern:
    """Patterns alike, of different members, run at the same time."""
    return tuple(
        replace(
            phases[0],
            source=np.concatenate([phase.source for phase in phases]),
            target=np.concatenate([phase.target for phase in phases]),
            nbytes=np.concatenate([phase.nbytes for phase in phases]),
        )
        for phases in zip(*patterns, strict=True)
    )


def tree_links(topology: Topology, tree: Tree) -> IntArray:
    """Return the links that a reduction by switches takes, up and down; of the network's, the trunks of its groups."""
    both: tuple[Direction, ...] = ("up", "down")
    if tree.over_nvlink:
        return np.concatenate([topology.start("nvlink", direction) + tree.gpus for direction in both])
    nics = np.unique(topology.nic_of_gpu(tree.gpus))
    ends = [("pcie", tree.gpus), ("nic", nics)]
    groups = [np.unique(groups[nics]) for groups in topology.groups_of_nics]
    top = next(place for place, group in enumerate(groups) if len(group) == 1)
    ends += [(f"{level.name} trunk", group) for level, group in zip(topology.levels[:top], groups, strict=False)]
    return np.concatenate([topology.start(name, direction) + end for name, end in ends for direction in both])


def bytes_on_links(
    phase: Phase, topology: Topology, routing: Routing = "adaptive", *, subflows: int = 1, proxy: bool = False
) -> FloatArray:
    """Return what one phase puts on every link; options as of `routing.route`.  [bytes]"""
    paths = route(topology, phase.source, phase.target, routing, subflows=subflows, proxy=proxy)
    flow, place = np.nonzero(paths >= 0)
    sizes = np.repeat(phase.nbytes / subflows, subflows)
    carried = np.bincount(paths[flow, place], sizes[flow], minlength=topology.num_links)
    for tree in phase.trees:
        np.add.at(carried, tree_links(topology, tree), tree.nbytes)
    return carried


def pattern_time(
    pattern: Pattern, topology: Topology, routing: Routing = "adaptive", *, subflows: int = 1, proxy: bool = False
) -> float:
    """Time of a collective that has the machine to itself, without latency; options as of `routing.route`.  [s]"""
    phases = (bytes_on_links(phase, topology, routing, subflows=subflows, proxy=proxy) for phase in pattern)
    return sum(float((carried / topology.capacity).max()) for carried in phases)


COLLECTIVES: dict[str, Callable[[IntArray, float], Pattern]] = {
    "ring all-reduce": partial(ring, passes=2),
    "tree all-reduce": tree_all_reduce,
    "hierarchical all-reduce": hierarchical_all_reduce,
    "all-reduce in the switches": switch_all_reduce,
    "all-gather": partial(ring, passes=1),
    "reduce-scatter": partial(ring, passes=1),
    "all-to-all": all_to_all,
}
MOST_TO_ALL = 256
"""GPUs beyond which an all-to-all, a flow for every pair, is left out."""


def collective_times(
    topology: Topology, num_gpus: int, nbytes: float, network: NetworkSpec, *, nvlink_adds: bool = True
) -> dict[str, float]:
    """What the links alone allow: collectives over the machine's first GPUs, with all to themselves, no latency.  [s]

    Routed as the network says, added up in its switches if they can, and in NVLink's if `nvlink_adds`. Of more than
    MOST_TO_ALL GPUs without the all-to-all; by rails, what goes to a GPU of another rail goes over NVLink to the
    neighbour on that rail first (NCCL's PXN).
    """
    if not 2 <= num_gpus <= topology.num_gpus:
        raise SpecError(f"a collective over {num_gpus} GPUs: give 2 to {topology.num_gpus:,}, those of the machine")
    members = members_by_domain(np.arange(num_gpus), topology.domain_gpus)
    several = len(members) > 1
    left_out = {
        "tree all-reduce": not several,
        "hierarchical all-reduce": not several,
        "all-reduce in the switches": not (network.in_network_reduction if several else nvlink_adds),
        "all-to-all": num_gpus > MOST_TO_ALL,
    }
    time = partial(pattern_time, topology=topology, routing=network.routing, subflows=network.subflows)
    ways = COLLECTIVES | {"all-reduce in the switches": partial(switch_all_reduce, nvlink_adds=nvlink_adds)}
    found = {name: make(members, nbytes) for name, make in ways.items() if not left_out.get(name)}
    times = {name: time(pattern) for name, pattern in found.items()}
    if "all-to-all" in times and several and topology.rails > 1:
        times["all-to-all by rails"] = time(found["all-to-all"], proxy=True)
    return times
