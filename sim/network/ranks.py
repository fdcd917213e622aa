"""Which GPU every rank of a plan sits on: the order of the parallel dimensions, and the nodes a scheduler hands out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.arrays import IntArray
from sim.errors import SpecError
from sim.network.lattice import places_of_ranks
from sim.specs import ClusterSpec, ParallelPlan


def gpu_of_rank(plan: ParallelPlan, cluster: ClusterSpec, seed: int = 0) -> IntArray:
    """GPU of every rank.

    Parameters
    ----------
    plan : ParallelPlan
        With the order of its dimensions.
    cluster : ClusterSpec
        The machine; its GPUs are numbered node by node. Some of a job's nodes may lie anywhere in it.
    seed : int
        Of the scheduler that hands these out.

    Returns
    -------
    array of int, (pp, dp, cp, tp)
        Indexed by the rank's coordinates; `.ravel()` is indexed by Megatron-LM's rank number.

    Raises
    ------
    SpecError
        More ranks than GPUs.
    """
    if plan.num_gpus > cluster.num_gpus:
        raise SpecError(
            f"the plan needs {plan.num_gpus:,} GPUs and {cluster.name!r} has {cluster.num_gpus:,}; raise num_nodes"
        )
    places = places_of_ranks(plan.placement, (plan.tp, plan.cp, plan.dp, plan.pp))
    gpus: IntArray = Nodes.of(cluster).gpu_of_place(plan.num_gpus, seed)[places]
    return gpus


class Nodes(NamedTuple):
    """What of a machine says where a job's nodes lie.

    fragmentation : share of them that lie anywhere in it.
    """

    gpus_per_node: int
    num_nodes: int
    fragmentation: float

    @classmethod
    def of(cls, cluster: ClusterSpec) -> Nodes:
        """Those of a cluster."""
        return cls(cluster.node.gpus_per_node, cluster.num_nodes, cluster.fragmentation)

    def gpu_of_place(self, num_gpus: int, seed: int = 0) -> IntArray:
        """GPU of every place of a job of so many GPUs, in the order in which its nodes fill."""
        places, per_node = np.arange(num_gpus), self.gpus_per_node
        nodes = _nodes(-(-num_gpus // per_node), self.num_nodes, self.fragmentation, seed)
        gpus: IntArray = nodes[places // per_node] * per_node + places % per_node
        return gpus


def members_of(group: str, plan: ParallelPlan, gpus: IntArray) -> IntArray:
    """GPUs of every group of a kind on one pipeline rank, (groups, members).

    Parameters
    ----------
    group : str
        tp, cp, ep; shards and expert_shards, within which ZeRO shards everything else and experts, or which sum their
        gradients; between, those that hold the same shard.
    gpus : array (dp, cp, tp)
    """
    dp, cp, tp = gpus.shape
    if group == "cp":
        return gpus.transpose(0, 2, 1).reshape(dp * tp, cp)
    if group == "tp":
        return gpus.reshape(-1, tp)
    if group == "ep":
        return gpus.reshape(-1, plan.ep, plan.etp).transpose(0, 2, 1).reshape(-1, plan.ep)
    apart = gpus.reshape(dp * cp // (plan.sharding_group or dp * cp), -1)  # sharding groups with their tensor twins
    if group == "between":
        return apart.T
    stride = {"shards": tp, "expert_shards": plan.ep * plan.etp}[group]
    members: IntArray = apart.reshape(len(apart), -1, stride).transpose(0, 2, 1).reshape(len(apart) * stride, -1)
    return members


def _nodes(wanted: int, available: int, fragmentation: float, seed: int) -> IntArray:
    """Nodes of a job, in the order its ranks fill them: ascending, as schedulers sort them."""
    nodes = np.arange(wanted)
    moved = round(fragmentation * wanted)
    if not moved:
        return nodes
    rng = np.random.default_rng(seed)
    given_up = rng.choice(wanted, moved, replace=False)
    kept = np.delete(nodes, given_up)
    elsewhere = np.setdiff1d(np.arange(available), kept)
    return np.sort(np.concatenate([kept, rng.choice(elsewhere, moved, replace=False)]))
