"""Where the ranks of a plan sit: tensor-parallel neighbours next to each other, then context, data, pipeline.

GPU number = ((pipeline · dp + data) · cp + context) · tp + tensor: Megatron-LM's order, which keeps the most talkative
group in a node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from sim.specs import ClusterSpec, ParallelPlan
from sim.work.operations import Number


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk to each other, and how they lie over NVLink domains. Numbers may be arrays.

    size : ranks of the group.
    per_domain : members in the domain that holds fewest.
    shares_network : other groups of the same kind use the network at the same time: it is not the whole job.
    spans : NVLink domains the group spans; None where they hold equally many members.
    """

    size: Number
    per_domain: Number
    shares_network: Number = False
    spans: Number | None = None

    @property
    def num_domains(self) -> Number:
        """NVLink domains the group spans."""
        return np.ceil(self.size / self.per_domain) if self.spans is None else self.spans


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


def tensor_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The tensor-parallel group."""
    members, spans = worst_layout(plan.tp, 1, plan.tp, plan.pp * plan.num_replicas, cluster.nvlink_domain_gpus)
    return Group(plan.tp, members, shares_network=plan.num_gpus > plan.tp, spans=spans)


def data_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The group that sums gradients and over which ZeRO shards: data- and context-parallel ranks together."""
    size, domain = plan.num_replicas, cluster.nvlink_domain_gpus
    members, spans = worst_layout(size, plan.tp, plan.tp * size, plan.pp, domain)
    return Group(size, members, shares_network=plan.num_gpus > size, spans=spans)


def context_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The context-parallel group."""
    block, domain = plan.tp * plan.cp, cluster.nvlink_domain_gpus
    members, spans = worst_layout(plan.cp, plan.tp, block, plan.pp * plan.dp, domain)
    return Group(plan.cp, members, shares_network=plan.num_gpus > plan.cp, spans=spans)


def expert_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The expert-parallel group: neighbours among the GPUs that hold the same layers, whatever else these share."""
    width, domain = plan.tp * plan.num_replicas, cluster.nvlink_domain_gpus
    members, spans = worst_layout(plan.ep, 1, plan.ep, plan.pp * (width // plan.ep), domain)
    return Group(plan.ep, members, shares_network=plan.num_gpus > plan.ep, spans=spans)


def expert_data_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The group that sums the gradients of the same experts, and over which ZeRO shards them."""
    size, domain = plan.num_expert_replicas, cluster.nvlink_domain_gpus
    members, spans = worst_layout(size, plan.ep, plan.ep * size, plan.pp, domain)
    return Group(size, members, shares_network=plan.num_gpus > size, spans=spans)


def hop_crosses_domains(sender: Number, receiver: Number, plan: ParallelPlan, cluster: ClusterSpec) -> Number:
    """Whether any send from one pipeline rank to another leaves its NVLink domain. Takes arrays of ranks."""
    width, domain = plan.tp * plan.num_replicas, cluster.nvlink_domain_gpus
    sender, receiver = np.asarray(sender), np.asarray(receiver)
    if width >= domain:  # twins are at least a domain apart
        return sender != receiver
    twin = np.arange(width)
    here, there = (rank[..., np.newaxis] * width + twin for rank in (sender, receiver))
    return (here // domain != there // domain).any(axis=-1)
