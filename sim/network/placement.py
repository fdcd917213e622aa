"""Where the groups of a plan sit: tensor-parallel neighbours next to each other, then context, data, pipeline.

GPU number = ((pipeline · dp + data) · cp + context) · tp + tensor: Megatron-LM's order, which keeps the most talkative
group in a node. A plan may lay the dimensions over the GPUs in another order (`ParallelPlan.placement`), a scheduler
may scatter the job's nodes (`ClusterSpec.fragmentation`); then `gpu_of_rank` says where every rank sits. Where switches
may be short of cables, `sim.network.sharing` says what they leave; it is loaded for that alone.

A group is `size` ranks whose numbers are `stride` apart. The *places* of a job are its GPUs in the order in which its
nodes fill; another order of the dimensions deals the ranks to other places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from sim.arrays import Bools, Floats, Ints, Number
from sim.errors import SpecError
from sim.specs import ClusterSpec, ParallelPlan, Scenario
from sim.specs.plan import MEGATRON_ORDER

Pattern = Literal["ring", "all_to_all", "chain"]
"""Every member sends to the next one, to all others, or to the next but for the last."""

CUBE_MESH_LINKS = (6.0, 6.0, 1.0, 2.0, 4.0, 1.6, 2.0, 4.0, 6.0)
"""How many of a GPU's six links' bandwidth an all-reduce over the first 0 … 8 GPUs of DGX-1's hybrid cube mesh gets.

There are as many as rings fit on the mesh's links (NVIDIA DGX-1 with Tesla V100 System Architecture, WP-08437-002,
figure 4), each in one direction of a link. Two GPUs have their link. No ring joins the first five: a chain moves
2 (n−1)/n of a ring's bus bandwidth in twice the traffic, since its all-reduce sends the buffer up and down every link.
"""


class Degrees(NamedTuple):
    """Degrees of a plan and the order of its dimensions: all that decides where its groups lie."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    placement: str = MEGATRON_ORDER

    @property
    def num_replicas(self) -> int:
        """GPUs that hold the same part of the model."""
        return self.dp * self.cp

    @property
    def num_gpus(self) -> int:
        """GPUs of the plan."""
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk to each other, and how they lie over NVLink domains. Numbers may be arrays.

    size : ranks of the group.
    per_domain : members in the domain that holds fewest.
    shares_network : other groups of the same kind use the network at the same time: it is not the whole job.
    spans : NVLink domains the group spans; None where they hold equally many members.
    card_share : share of a card's rate that the switches leave each member where all groups of the kind talk at once.
    """

    size: Number
    per_domain: Number
    shares_network: Number = False
    spans: Number | None = None
    card_share: Number = 1.0

    @property
    def num_domains(self) -> Number:
        """NVLink domains the group spans."""
        return np.ceil(self.size / self.per_domain) if self.spans is None else self.spans

    @property
    def numbers(self) -> list[Any]:
        """All numbers, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, places: Any) -> Self:
        """Return the groups at some places of arrays."""
        return type(self)(*(np.asarray(number)[places] for number in self.numbers))


def group_shape(kind: str, plan: ParallelPlan | Degrees, sharding_group: int | None = None) -> tuple[int, int]:
    """Return (ranks of a group, how far apart their numbers are) of a kind of group.

    tp, cp : ranks of one layer's cut.
    ep : the expert-parallel group, neighbours among the GPUs that hold the same layers, whatever else these share;
        where experts are cut, those with the same part (NVIDIA/Megatron-LM:megatron/core/parallel_state.py, expert
        ranks).
    shards : the neighbours within which ZeRO shards: `sharding_group` of the ranks that sum gradients, or all of them,
        data- and context-parallel ranks together.
    expert_shards : those of them, and of their tensor-parallel twins, that hold the same experts. Experts are sharded
        over what expert parallelism leaves of the same GPUs, and have as many copies as everything else (torchtitan's
        mesh efsdp inside dp_replicate, torchtitan/distributed/parallel_dims.py; NVIDIA/Megatron-LM:megatron/core/
        parallel_state.py, intra_partial_expert_data_parallel_group).
    between : the ranks that hold the same shard, of experts or of everything else: one in each sharding group.
    """
    sharding, experts = sharding_group or plan.num_replicas, plan.ep * plan.etp
    return {
        "tp": (plan.tp, 1),
        "cp": (plan.cp, plan.tp),
        "ep": (plan.ep, plan.etp),
        "shards": (sharding, plan.tp),
        "expert_shards": (plan.tp * sharding // experts, experts),
        "between": (plan.num_replicas // sharding, plan.tp * sharding),
    }[kind]


def place_group(
    kind: str, plan: ParallelPlan | Degrees, cluster: ClusterSpec, sharding_group: int | None = None
) -> Group:
    """Return the groups of a kind (`group_shape`) on a cluster: the one that lies worst stands for all."""
    size, stride = group_shape(kind, plan, sharding_group)
    if size == 1 or _in_order(plan, cluster):
        members, spans = _worst_in_order(size, stride, plan.num_gpus, cluster.nvlink_domain_gpus)
    else:
        members, spans = _fewest_and_spans(groups_of(size, stride, plan, cluster) // cluster.nvlink_domain_gpus)
    pattern: Pattern = "all_to_all" if kind == "ep" else "ring"
    share = 1.0 if spans == 1 else _card_share(size, stride, plan, cluster, pattern)
    return Group(size, members, plan.num_gpus > size, spans, share)


def layer_groups(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> dict[str, Group]:
    """Return the groups over which one layer is cut, by kind."""
    return {kind: place_group(kind, plan, cluster) for kind in ("tp", "cp", "ep")}


def stack_groups(groups: list[Group]) -> Group:
    """Return groups as one whose numbers are arrays over them."""
    return Group(*map(np.array, zip(*(group.numbers for group in groups), strict=True)))


def send_share(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> float:
    """Return the share of a card's rate that the switches leave where every pipeline rank sends to the next at once."""
    return 1.0 if plan.pp == 1 else _card_share(plan.pp, plan.num_gpus // plan.pp, plan, cluster, "chain")


def nvlink_shares(topology: str, domain_gpus: int) -> Floats:
    """Return the share of the NVLink bandwidth for groups of 0 … domain_gpus GPUs; a pair's is also that of a send.

    Behind a switch, or through the host's PCIe, it is all of it. In the hybrid cube mesh a collective runs on rings
    along direct links, and a group whose links form no ring falls back to a chain. In a full mesh n members have n − 1
    of a GPU's N − 1 links: whether rings run along them, n − 1 at once, or every member sends each of the others its
    piece, all of them are in use.
    """
    if topology in ("switch", "pcie"):
        return np.ones(domain_gpus + 1)
    if topology == "full_mesh":
        others = np.maximum(np.arange(domain_gpus + 1) - 1, 0) / max(domain_gpus - 1, 1)
        return np.where(others > 0, others, 1.0)
    if domain_gpus >= len(CUBE_MESH_LINKS):
        raise SpecError(f"a hybrid cube mesh joins 8 GPUs, not {domain_gpus}; set nvlink_topology to switch")
    return np.array(CUBE_MESH_LINKS[: domain_gpus + 1]) / 6.0


def _in_order(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> bool:
    """Whether ranks fill the machine's GPUs one after the other."""
    return plan.placement == MEGATRON_ORDER and not cluster.fragmentation


def _card_share(size: int, stride: int, plan: ParallelPlan | Degrees, cluster: ClusterSpec, pattern: Pattern) -> float:
    """Return what switches leave of a card; 1 where they are not described, or GPUs do not share cards evenly."""
    network, node = cluster.network, cluster.node
    if network is None or network.is_nonblocking() or node.gpus_per_node % node.nics_per_node:
        return 1.0
    from sim.network.sharing import card_share

    shape = (size, stride, plan.num_gpus) if _in_order(plan, cluster) else None
    return card_share(cluster, lambda: groups_of(size, stride, plan, cluster), pattern, shape)


@cache
def _worst_in_order(size: int, stride: int, num_gpus: int, domain_gpus: int) -> tuple[int, int]:
    """Return (fewest members in a domain, domains spanned) of the group that lies worst.

    Groups start at every one of `stride` GPUs of each block of size · stride GPUs; their members are `stride` apart. A
    group that is not aligned with the domains straddles them, and the slowest sets the pace.
    """
    if stride >= domain_gpus:
        return 1, size
    # Where a group starts within a domain decides; that repeats after lcm(block, domain).
    block = size * stride
    blocks = min(num_gpus // block, domain_gpus // math.gcd(block, domain_gpus))
    starts = (np.arange(blocks)[:, np.newaxis] * block + np.arange(stride)).ravel() % domain_gpus
    starts = np.flatnonzero(np.bincount(starts))
    return _fewest_and_spans((starts[:, np.newaxis] + stride * np.arange(size)) // domain_gpus)


def _fewest_and_spans(domain: Ints) -> tuple[int, int]:
    """Return the same of groups whose members lie in these domains, ascending along (groups, members)."""
    begins = np.ones(domain.shape, bool)
    begins[:, 1:] = domain[:, 1:] != domain[:, :-1]
    # A run of equal domains is a domain's share of a group.
    members = np.diff(np.flatnonzero(begins), append=domain.size)
    return int(members.min()), int(begins.sum(axis=1).max())


RANKS = ("tp", "cp", "dp", "pp")
"""Dimensions of a rank's number, the fastest first."""


def places_of_ranks(order: str, degrees: tuple[int, ...]) -> Ints:
    """Return the place of every rank, (pp, dp, cp, tp).

    order : the dimensions from the one whose neighbours sit closest, such as "tp-pp-cp-dp".
    degrees : how many of each there are, in the order of RANKS.
    """
    names = order.split("-")
    count = dict(zip(RANKS, degrees, strict=True))
    # Slowest first, as NumPy counts; then the axes in the order of the result.
    places = np.arange(int(np.prod(degrees))).reshape([count[name] for name in reversed(names)])
    return places.transpose([names[::-1].index(name) for name in reversed(RANKS)])


def gpu_of_rank(plan: ParallelPlan | Degrees, cluster: ClusterSpec, seed: int = 0) -> Ints:
    """Return the GPU of every rank, (pp, dp, cp, tp); `.ravel()` is indexed by Megatron-LM's rank number.

    plan : with the order of its dimensions.
    cluster : the machine; its GPUs are numbered node by node. Some of a job's nodes may lie anywhere in it.
    seed : of the scheduler that hands these out.
    """
    if plan.num_gpus > cluster.num_gpus:
        raise SpecError(
            f"the plan needs {plan.num_gpus:,} GPUs and {cluster.name!r} has {cluster.num_gpus:,}; raise num_nodes"
        )
    places = places_of_ranks(plan.placement, (plan.tp, plan.cp, plan.dp, plan.pp))
    per_node = cluster.node.gpus_per_node
    nodes = _nodes(-(-plan.num_gpus // per_node), cluster.num_nodes, cluster.fragmentation, seed)
    gpus: Ints = nodes[places // per_node] * per_node + places % per_node
    return gpus


def _nodes(wanted: int, available: int, fragmentation: float, seed: int) -> Ints:
    """Return the nodes of a job, in the order its ranks fill them: ascending, as schedulers sort them."""
    nodes = np.arange(wanted)
    moved = round(fragmentation * wanted)
    if not moved:
        return nodes
    rng = np.random.default_rng(seed)
    given_up = rng.choice(wanted, moved, replace=False)
    kept = np.delete(nodes, given_up)
    elsewhere = np.setdiff1d(np.arange(available), kept)
    return np.sort(np.concatenate([kept, rng.choice(elsewhere, moved, replace=False)]))


def groups_of(size: int, stride: int, plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Ints:
    """Return the GPUs, ascending, of all groups of `size` ranks whose numbers are `stride` apart, (groups, members)."""
    groups = _grouped(gpu_of_rank(plan, cluster), size, stride)
    return groups if (groups[:, 1:] > groups[:, :-1]).all() else np.sort(groups, axis=1)


def members_of(kind: str, plan: ParallelPlan, gpus: Ints) -> Ints:
    """Return the GPUs of every group of a kind (`sim.network.placement.group_shape`) on a pipeline rank.

    gpus : (dp, cp, tp), of a rank or of several behind each other that hold the same. Returns (groups, members).
    """
    degrees = Degrees(plan.tp, plan.cp, 1, len(gpus), plan.ep, plan.etp)
    return _grouped(gpus, *group_shape(kind, degrees, plan.sharding_group))


def _grouped(gpus: Ints, size: int, stride: int) -> Ints:
    """Return groups of `size` ranks that are `stride` apart and follow each other, (groups, members)."""
    groups: Ints = gpus.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    return groups


@dataclass(frozen=True, slots=True)
class Hops:
    """Which sends between pipeline ranks leave an NVLink domain: those of which any twin's does.

    width : GPUs of a rank, which follow each other, at most a domain's.
    domain : GPUs.
    table : where a rank's GPUs do not follow each other: whether sends from each rank to each other leave, as bytes.
    """

    width: int
    domain: int
    table: bytes = b""

    def cross(self, sender: Ints | int, receiver: Ints | int) -> Bools:
        """Return whether sends between ranks leave; takes arrays."""
        if self.table:
            ranks = math.isqrt(len(self.table))
            return np.asarray(np.frombuffer(self.table, dtype=bool).reshape(ranks, ranks)[sender, receiver])
        if self.width >= self.domain:  # twins are at least a domain apart
            return np.asarray(sender != receiver)
        twin = np.arange(self.width)
        here, there = (np.asarray(rank)[..., np.newaxis] * self.width + twin for rank in (sender, receiver))
        return np.asarray((here // self.domain != there // self.domain).any(axis=-1))

    @property
    def all_leave(self) -> bool:
        """Whether every send to another rank is known to leave."""
        if not self.table:
            return self.width >= self.domain
        return self.table.count(0) == math.isqrt(len(self.table))


def hops_of(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Hops:
    """Return which sends of a plan's pipelines leave an NVLink domain."""
    domain = cluster.nvlink_domain_gpus
    if plan.pp == 1 or _in_order(plan, cluster):
        return Hops(min(plan.num_gpus // plan.pp, domain), domain)
    at = gpu_of_rank(plan, cluster).reshape(plan.pp, -1) // domain
    return Hops(0, domain, np.stack([(at != here).any(axis=1) for here in at]).tobytes())


def assumed(scenario: Scenario) -> Iterator[str]:
    """How groups share the network, and where ranks lie, if not in a row."""
    yield (
        "all traffic of a GPU shares its network card; on other links, kinds of traffic do not slow each other "
        "(simulate --contention models that)"
    )
    ep, domain = scenario.plan.ep * scenario.plan.etp, scenario.cluster.nvlink_domain_gpus
    group = place_group("ep", scenario.plan, scenario.cluster)
    if 1 < ep <= domain and np.max(group.num_domains) > 1:
        yield (
            f"some groups of {ep} GPUs that share experts lie over {int(np.max(group.num_domains))} NVLink domains of "
            f"{domain}, and all wait for these. An ep that divides the domain keeps tokens off the network"
        )
    order, share = scenario.plan.placement, scenario.cluster.fragmentation
    if order != MEGATRON_ORDER:
        yield f"ranks are placed on the GPUs in the order {order}, closest first"
    if share:
        yield f"{share:.0%} of the job's nodes are at random places of the machine, the same for all answers"
