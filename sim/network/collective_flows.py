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
from sim.errors import FlopcastError, SpecError
from sim.network.routing import Routing, route
from sim.network.topology import Topology, parent_of_group
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

    def __add__(self, other: Flows) -> Flows:
        return Flows(
            self.num_flows + other.num_flows,
            np.concatenate([self.flow, other.flow + self.num_flows]),
            np.concatenate([self.link, other.link]),
            np.concatenate([self.load, other.load]),
            np.concatenate([self.share, other.share]),
        )


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
    are frozen below it.

    capacity : of every link. [bytes/s]

    Rates are infinite for flows that use no link of finite capacity.

    .. [1] Bertsekas, Gallager 1992, "Data Networks", section 6.5.2.
    """
    links, link = np.unique(flows.link, return_inverse=True)
    return fill(Flows(flows.num_flows, flows.flow, link, flows.load, flows.share), capacity[links])


def fill(flows: Flows, free: FloatArray) -> FloatArray:
    """`max_min_rates` where `free` is what is left of every link, and few links are without flows.  [bytes/s]"""
    rates = np.full(flows.num_flows, np.inf)
    finite = np.isfinite(free[flows.link])
    flow, link, load = flows.flow[finite], flows.link[finite], flows.load[finite]
    free = free.astype(float)
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


def finish_times(
    capacity: FloatArray,
    flows: Flows,
    starts_s: FloatArray | float,
    nbytes: FloatArray | float,
    *,
    done_share: float = 1e-9,
) -> FloatArray:
    """When flows are done that start at known times and share links max-min fairly.  [s]

    Rates are computed anew whenever a flow comes or goes. (Messages of a training step go over `sim.engines.wire`,
    which remembers the rates of sets that come back.)

    capacity : of every link. [bytes/s]
    starts_s, nbytes : when each flow starts and what it moves. [s, bytes]
    done_share : share of a flow's bytes that may be left when it counts as done, so that flows alike end together. A
        larger one (0.01) is quick where thousands of unlike flows would end one by one.
    """
    starts, sizes = (np.broadcast_to(np.asarray(x, dtype=float), flows.num_flows) for x in (starts_s, nbytes))
    if not sizes.min(initial=0.0) >= 0:
        raise SpecError(f"a flow of {sizes.min()} bytes: the bytes of a flow cannot be negative")
    left, finish = sizes.copy(), np.full(flows.num_flows, np.nan)
    now = 0.0
    while np.isnan(finish).any():
        running = np.flatnonzero(np.isnan(finish) & (starts <= now))
        rates = max_min_rates(_some(flows, running), capacity)
        wait = np.full(len(running), np.inf)
        np.divide(left[running], rates, out=wait, where=rates > 0)
        wait[left[running] == 0] = 0.0
        arrival = float(starts[starts > now].min(initial=np.inf))
        step = min(float(wait.min(initial=np.inf)), arrival - now)
        if not np.isfinite(step):
            raise FlopcastError(
                f"flow {running[0]} never ends: a link on its path has no capacity; route around it or bring it back"
            )
        now = arrival if step == arrival - now else now + step
        moved = left[running]
        np.multiply(rates, step, out=moved, where=wait > step)
        left[running] = np.maximum(left[running] - moved, 0.0)
        finish[running[left[running] <= done_share * sizes[running]]] = now
    return finish


def _some(flows: Flows, ids: IntArray) -> Flows:
    """Return some of the flows, numbered anew."""
    number = np.full(flows.num_flows, -1)
    number[ids] = np.arange(len(ids))
    kept = number[flows.flow] >= 0
    return Flows(len(ids), number[flows.flow[kept]], flows.link[kept], flows.load[kept], flows.share[ids])


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


def network_tree(topology: Topology, gpus: IntArray, number: int = 0, trunks: bool = True) -> IntArray:
    """Return the links of a reduction by the network's switches over GPUs of different nodes.

    gpus : array of int
    number : which of the equal trees; reductions that run together should have different numbers.
    trunks : name trunks instead of cables between switches, for flows routed adaptively. A tree is one stream and takes
        one cable's share of a trunk.
    """
    nics = np.unique(topology.nic_of_gpu(gpus))
    links = [
        topology.start(name, direction) + ends
        for name, ends in (("pcie", gpus), ("nic", nics))
        for direction in ("up", "down")
    ]
    groups = [np.unique(groups[nics]) for groups in topology.groups_of_nics]
    top = next(i for i, group in enumerate(groups) if len(group) == 1)
    switch = {int(groups[top][0]): number % topology.levels[top].switches}
    for i in range(top - 1, -1, -1):
        level, above = topology.levels[i], topology.levels[i + 1]
        if trunks:
            links += [topology.start(f"{level.name} trunk", direction) + groups[i] for direction in ("up", "down")]
            continue
        parents, child = parent_of_group(topology, i + 1, groups[i])
        at = np.array([switch[parent] for parent in parents.tolist()])
        # The first cable of each group that ends at the parent's switch, as in sim.network.routing.
        cable = (at - child * level.cables_per_group) % above.switches
        switch = dict(zip(groups[i].tolist(), (cable // level.uplinks).tolist(), strict=True))
        for direction in ("up", "down"):
            links.append(topology.start(level.name, direction) + groups[i] * level.cables_per_group + cable)
    return np.concatenate(links)


def phase_flows(
    phase: Phase, topology: Topology, routing: Routing = "adaptive", *, subflows: int = 1, proxy: bool = False
) -> tuple[Flows, FloatArray]:
    """Return the flows of one phase over a machine's links, and the bytes of each; options as of `routing.route`."""
    paths = route(topology, phase.source, phase.target, routing, subflows=subflows, proxy=proxy)
    flows, sizes = flows_on(paths), np.repeat(phase.nbytes / subflows, subflows)
    if phase.trees:
        ends = [topology.start("nvlink", direction) for direction in ("up", "down")]
        in_order = sorted(phase.trees, key=lambda tree: tree.over_nvlink)  # the network's are told apart by number
        trees = [
            np.concatenate([end + tree.gpus for end in ends])
            if tree.over_nvlink
            else network_tree(topology, tree.gpus, number, trunks=routing == "adaptive")
            for number, tree in enumerate(in_order)
        ]
        longest = max(map(len, trees))
        padded = np.stack([np.pad(tree, (0, longest - len(tree)), constant_values=-1) for tree in trees])
        flows, sizes = flows + flows_on(padded), np.concatenate([sizes, [tree.nbytes for tree in in_order]])
    return flows, sizes


def pattern_time(
    pattern: Pattern,
    topology: Topology,
    routing: Routing = "adaptive",
    *,
    subflows: int = 1,
    proxy: bool = False,
    done_share: float = 1e-9,
) -> float:
    """Time of a collective that has the machine to itself, without latency.  [s]

    done_share : as in `sim.network.collective_flows.finish_times`; the rest as in `sim.network.routing.route`.
    """
    phases = (phase_flows(phase, topology, routing, subflows=subflows, proxy=proxy) for phase in pattern)
    ends = [finish_times(topology.capacity, flows, 0.0, sizes, done_share=done_share) for flows, sizes in phases]
    return sum(float(end.max(initial=0.0)) for end in ends)


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

    Routed as the network says, added up in its switches if they can, and in NVLink's if `nvlink_adds`. Flows that share
    links unevenly count as done with a hundredth left. Of more than MOST_TO_ALL GPUs without the all-to-all; by rails,
    what goes to a GPU of another rail goes over NVLink to the neighbour on that rail first (NCCL's PXN).
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
    time = partial(pattern_time, topology=topology, routing=network.routing, subflows=network.subflows, done_share=0.01)
    ways = COLLECTIVES | {"all-reduce in the switches": partial(switch_all_reduce, nvlink_adds=nvlink_adds)}
    found = {name: make(members, nbytes) for name, make in ways.items() if not left_out.get(name)}
    times = {name: time(pattern) for name, pattern in found.items()}
    if "all-to-all" in times and several and topology.rails > 1:
        times["all-to-all by rails"] = time(found["all-to-all"], proxy=True)
    return times
