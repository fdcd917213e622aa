"""Seconds of collectives and sends over NVLink and the network.

`V` is what a rank moves, n the ranks, g of them in an NVLink domain, N domains. Every function takes floats or arrays;
a group of one costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Number
from sim.network.placement import Group, nvlink_shares
from sim.network.topology import build_levels
from sim.specs import ClusterSpec, Profile
from sim.specs.profile import LinkParams
from sim.work.routing import different

#: Bus bandwidth of NCCL's double binary tree relative to its ring, between nodes (NVIDIA/nccl:src/graph/tuning.cc).
_TREE_BANDWIDTH = 0.92


@dataclass(frozen=True, slots=True)
class Fabric:
    """NVLink and network as a profile finds them. Bandwidths are per GPU and direction. [bytes/s]"""

    nvlink: LinkParams
    network: LinkParams
    nvlink_bytes_per_s: Number
    network_bytes_per_s: Number
    nvlink_shares: np.ndarray | None = None
    """Share of NVLink that a group of so many GPUs of a domain can use; None: all of it."""
    best_share: float = 1.0
    """Share of a card's rate that messages reach at best. A link that many messages share divides this share."""

    def of_operation(self, operation: str) -> Fabric:
        """The fabric as one collective finds it."""
        nvlink, network = self.nvlink.of(operation), self.network.of(operation)
        if nvlink is self.nvlink and network is self.network:
            return self
        return replace(self, nvlink=nvlink, network=network)

    def inside_domain(self, group: Group) -> Number:
        """NVLink bandwidth that a group reaches.  [bytes/s]"""
        reached = self.nvlink.efficiency * self.nvlink_bytes_per_s
        if self.nvlink_shares is None:
            return reached
        return reached * self.nvlink_shares[np.asarray(group.per_domain, dtype=int)]

    def between_domains(self, group: Group) -> Number:
        """Network bandwidth that a group of `per_domain` cards a node reaches.  [bytes/s]"""
        return (
            self.of_card(self.network.in_training(group.shares_network), group.card_share)
            * self.network_bytes_per_s
            * group.per_domain
        )

    def of_card(self, fitted: Number, card_share: Number) -> Number:
        """Share of a card's rate: what was fitted to real machines, or what switches leave, whichever is less.

        What was fitted had flows of its own that met; so the lower of the two counts, and never their product.
        """
        return np.minimum(fitted, self.best_share * np.asarray(card_share))

    def card_occupied(self, group: Group, operation: str) -> Number:
        """Share of its card's best rate that a collective of a group between domains takes; 0 within a domain."""
        fitted = (
            self.of_card(self.of_operation(operation).network.in_training(group.shares_network), group.card_share)
            / self.best_share
        )
        return fitted * (np.asarray(group.num_domains) > 1)

    def hidden_share(self, group: Group, nbytes: Number, seconds: Number) -> Number:
        """Share of the time really hidden of a collective in which a rank moves `nbytes` in `seconds` beside compute.

        What passes through memory is taken from the compute beside it byte by byte, however long it takes: on a slow
        network a smaller share of the time, but for the SMs that are held until the end. Between domains the same
        ring still runs over NVLink, and the larger of the two counts.
        """
        if np.max(group.num_domains) <= 1:
            return self.nvlink.hidden_share
        seconds = np.maximum(seconds, 1e-30)
        inside = _transfer(nbytes, self.inside_domain(group), self.nvlink) * (np.asarray(group.per_domain) > 1)
        over_nvlink = (1.0 - self.nvlink.hidden_share) * np.minimum(inside / seconds, 1.0)
        between = 1.0 - np.maximum(over_nvlink, self._over_network(group, nbytes, seconds))
        return np.where(np.asarray(group.num_domains) > 1, between, self.nvlink.hidden_share)

    def _over_network(self, group: Group, nbytes: Number, seconds: Number) -> Number:
        """Share of the time that traffic between domains takes from compute."""
        network = self.network
        rate: Number = 1.0
        if network.hidden_at_bytes_per_s is not None:
            cards = self.network.in_training(group.shares_network) * network.hidden_at_bytes_per_s * group.per_domain
            there = _transfer(nbytes, cards, network)
            rate = np.minimum(there / seconds, 1.0)
        return (1.0 - network.hidden_share) * (network.held_part + (1.0 - network.held_part) * rate)

    @property
    def delay_hidden_share(self) -> float:
        """Share really hidden of what messages between domains take longer beside compute than alone.

        Their bytes pass through memory once, however long they take; multiprocessors are held until the end.
        """
        network = self.network
        held = 1.0 if network.hidden_at_bytes_per_s is None else network.held_part
        return 1.0 - (1.0 - network.hidden_share) * held

    def exposed(self, group: Group, nbytes: Number, seconds: Number, budget: Number) -> Number:
        """What collectives of `seconds` lengthen compute by, when they may run beside `budget` of it.  [s]"""
        return seconds - self.hidden_share(group, nbytes, seconds) * np.minimum(seconds, budget)

    @classmethod
    def of(cls, cluster: ClusterSpec, profile: Profile, *, nvls: bool = True) -> Fabric:
        """The fabric of a cluster under a profile; what was measured on the cluster's own network goes first.

        nvls : the library has NVLink's switches add what all-reduces send, if there are switches that can.

        Raises SpecError: the cluster's switches cannot be built: too few ports, or more nodes than they join.
        """
        if cluster.network is not None and cluster.node.gpus_per_node % cluster.node.nics_per_node == 0:
            build_levels(cluster, cluster.num_nodes)
        network, nvlink = network_of(cluster, profile), profile.nvlink
        if nvlink.in_switch_efficiency is not None and not (nvls and cluster.node.nvlink_topology == "switch"):
            nvlink = nvlink.model_copy(update={"in_switch_efficiency": None})
        if cluster.node.nvlink_topology == "pcie":  # which carries what goes to the network's cards as well
            nvlink = nvlink.model_copy(update={"hidden_share": network.hidden_share})
        # What was measured where flows met is no limit of a link, which is what one finds that meets none.
        best = best_of(network)
        if cluster.network_shared_efficiency is not None:
            best = max(best, best_of(profile.network))
        return cls(
            nvlink,
            network,
            cluster.node.nvlink_bandwidth_bytes_per_s,
            cluster.inter_node_bandwidth_bytes_per_s,
            nvlink_shares(cluster.node.nvlink_topology, cluster.nvlink_domain_gpus),
            best,
        )


def network_of(cluster: ClusterSpec, profile: Profile) -> LinkParams:
    """Return the profile's network as the cluster's own measurements change it.

    What a collective reaches that has the fabric to itself says how good the fabric is, and scales all values: what
    groups lose to each other was found on a fabric that a single one uses better. What was measured of groups that meet
    takes the place of all that does.
    """
    network, alone, meeting = profile.network, cluster.network_efficiency, cluster.network_shared_efficiency
    if alone is not None:
        network = network.scaled(alone / network.efficiency)
    if meeting is not None:
        shares = dict.fromkeys(("shared_efficiency", "job_efficiency", "p2p_efficiency"), meeting)
        changes: dict[str, object] = {**shares, "dispatch_efficiency": None, "operations": {}}
        network = network.model_copy(update=changes)
    return network


def best_of(link: LinkParams) -> float:
    """Share of a link's bandwidth that messages reach at best."""
    others = (each.efficiency for each in link.operations.values())
    return max(link.efficiency, link.p2p_efficiency, link.dispatch_efficiency or 0.0, *others)


def _transfer(volume: Number, bandwidth: Number, link: LinkParams) -> Number:
    """Time to move `volume` bytes at a bandwidth that saturates with size.  [s]"""
    ramp = 1.0 + (link.half_volume_bytes / np.maximum(volume, 1.0)) ** link.exponent
    return volume / bandwidth * ramp


def _ring_pass(nbytes: Number, group: Group, fabric: Fabric, passes: int, operation: str = "all_reduce") -> Number:
    """A ring that carries (n−1)/n of the buffer `passes` times.  [s]

    Between domains each of a domain's g members drives its own share of the network cards, so the ring moves at
    the slower of NVLink and g cards.
    """
    fabric = fabric.of_operation(operation)
    n, domains = group.size, group.num_domains
    volume = passes * (n - 1) / n * nbytes
    inside = fabric.inside_domain(group)
    outside = fabric.between_domains(group)
    one_domain = _transfer(volume, inside, fabric.nvlink)
    many = np.maximum(one_domain, _transfer(volume, outside, fabric.network))
    crossings = passes * (domains - 1)
    hops = passes * (n - 1) - crossings
    base = np.where(domains > 1, fabric.network.base_latency_s, fabric.nvlink.base_latency_s)
    latency = base + hops * fabric.nvlink.hop_latency_s + crossings * fabric.network.hop_latency_s
    return np.where(n > 1, np.where(domains > 1, many, one_domain) + latency, 0.0)


def ring_all_reduce(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time of a ring all-reduce.  [s]

    Each rank sends 2 (n−1)/n of the buffer in 2 (n−1) messages [1]_.

    nbytes : size of the full buffer on each rank. [bytes]

    .. [1] Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH", section 4.
    """
    return _ring_pass(nbytes, group, fabric, passes=2)


def tree_all_reduce(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time of NCCL's double binary tree: a chain inside a domain, a tree between domains, up and down.  [s]

    Latency grows with log₂ N instead of n: NCCL's trees are ⌈log₂ N⌉ levels deep, which its tuner rounds down [3]_.
    Each half of the buffer uses its own tree, so the bandwidth stays near the ring's [1]_. Between two domains the
    buffer crosses once, where a ring's would 2 (n−1)/n times [2]_; where the library does not use that, the trees only
    save latency.

    .. [1] Sanders, Speck, Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan";
       NVIDIA/nccl:src/graph/tuning.cc for the latency and bandwidth terms.
    .. [2] NVIDIA/nccl issue 812: two nodes of DGX A100, a tree's bus bandwidth above that of the cards.
    .. [3] NVIDIA/nccl:src/graph/trees.cc, ncclGetBtree; tuning.cc: 2 ((n/N − 1) NVLink hops + log2i(N) network hops).
    """
    n, domains = group.size, group.num_domains
    volume = 2 * (n - 1) / n * nbytes
    # Of two domains each has only one neighbour: half of the buffer climbs, and of the other half the sum comes back.
    crossing = np.where((np.asarray(domains) == 2) & fabric.network.two_domain_trees, nbytes, volume)
    inside = fabric.inside_domain(group)
    outside = fabric.between_domains(group)
    many = (
        np.maximum(_transfer(volume, inside, fabric.nvlink), _transfer(crossing, outside, fabric.network))
        / _TREE_BANDWIDTH
    )
    levels = np.ceil(np.log2(np.maximum(domains, 1)))
    latency = fabric.network.base_latency_s + 2 * (
        (group.per_domain - 1) * fabric.nvlink.hop_latency_s + levels * fabric.network.hop_latency_s
    )
    return np.where(n > 1, np.where(domains > 1, many + latency, np.inf), 0.0)


def hierarchical_all_reduce(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Reduce-scatter inside each domain, all-reduce of the shares between domains, all-gather inside (Jia et al. 2018,
    arXiv:1807.11205).  [s]"""
    inner = Group(group.per_domain, group.per_domain)
    outer = Group(group.num_domains, 1, group.shares_network, None, group.card_share)
    inside = 2 * _ring_pass(nbytes, inner, fabric, passes=1)
    between = ring_all_reduce(nbytes / group.per_domain, outer, fabric)
    return np.where(group.num_domains > 1, inside + between, np.inf)


def in_switch_all_reduce(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time of an all-reduce that NVLink's switches add up (NVLS), with a tree between domains.  [s]

    Each of g members sends its buffer to be added, and its part of the sum to be handed out: (g+1)/g of the buffer.
    The library does not use the switches for fewer than three members [2]_. Ramp and latency are those of the link's
    rings. NCCL's protocols for small messages (LL, LL128) are not modelled. On H100 this curve is within 20 % of
    measured times from 32 kB to 16 GiB (tests/costs/test_nodes.py).

    Between domains every member's part climbs a tree of its own and comes back. The buffer passes both levels in
    pieces, so the slower of the two sets the pace. Two domains exchange their parts. With more, a domain within the
    tree relays for two others, which halves the pace [1]_. The time is infinite if the profile has no such switches.

    .. [1] NVIDIA/nccl:src/graph/tuning.cc: the bus bandwidth of NVLS trees, bwInter/2 beyond two nodes.
    .. [2] NVIDIA/nccl:src/transport/nvls.cc, ncclNvlsInit.
    """
    if fabric.nvlink.in_switch_efficiency is None:
        return np.full(np.broadcast(nbytes, group.size).shape, np.inf)
    members, domains = group.per_domain, group.num_domains
    reached = fabric.nvlink.in_switch_efficiency * fabric.nvlink_bytes_per_s
    inside = _transfer(nbytes * (members + 1) / members, reached, fabric.nvlink)
    crossing = _transfer(nbytes, fabric.between_domains(group), fabric.network)
    relays = np.where(np.asarray(domains) > 2, 2.0, 1.0)
    latency = fabric.nvlink.base_latency_s + 2 * fabric.nvlink.hop_latency_s
    levels = np.ceil(np.log2(np.maximum(domains, 1)))
    between = fabric.network.base_latency_s + 2 * levels * fabric.network.hop_latency_s
    seconds = latency + np.where(domains > 1, relays * np.maximum(inside, crossing) + between, inside)
    return np.where(np.asarray(members) > 2, seconds, np.inf)


def all_reduce_ways(nbytes: Number, group: Group, fabric: Fabric) -> dict[str, Number]:
    """Time of an all-reduce by every algorithm that may be the fastest for some of the groups.  [s]"""
    ways = {"ring": ring_all_reduce(nbytes, group, fabric)}
    if np.any(np.asarray(group.num_domains) > 1):
        ways["tree"] = tree_all_reduce(nbytes, group, fabric)
        ways["hierarchical"] = hierarchical_all_reduce(nbytes, group, fabric)
    if fabric.nvlink.in_switch_efficiency is not None:
        ways["NVLS"] = np.where(np.asarray(group.size) > 1, in_switch_all_reduce(nbytes, group, fabric), np.inf)
    return ways


def all_reduce(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time of an all-reduce by the fastest algorithm, as NCCL's tuner chooses.  [s]"""
    fastest, *others = all_reduce_ways(nbytes, group, fabric).values()
    for other in others:
        fastest = np.minimum(fastest, other)
    return fastest


def all_gather(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time of a ring all-gather that ends with `nbytes` on each rank.  [s]"""
    return _ring_pass(nbytes, group, fabric, passes=1, operation="all_gather")


def reduce_scatter(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time of a ring reduce-scatter that starts with `nbytes` on each rank.  [s]"""
    return _ring_pass(nbytes, group, fabric, passes=1, operation="reduce_scatter")


def broadcast(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time until every rank has the `nbytes` of one of them.  [s]

    NCCL passes the buffer along a ring in pieces, so that every link carries all of it once [1]_.

    .. [1] NVIDIA/nccl-tests:doc/PERFORMANCE.md: of a broadcast bus and algorithm bandwidth are the same.
    """
    n = np.asarray(group.size, dtype=float)
    return _ring_pass(nbytes * n / np.maximum(n - 1.0, 1.0), group, fabric, passes=1, operation="all_gather")


def send(nbytes: Number, crosses_domains: bool, fabric: Fabric, card_share: Number = 1.0) -> Number:
    """Time of a point-to-point send from one GPU to another.  [s]

    card_share : between domains, of a card's rate what the switches leave where all pipeline ranks send at once.
    """
    link = fabric.network if crosses_domains else fabric.nvlink
    if crosses_domains:
        rate = fabric.of_card(link.p2p_efficiency, card_share) * fabric.network_bytes_per_s
    else:
        shares = fabric.nvlink_shares  # in a mesh two GPUs have their own link
        pair = 1.0 if shares is None or len(shares) < 3 else float(shares[2])
        rate = link.p2p_efficiency * (fabric.nvlink_bytes_per_s * pair)
    return link.base_latency_s + link.hop_latency_s + nbytes / rate


def send_ring(nbytes: Number, group: Group, fabric: Fabric) -> Number:
    """Time in which n − 1 sends to the next rank hand the n pieces of `nbytes` round the group.  [s]

    The slowest send sets the pace. A rank whose next one is in another domain has its own card for all that it sends,
    where a library's ring would use every member's: NCCL sends over the card next to the GPU [1]_.

    .. [1] NVIDIA/nccl:src/graph/topo.cc, ncclTopoGetLocalNet.
    """
    piece, card, link = nbytes / group.size, fabric.between_domains(group) / group.per_domain, fabric.network
    inside = send(piece, False, fabric)
    between = np.maximum(inside, link.base_latency_s + link.hop_latency_s + piece / card)
    return (group.size - 1) * np.where(np.asarray(group.num_domains) > 1, between, inside)


def all_to_all(
    nbytes: Number,
    group: Group,
    fabric: Fabric,
    copies: int = 1,
    limit: tuple[int, int] = (1, 1),
    pace: float | None = None,
) -> Number:
    """Time of an all-to-all in which each rank hands out `nbytes`, the n-th part of it to itself.  [s]

    Every rank sends (g−1)/n over NVLink and, over its own card, the (n−g)/n for other domains, both at once.

    nbytes : what each rank has for all. [bytes]
    copies : k, how many destinations each token has. 1: NCCL's all-to-all. Above 1 (DeepEP [1]_): a token is sent once
        to each rank that needs it, on average n (1 − (1 − 1/n)^k) ranks, and crosses the network once for each domain,
        N (1 − (1 − 1/N)^k). The GPU that receives it passes it on by NVLink. The network part runs at
        `dispatch_efficiency`.
    limit, pace : as of `sim.work.operations.Collective`.

    .. [1] DeepSeek-V3, arXiv:2412.19437, section 3.2.2, for routing that is even.
    """
    fabric = fabric.of_operation("all_to_all")
    n, domains, members = group.size, np.asarray(group.num_domains, dtype=float), group.per_domain
    near, sent = all_to_all_bytes(nbytes, group, copies, limit)
    inside = _transfer(near, fabric.inside_domain(group), fabric.nvlink)
    if pace is not None:
        inside = np.maximum(inside, near / pace)
    card, own = fabric.between_domains(group) / members, fabric.network.dispatch_efficiency
    if copies > 1 and own is not None:  # kernels that carry tokens to experts themselves
        card = fabric.of_card(own, group.card_share) * fabric.network_bytes_per_s
    outside = _transfer(sent, card, fabric.network)
    base = np.where(domains > 1, fabric.network.base_latency_s, fabric.nvlink.base_latency_s)
    latency = base + fabric.nvlink.hop_latency_s + (domains > 1) * fabric.network.hop_latency_s
    return np.where(n > 1, np.where(domains > 1, np.maximum(inside, outside), inside) + latency, 0.0)


def all_to_all_bytes(
    nbytes: Number, group: Group, copies: int = 1, limit: tuple[int, int] = (1, 1)
) -> tuple[Number, Number]:
    """What each rank sends in an all-to-all over NVLink, and over its card; parameters as of `all_to_all`.  [bytes]"""
    n, domains, members = group.size, np.asarray(group.num_domains, dtype=float), group.per_domain
    away, near = nbytes * (n - members) / n, nbytes * (members - 1) / n
    if copies == 1:
        return near, away
    ranks = nbytes / copies / n * different(np.asarray(n, dtype=float), copies, limit)  # to every rank
    handed_on = ranks * (n - members) * (members - 1) / members
    return ranks * (members - 1) + handed_on, away / copies * different(domains, copies, limit)


def estimated_times(nbytes: float, group: Group, exchange: Group, fabric: Fabric) -> dict[str, float]:
    """Time of every collective in estimates, by its name.  [s]

    group, exchange : the same members, in what switches leave rings and an all-to-all.
    """
    ways = {f"{name} all-reduce": time for name, time in all_reduce_ways(nbytes, group, fabric).items()}
    if np.max(group.num_domains) <= 1:
        ways["all-reduce in the switches"] = ways.pop("NVLS all-reduce", np.inf)
    others = {
        "all-gather": all_gather(nbytes, group, fabric),
        "reduce-scatter": reduce_scatter(nbytes, group, fabric),
        "all-to-all": all_to_all(nbytes, exchange, fabric),
    }
    times = ways | others
    return {name: float(time) for name, time in times.items() if np.isfinite(time)}


COLLECTIVES = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "send_ring": send_ring,
}
