"""What of each row does not depend on its category: where its groups lie, which sends leave an NVLink domain."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sim.network.placement import Group, context_group, data_group, hop_crosses_domains, tensor_group
from sim.search.space import Columns, Space
from sim.specs import ClusterSpec, ParallelPlan

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Crossings:
    """Which links between neighbouring pipeline ranks leave an NVLink domain, over layouts or rows.

    first, last, wrap : from rank 0 to 1, from the last but one to the last, and from the last to rank 0.
    inner_far : how many of the links between neighbours do.
    near_near, mixed, far_far : whether a middle rank has such a pair of links, to the rank before and the one after.
    near_rank, far_rank : first middle rank whose link to the rank before stays inside, or leaves; 0: there is none.
    """

    first: Array
    last: Array
    wrap: Array
    inner_far: Array
    near_near: Array
    mixed: Array
    far_far: Array
    near_rank: Array
    far_rank: Array

    def take(self, rows: Array) -> Crossings:
        """Some of the rows."""
        return Crossings(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Facts:
    """Columns of a space, or of some of its rows, and what follows from them.

    block : which (tp, cp, and how their groups lie) each row has, of `blocks`.
    num_microbatches, visits : as in `sim.costs.stage.stage_costs`.
    """

    columns: Columns
    data: Group
    tensor: Group
    crossings: Crossings
    block: Array
    blocks: tuple[tuple[int, int, Group, Group], ...]
    num_microbatches: Array
    visits: Array

    def take(self, rows: Array) -> Facts:
        """Some of the rows."""
        return Facts(
            self.columns.take(rows),
            _take(self.data, rows),
            _take(self.tensor, rows),
            self.crossings.take(rows),
            self.block[rows],
            self.blocks,
            self.num_microbatches[rows],
            self.visits[rows],
        )


def gather_facts(space: Space) -> Facts:
    """Look up once a layout what the rows need."""
    cluster, columns = space.scenario.cluster, space.columns
    plans = [ParallelPlan(tp=tp, cp=cp, pp=pp, dp=dp) for tp, cp, pp, dp in space.layouts.tolist()]
    tensor, context = ([place(plan, cluster) for plan in plans] for place in (tensor_group, context_group))
    keys = [
        (plan.tp, plan.cp, of_tensor.per_domain, of_tensor.spans, of_context.per_domain, of_context.spans)
        for plan, of_tensor, of_context in zip(plans, tensor, context, strict=True)
    ]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    found = {key: (plan.tp, plan.cp, t, c) for key, plan, t, c in zip(keys, plans, tensor, context, strict=True)}
    shapes = [(plan.tp * plan.num_replicas, plan.pp) for plan in plans]
    known = {shape: _crossings(*shape, cluster) for shape in set(shapes)}
    crossings = np.array([known[shape] for shape in shapes]).T
    flags = [column.astype(bool) for column in crossings]
    numbers = {3, 7, 8}  # counts and ranks, not flags
    each = [crossings[index] if index in numbers else flags[index] for index in range(len(flags))]
    layout = columns.layout
    batch = space.scenario.training.global_batch_size
    num_microbatches = batch // (columns.dp * columns.microbatch_size)
    return Facts(
        columns,
        _take(_stack([data_group(plan, cluster) for plan in plans]), layout),
        _take(_stack(tensor), layout),
        Crossings(*each).take(layout),
        np.array([places[key] for key in keys])[layout],
        tuple(found[key] for key in places),
        num_microbatches,
        # Interleaved, a rank turns to a chunk once a round of pp micro-batches; with one chunk once a micro-batch.
        np.where(columns.num_chunks > 1, num_microbatches // columns.pp, num_microbatches),
    )


def _stack(groups: list[Group]) -> Group:
    """Groups as one whose numbers are arrays."""
    names = ("size", "per_domain", "shares_network", "spans")
    return Group(*(np.array([getattr(group, name) for group in groups]) for name in names))


def _take(group: Group, rows: Array) -> Group:
    return Group(group.size[rows], group.per_domain[rows], group.shares_network[rows], np.asarray(group.spans)[rows])


def _crossings(width: int, pp: int, cluster: ClusterSpec) -> tuple[int, ...]:
    """The fields of Crossings for ranks of `width` GPUs each."""
    if pp == 1:
        return (0,) * 9
    plan = ParallelPlan(dp=width, pp=pp)
    far = np.array([hop_crosses_domains(rank, rank + 1, plan, cluster) for rank in range(pp - 1)])
    wrap = hop_crosses_domains(pp - 1, 0, plan, cluster)
    before, after = far[:-1], far[1:]  # of the middle ranks
    near_rank, far_rank = (int(np.argmax(each)) + 1 if each.any() else 0 for each in (~before, before))
    pairs = ((~before & ~after).any(), (before != after).any(), (before & after).any())
    return int(far[0]), int(far[-1]), int(wrap), int(far.sum()), *(int(pair) for pair in pairs), near_rank, far_rank
