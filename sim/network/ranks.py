"""Which GPU every rank of a plan sits on: the order of the parallel dimensions, and the nodes a scheduler hands out.

Ranks are numbered with tensor parallelism fastest, then context, data, pipeline. A group is `size` ranks whose numbers
are `stride` apart. The *places* of a job are its GPUs in the order in which its nodes fill; another order of the
dimensions deals the ranks to other places.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import IntArray
from sim.errors import SpecError
from sim.network.placement import Degrees, group_shape
from sim.specs import ClusterSpec, ParallelPlan

RANKS = ("tp", "cp", "dp", "pp")
"""Dimensions of a rank's number, the fastest first."""


def places_of_ranks(order: str, degrees: tuple[int, ...]) -> IntArray:
    """Return the place of every rank, (pp, dp, cp, tp).

    order : the dimensions from the one whose neighbours sit closest, such as "tp-pp-cp-dp".
    degrees : how many of each there are, in the order of RANKS.
    """
    names = order.split("-")
    count = dict(zip(RANKS, degrees, strict=True))
    # Slowest first, as NumPy counts; then the axes in the order of the result.
    places = np.arange(int(np.prod(degrees))).reshape([count[name] for name in reversed(names)])
    return places.transpose([names[::-1].index(name) for name in reversed(RANKS)])


def gpu_of_rank(plan: ParallelPlan | Degrees, cluster: ClusterSpec, seed: int = 0) -> IntArray:
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
    gpus: IntArray = nodes[places // per_node] * per_node + places % per_node
    return gpus


def _nodes(wanted: int, available: int, fragmentation: float, seed: int) -> IntArray:
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


def groups_of(size: int, stride: int, plan: ParallelPlan | Degrees, cluster: ClusterSpec) -> IntArray:
    """Return the GPUs, ascending, of all groups of `size` ranks whose numbers are `stride` apart, (groups, members)."""
    groups = _grouped(gpu_of_rank(plan, cluster), size, stride)
    return groups if (groups[:, 1:] > groups[:, :-1]).all() else np.sort(groups, axis=1)


def members_of(kind: str, plan: ParallelPlan, gpus: IntArray) -> IntArray:
    """Return the GPUs of every group of a kind (`sim.network.placement.group_shape`) on a pipeline rank.

    gpus : (dp, cp, tp), of a rank or of several behind each other that hold the same. Returns (groups, members).
    """
    degrees = Degrees(plan.tp, plan.cp, 1, len(gpus), plan.ep, plan.etp)
    return _grouped(gpus, *group_shape(kind, degrees, plan.sharding_group))


def _grouped(gpus: IntArray, size: int, stride: int) -> IntArray:
    """Return groups of `size` ranks that are `stride` apart and follow each other, (groups, members)."""
    groups: IntArray = gpus.reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    return groups
