"""Where the ranks of a plan sit: tensor-parallel neighbours next to each other, then context, data, pipeline.

GPU number = ((pipeline · dp + data) · cp + context) · tp + tensor: Megatron-LM's order, which keeps the most talkative
group in a node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np

from sim.arrays import Bools, Ints, Number
from sim.network.sharing import Pattern, card_share
from sim.specs import ClusterSpec, ParallelPlan


class Degrees(NamedTuple):
    """How many GPUs a plan's layers and batch are cut over: what of a plan says where its groups lie."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1

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
    # Domains only grow along a group: a run of equal ones is a domain's share of it.
    begins = np.ones(domain.shape, bool)
    begins[:, 1:] = domain[:, 1:] != domain[:, :-1]
    members = np.diff(np.flatnonzero(begins), append=domain.size)
    return int(members.min()), int(begins.sum(axis=1).max())


def _placed(size: int, stride: int, plan: ParallelPlan | Degrees, cluster: ClusterSpec, pattern: Pattern) -> Group:
    """Groups of `size` ranks, `stride` GPUs apart, that follow each other through the plan's GPUs."""
    block, gpus = size * stride, plan.num_gpus
    members, spans = worst_layout(size, stride, block, gpus // block, cluster.nvlink_domain_gpus)
    return Group(size, members, gpus > size, spans, card_share(cluster, size, stride, gpus, pattern))


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
    return card_share(cluster, plan.pp, plan.tp * plan.num_replicas, plan.num_gpus, "chain")


def layer_groups(plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> dict[str, Group]:
    """The groups over which one layer is cut, by kind."""
    placed = {"tp": tensor_group, "cp": context_group, "ep": expert_group}
    return {name: place(plan, cluster) for name, place in placed.items()}


def stack_groups(groups: list[Group]) -> Group:
    """Groups as one whose numbers are arrays over them."""
    return Group(*(np.array([getattr(group, field.name) for group in groups]) for field in fields(Group)))


def hop_crosses_domains(sender: Number, receiver: Number, plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> Number:
    """Whether any send from one pipeline rank to another leaves its NVLink domain. Takes arrays of ranks."""
    return hops_cross(np.asarray(sender), np.asarray(receiver), plan.tp * plan.num_replicas, cluster.nvlink_domain_gpus)


def hops_cross(sender: Ints, receiver: Ints, width: int, domain: int) -> Bools:
    """The same of ranks of `width` GPUs each in domains of so many."""
    if width >= domain:  # twins are at least a domain apart
        return np.asarray(sender != receiver)
    twin = np.arange(width)
    here, there = (rank[..., np.newaxis] * width + twin for rank in (sender, receiver))
    return np.asarray((here // domain != there // domain).any(axis=-1))
