"""Where the ranks of a plan sit: tensor-parallel neighbours next to each other, then data-, then pipeline-parallel.

GPU number = (pipeline · dp + data) · tp + tensor: Megatron-LM's order, which keeps the most talkative group in a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.specs import ClusterSpec, ParallelPlan
from sim.work.operations import Number


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk to each other, and how they lie over NVLink domains. Numbers may be arrays.

    size : ranks of the group.
    per_domain : members that share an NVLink domain.
    shares_network : other groups of the same kind use the network at the same time (its members are not all of a node).
    """

    size: Number
    per_domain: Number
    shares_network: Number = False

    @property
    def num_domains(self) -> Number:
        """NVLink domains the group spans."""
        return np.ceil(self.size / self.per_domain)


def group_of(size: Number, stride: Number, domain_gpus: Number) -> Group:
    """A group whose members are `stride` GPUs apart, on domains of `domain_gpus`."""
    per_domain = np.clip(np.floor(domain_gpus / stride), 1, size)
    return Group(size, per_domain, np.asarray(stride) > 1)


def tensor_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The tensor-parallel group."""
    return group_of(plan.tp, 1, cluster.nvlink_domain_gpus)


def data_group(plan: ParallelPlan, cluster: ClusterSpec) -> Group:
    """The data-parallel group."""
    return group_of(plan.dp, plan.tp, cluster.nvlink_domain_gpus)


def hop_crosses_domains(rank: int, plan: ParallelPlan, cluster: ClusterSpec) -> bool:
    """Whether pipeline rank `rank` and the next (the last wraps to the first) lie in different NVLink domains.

    True if any replica's hop does: the slowest sets the pace.
    """
    width = plan.tp * plan.dp
    domain = cluster.nvlink_domain_gpus
    here, there = rank * width, (rank + 1) % plan.pp * width
    return any((here + offset) // domain != (there + offset) // domain for offset in range(0, width, plan.tp))
