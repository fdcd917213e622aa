"""Where the ranks of a plan sit: tensor-parallel neighbours next to each other, then context, data, pipeline.

GPU number = ((pipeline · dp + data) · cp + context) · tp + tensor: Megatron-LM's order, which keeps the most talkative
group in a node. A plan may lay the dimensions over the GPUs in another order (`ParallelPlan.placement`), a scheduler
may scatter the job's nodes (`ClusterSpec.fragmentation`); groups then lie on lattices (`sim.network.lattice`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from sim.arrays import Bools, Ints, Number
from sim.network.lattice import Lattice, lattice_of
from sim.network.ranks import Nodes
from sim.network.sharing import Pattern, card_share, share_of
from sim.specs import ClusterSpec, ParallelPlan, Scenario
from sim.specs.plan import MEGATRON_ORDER


class Degrees(NamedTuple):
    """How many GPUs a plan's layers and batch are cut over: what of a plan says where its groups lie."""

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
    def num_expert_replicas(self) -> int:
        """GPUs that hold the same experts, or parts of them."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

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
    card_share : of a card's rate, what the switches leave each member where all groups of the kind talk at once.
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

    def take(self, places: Any) -> Self:
        """The groups at some places of arrays."""
        return type(self)(*(np.asarray(getattr(self, field.name))[places] for field in fields(self)))


def group_of(size: Number, stride: Number, domain_gpus: Number) -> Group:
    """A group that starts with a domain and whose members are `stride` GPUs apart. Takes arrays."""
    per_domain = np.clip(np.floor(domain_gpus / stride), 1, size)
    return Group(size, per_domain, np.asarray(stride) > 1)


@cache
def worst_layout(size: int, stride: int, block: int, num_groups: int, domain_gpus: int) -> tuple[int, int]:
    """(fewest members in a domain, domains spanned) of the group that lies worst.

    The groups start at every one of `stride` GPUs of each of `num_groups` blocks of `block` GPUs; their members are
    `stride` apart. A group that is not aligned with the domains straddles them, and the slowest sets the pace.
    """
    if stride >= domain_gpus:
        return 1, size
    # Where a group starts within a domain decides; that repeats after lcm(block, domain).
    blocks = min(num_groups, domain_gpus // math.gcd(block, domain_gpus))
    starts = (np.arange(blocks)[:, np.newaxis] * block + np.arange(stride)).ravel() % domain_gpus
    starts = np.flatnonzero(np.bincount(starts))
    domain = (starts[:, np.newaxis] + stride * np.arange(size)) // domain_gpus
    return _fewest_and_spans(domain)


def _fewest_and_spans(domain: Ints) -> tuple[int, int]:
    """(fewest members in a domain, domains spanned) of the worst of groups with these domains, (groups, members)."""
    # Domains only grow along a group: a run of equal ones is a domain's share of it.
    begins = np.ones(domain.shape, bool)
    begins[:, 1:] = domain[:, 1:] != domain[:, :-1]
    members = np.diff(np.flatnonzero(begins), append=domain.size)
    return int(members.min()), int(begins.sum(axis=1).max())


def _placed(size: int, stride: int, plan: ParallelPlan | Degrees, cluster: ClusterSpec, pattern: Pattern) -> Group:
    """Groups of `size` ranks whose numbers are `stride` apart, that follow each other through the plan's."""
    block, gpus, domain = size * stride, plan.num_gpus, cluster.nvlink_domain_gpus
    if size == 1 or _in_order(plan, cluster):
        members, spans = worst_layout(size, stride, block, gpus // block, domain)
        return Group(size, members, gpus > size, spans, card_share(cluster, size, stride, gpus, pattern))
    lattice = _lattice(size, stride, plan)
    members, spans = _worst_on(lattice, *_scattering(cluster))
    return Group(size, members, gpus > size, spans, 1.0 if spans == 1 else share_of(cluster, lattice, pattern))


def _in_order(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> bool:
    """Whether ranks fill the machine's GPUs one after the other."""
    return plan.placement == MEGATRON_ORDER and not cluster.fragmentation


def _lattice(size: int, stride: int, plan: ParallelPlan | Degrees) -> Lattice:
    return lattice_of(size, stride, plan.placement, (plan.tp, plan.cp, plan.dp, plan.pp))


def _scattering(cluster: ClusterSpec) -> tuple[int, Nodes | None]:
    """GPUs of an NVLink domain; and the nodes, where it matters to domains that a job's lie anywhere."""
    domain = cluster.nvlink_domain_gpus
    return domain, Nodes.of(cluster) if cluster.fragmentation and domain > cluster.node.gpus_per_node else None


def _domains(lattice: Lattice, domain_gpus: int, scattered: Nodes | None) -> Ints:
    """NVLink domain of every member of every group."""
    places = lattice.groups()
    return (places if scattered is None else scattered.gpu_of_place(lattice.num_gpus)[places]) // domain_gpus


@lru_cache(maxsize=4096)
def _worst_on(lattice: Lattice, domain_gpus: int, scattered: Nodes | None) -> tuple[int, int]:
    """As of `worst_layout`, of groups on a lattice."""
    domain = _domains(lattice, domain_gpus, scattered)
    return _fewest_and_spans(domain)


def tensor_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Group:
    """The tensor-parallel group."""
    return _placed(plan.tp, 1, plan, cluster, "ring")


def data_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Group:
    """The group that sums gradients and over which ZeRO shards: data- and context-parallel ranks together."""
    return _placed(plan.num_replicas, plan.tp, plan, cluster, "ring")


def sharding_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec, size: int) -> Group:
    """The groups of so many neighbours among a data group's ranks, within which ZeRO shards."""
    return _placed(size, plan.tp, plan, cluster, "ring")


def expert_sharding_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec, size: int) -> Group:
    """Of a sharding group and its tensor-parallel twins, those that hold the same experts, which shard these.

    Experts are sharded over what expert parallelism leaves of the same GPUs, and have as many copies as everything else
    (torchtitan's mesh efsdp inside dp_replicate, torchtitan/distributed/parallel_dims.py; NVIDIA/Megatron-LM:megatron/
    core/parallel_state.py, intra_partial_expert_data_parallel_group).
    """
    stride = plan.ep * plan.etp
    return _placed(plan.tp * size // stride, stride, plan, cluster, "ring")


def between_sharding_groups(plan: ParallelPlan | Degrees, cluster: ClusterSpec, size: int) -> Group:
    """The ranks that hold the same shard, of experts or of everything else: one in each sharding group."""
    return _placed(plan.num_replicas // size, plan.tp * size, plan, cluster, "ring")


def context_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Group:
    """The context-parallel group."""
    return _placed(plan.cp, plan.tp, plan, cluster, "ring")


def expert_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Group:
    """The expert-parallel group: neighbours among the GPUs that hold the same layers, whatever else these share; where
    experts are cut, those with the same part (NVIDIA/Megatron-LM:megatron/core/parallel_state.py, expert ranks).
    """
    return _placed(plan.ep, plan.etp, plan, cluster, "all_to_all")


def expert_data_group(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Group:
    """The group that sums the gradients of the same experts, and over which ZeRO shards them."""
    return _placed(plan.num_expert_replicas, plan.ep * plan.etp, plan, cluster, "ring")


def send_share(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> float:
    """Of a card's rate, what the switches leave where every pipeline rank sends to the next at once."""
    width = plan.tp * plan.num_replicas
    if plan.pp == 1 or _in_order(plan, cluster):
        return card_share(cluster, plan.pp, width, plan.num_gpus, "chain")
    return share_of(cluster, _lattice(plan.pp, width, plan), "chain")


def layer_groups(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> dict[str, Group]:
    """The groups over which one layer is cut, by kind."""
    placed = {"tp": tensor_group, "cp": context_group, "ep": expert_group}
    return {name: place(plan, cluster) for name, place in placed.items()}


def stack_groups(groups: list[Group]) -> Group:
    """Groups as one whose numbers are arrays over them."""
    return Group(*(np.array([getattr(group, field.name) for group in groups]) for field in fields(Group)))


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

    def cross(self, sender: Ints, receiver: Ints) -> Bools:
        """Whether they do, of arrays of ranks."""
        if not self.table:
            return hops_cross(np.asarray(sender), np.asarray(receiver), self.width, self.domain)
        leaves = np.frombuffer(self.table, dtype=bool)
        ranks = math.isqrt(len(leaves))
        return np.asarray(leaves.reshape(ranks, ranks)[sender, receiver])

    @property
    def all_leave(self) -> bool:
        """Whether every send to another rank is known to."""
        if not self.table:
            return self.width >= self.domain  # twins are at least a domain apart
        return self.table.count(0) == math.isqrt(len(self.table))


def hops_of(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Hops:
    """Of a plan's pipelines."""
    width, domain = plan.tp * plan.num_replicas, cluster.nvlink_domain_gpus
    if plan.pp == 1 or _in_order(plan, cluster):
        return Hops(min(width, domain), domain)
    return Hops(0, domain, _leaving(_lattice(plan.pp, width, plan), *_scattering(cluster)))


@lru_cache(maxsize=1024)
def _leaving(lattice: Lattice, domain_gpus: int, scattered: Nodes | None) -> bytes:
    """The table of pipelines whose ranks lie on a lattice."""
    domain = _domains(lattice, domain_gpus, scattered)
    return np.stack([(domain != here[:, np.newaxis]).any(axis=0) for here in domain.T]).tobytes()


def hop_crosses_domains(sender: Number, receiver: Number, plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Number:
    """Whether any send from one pipeline rank to another leaves its NVLink domain. Takes arrays of ranks."""
    return hops_of(plan, cluster).cross(np.asarray(sender), np.asarray(receiver))


def hops_cross(sender: Ints, receiver: Ints, width: int, domain: int) -> Bools:
    """The same of ranks of `width` GPUs each in domains of so many."""
    if width >= domain:  # twins are at least a domain apart
        return np.asarray(sender != receiver)
    twin = np.arange(width)
    here, there = (rank[..., np.newaxis] * width + twin for rank in (sender, receiver))
    return np.asarray((here // domain != there // domain).any(axis=-1))


def assumed(scenario: Scenario) -> Iterator[str]:
    """Where ranks lie, if not one after the other."""
    order, share = scenario.plan.placement, scenario.cluster.fragmentation
    if order != MEGATRON_ORDER:
        yield f"ranks lie on the GPUs as {order}, the first dimension's neighbours closest"
    if share:
        yield f"{share:.0%} of the job's nodes lie anywhere in the machine: drawn once, the same for all answers"
