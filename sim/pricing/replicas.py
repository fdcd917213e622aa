"""What GPUs hold, and collectives over those that hold the same: experts have groups of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Floats, Number
from sim.costs.collectives import Fabric, all_reduce, reduce_scatter
from sim.network.placement import Group
from sim.pricing.batch import Layouts
from sim.pricing.cost_model import CostModel
from sim.work.adapters import adapters_of
from sim.work.optimizer import MOMENTS, table_moments
from sim.work.stages import ModelPart
from sim.work.sums import adapter_params, expert_params, held_blocks, moments, params


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters on one GPU; numbers may be arrays.

    total : all of them; of which `experts` belong to experts.
    moments : numbers that the optimizer keeps of them, whatever their width.
    adapters : of them those of adapters, which alone are trained; None where all are.
    """

    total: Number
    experts: Number = 0.0
    moments: Number = 0.0
    adapters: Params | None = None

    @property
    def trained(self) -> Params:
        """Those that have gradients and an optimizer."""
        return self if self.adapters is None else self.adapters

    @property
    def others(self) -> Number:
        """Those that do not belong to experts."""
        return self.total - self.experts

    def take(self, places: Any) -> Params:
        """At some places of the last axis."""
        return self._each(lambda number: number[..., places] if np.ndim(number) else number)

    def of_kinds(self, kinds: Any) -> Params:
        """Of some kinds of ranks, which are the first axis."""
        return self._each(lambda number: number[kinds])

    @property
    def numbers(self) -> tuple[Number, Number, Number]:
        """Without those of adapters alone."""
        return self.total, self.experts, self.moments

    def _each(self, change: Callable[[Any], Any]) -> Params:
        adapters = None if self.adapters is None else self.adapters._each(change)
        return Params(change(self.total), change(self.experts), change(self.moments), adapters)


@dataclass(frozen=True, slots=True)
class Replicas:
    """GPUs that hold the same and sum its gradients: of experts, and of everything else.

    shards, expert_shards, between_shards : as of `Layouts`.
    """

    data: Group
    experts: Group
    shards: Group
    expert_shards: Group
    between_shards: Group | None = None

    @property
    def sharding(self) -> Replicas:
        """Those within which ZeRO shards."""
        return Replicas(self.shards, self.expert_shards, self.shards, self.expert_shards)

    def of_copies(self, copies: int) -> Replicas:
        """With those that hold the same in other copies of the model: they sum gradients, and shard nothing."""
        if copies == 1:
            return self

        def over(group: Group) -> Group:
            spans = group.num_domains * copies
            return Group(group.size * copies, group.per_domain, group.shares_network, spans, group.card_share)

        data, experts = over(self.data), over(self.experts)
        if self.between_shards is not None:
            return Replicas(data, experts, self.shards, self.expert_shards, over(self.between_shards))
        return Replicas(data, experts, data, experts)

    @property
    def inside(self) -> Replicas:
        """Without sums between sharding groups."""
        return Replicas(self.data, self.experts, self.shards, self.expert_shards)

    def shard_of(self, held: Params) -> Number:
        """Of what a GPU holds, the parameters of its shard."""
        return held.others / self.shards.size + held.experts / self.expert_shards.size


def params_of(parts: Sequence[ModelPart], costs: CostModel, layouts: Layouts, layout: Any = slice(None)) -> Params:
    """What one GPU holds of parts of the model, (parts, layouts); or (parts, plans) of plans with these layouts."""
    blocks, tp = block_params(costs, layouts).take(layout), layouts.tp[layout]
    held = _put_together(parts, blocks)
    if any(np.any(part.shared_tables) for part in parts):
        table = costs.model.vocab_size * costs.model.hidden_size / tp
        both = np.stack([np.broadcast_to(part.shared_tables, tp.shape) for part in parts])
        moments = held.moments - both * table_moments(costs.model, costs.training.optimizer, tp)
        held = Params(held.total - both * table, held.experts, moments, held.adapters)
    return held


def _put_together(parts: Sequence[ModelPart], blocks: Params) -> Params:
    """Of parts of the model what each of its blocks has."""
    total, experts, moments = (put_together(parts, np.asarray(each)) for each in blocks.numbers)
    adapters = None if blocks.adapters is None else _put_together(parts, blocks.adapters)
    return Params(total, experts, moments, adapters)


def block_params(costs: CostModel, layouts: Layouts) -> Params:
    """What one GPU holds of every block, (blocks, layouts); remembered. Each has a table of its own."""
    tp, ep, etp = layouts.tp, layouts.ep, layouts.etp
    key = ("params", tp.tobytes(), ep.tobytes(), etp.tobytes())
    if key not in costs.known:
        optimizer, adapters = costs.training.optimizer, adapters_of(costs.training)
        operations = [block.operations for block in held_blocks(costs.model, tp, ep, etp, adapters)]
        held = [(params(each), expert_params(each), moments(each, optimizer)) for each in operations]
        total, experts, of_optimizer = _over_blocks(held, layouts)
        found = Params(total, experts, of_optimizer)
        if adapters is not None:
            total, experts = _over_blocks([adapter_params(each) for each in operations], layouts)
            trained = Params(total, experts, MOMENTS[optimizer] * total)
            found = Params(found.total + total, found.experts + experts, trained.moments, trained)
        costs.remember(key, found)
    known: Params = costs.known[key]
    return known


def _over_blocks(held: Sequence[tuple[Number, ...]], layouts: Layouts) -> list[Floats]:
    """Numbers of every block as arrays (blocks, layouts)."""
    columns = zip(*held, strict=True)
    return [np.stack([np.broadcast_to(each, len(layouts)) for each in numbers]).astype(float) for numbers in columns]


def put_together(parts: Sequence[ModelPart], blocks: Floats) -> Floats:
    """What parts of the model have of what each of its blocks has: (parts, …) from (blocks, …)."""
    counts = [part.counts for part in parts]
    if not any(isinstance(count, np.ndarray) for of_part in counts for count in of_part):
        whole = np.array(counts, dtype=float) @ blocks.reshape(len(blocks), -1)
        return np.asarray(whole.reshape(len(counts), *blocks.shape[1:]))
    found = []
    for of_part in counts:
        terms = [count * block for count, block in zip(of_part, blocks, strict=True) if np.ndim(count) or count]
        found.append(np.broadcast_to(sum(terms), np.broadcast_shapes(*map(np.shape, terms), blocks[0].shape)))
    return np.stack(found)


def replicas_of(layouts: Layouts) -> Replicas:
    """Of every layout."""
    shards = layouts.shards, layouts.expert_shards, layouts.between_shards
    return Replicas(layouts.data, layouts.expert_data, *shards)


def summed_over(
    collective: Callable[[Number, Group, Fabric], Number],
    held: Params,
    width: Number,
    replicas: Replicas,
    fabric: Fabric,
    pieces: int = 1,
) -> Number:
    """Time of a collective over what a GPU holds, `width` bytes a parameter: experts after everything else.  [s]

    Parameters
    ----------
    pieces : int
        In so many collectives, one after the other.
    """
    seconds = pieces * collective(held.others * width / pieces, replicas.data, fabric)
    if np.any(held.experts):
        seconds = seconds + collective(held.experts * width, replicas.experts, fabric) * (np.asarray(held.experts) > 0)
    return seconds


def reduced_to_shards(held: Params, width: Number, replicas: Replicas, fabric: Fabric, pieces: int = 1) -> Number:
    """Time until every GPU has the sum of its shard's gradients: within sharding groups, then between them.  [s]

    Parameters as of `summed_over`.
    """
    seconds = summed_over(reduce_scatter, held, width, replicas.sharding, fabric, pieces)
    if replicas.between_shards is not None:
        between, shard = replicas.between_shards, held.others * width / replicas.shards.size
        seconds = seconds + pieces * all_reduce(shard / pieces, between, fabric)
        if np.any(held.experts):
            of_experts = held.experts * width / replicas.expert_shards.size
            seconds = seconds + all_reduce(of_experts, between, fabric) * (np.asarray(held.experts) > 0)
    return seconds


def over_groups(
    collective: Callable[[Number, Group, Fabric], Number],
    held: Params,
    width: Number,
    replicas: Replicas,
    fabric: Fabric,
) -> Number:
    """Time of a collective between sharding groups, over a GPU's shard, `width` bytes a parameter.  [s]"""
    if replicas.between_shards is None:
        return 0.0
    return collective(replicas.shard_of(held) * width, replicas.between_shards, fabric)


def sent_in_rings(held: Params, replicas: Replicas) -> Number:
    """Of a GPU's parameters, those that rings within sharding groups send once: (n−1)/n of them."""
    rest = held.others * (replicas.shards.size - 1) / replicas.shards.size
    return rest + held.experts * (replicas.expert_shards.size - 1) / replicas.expert_shards.size


def sent_between(held: Params, replicas: Replicas) -> Number:
    """Of a GPU's parameters, those that an all-reduce between sharding groups sends: 2 (n−1)/n of its shard."""
    if replicas.between_shards is None:
        return 0.0
    count = replicas.between_shards.size
    return 2.0 * replicas.shard_of(held) * (count - 1) / count
