"""Which GPU every rank of a plan sits on: the order of the parallel dimensions, and the nodes a scheduler hands out."""

from __future__ import annotations

import numpy as np

from sim.arrays import IntArray
from sim.errors import SpecError
from sim.specs import ClusterSpec, ParallelPlan

DIMENSIONS = ("tp", "cp", "dp", "pp")
MEGATRON_ORDER = "tp-cp-dp-pp"


def gpu_of_rank(
    plan: ParallelPlan,
    cluster: ClusterSpec,
    order: str = MEGATRON_ORDER,
    fragmentation: float = 0.0,
    seed: int = 0,
) -> IntArray:
    """GPU of every rank.

    Parameters
    ----------
    plan : ParallelPlan
    cluster : ClusterSpec
        The machine; its GPUs are numbered node by node.
    order : str
        The dimensions from the one whose neighbours sit closest to the one whose sit farthest apart, such as
        "tp-cp-dp-pp" (Megatron-LM) or "tp-pp-cp-dp".
    fragmentation : float
        Share of the job's nodes that are not where an empty machine would give them, but anywhere in it.
    seed : int
        Of the scheduler.

    Returns
    -------
    array of int, (pp, dp, cp, tp)
        Indexed by the rank's coordinates; `.ravel()` is indexed by Megatron-LM's rank number.

    Raises
    ------
    SpecError
        An order that is not the four dimensions, a share outside 0 … 1, or more ranks than GPUs.
    """
    names = order.split("-")
    if sorted(names) != sorted(DIMENSIONS):
        raise SpecError(f"order {order!r} must name each of tp, cp, dp and pp once, such as {MEGATRON_ORDER!r}")
    if not 0.0 <= fragmentation <= 1.0:
        raise SpecError(f"fragmentation {fragmentation} is a share of the job's nodes; give a number from 0 to 1")
    if plan.num_gpus > cluster.num_gpus:
        raise SpecError(
            f"the plan needs {plan.num_gpus:,} GPUs and {cluster.name!r} has {cluster.num_gpus:,}; raise num_nodes"
        )
    degrees = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    # Slowest first, as NumPy counts; then the axes in the order of the result.
    slots = np.arange(plan.num_gpus).reshape([degrees[name] for name in reversed(names)])
    slots = slots.transpose([names[::-1].index(name) for name in reversed(DIMENSIONS)])
    per_node = cluster.node.gpus_per_node
    nodes = _nodes(-(-plan.num_gpus // per_node), cluster.num_nodes, fragmentation, seed)
    gpus: IntArray = nodes[slots // per_node] * per_node + slots % per_node
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
