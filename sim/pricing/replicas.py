"""What GPUs that hold the same parameters send each other: sums of gradients and gathers of weights, listed once.

Seconds, bytes on links and what a network card carries are sums over these lists. Parameters come in pairs (everything
but experts, experts), as do the groups that move them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Floats, Number
from sim.costs.collectives import COLLECTIVES, Fabric
from sim.network.placement import Group
from sim.pricing.layouts import Layouts


class DataMove(NamedTuple):
    """A collective over what a GPU holds of some parameters. Numbers may be arrays.

    kind : all_reduce, all_gather or reduce_scatter.
    over : the kind of group: data and expert_data, that sum gradients of everything else and of experts; shards and
        expert_shards, within which ZeRO shards these; between, of those that hold the same shard.
    group : its size, and where it lies.
    nbytes : the full buffer. [bytes]
    pieces : collectives in which it goes, one after the other.
    of_experts : nothing is sent where nbytes is zero, as there are no experts.
    """

    kind: str
    over: str
    group: Group
    nbytes: Number
    pieces: int = 1
    of_experts: bool = False

    @property
    def sent_bytes(self) -> Number:
        """Bytes that one GPU sends. [bytes]"""
        return ring_bytes(self.kind, self.nbytes, self.group.size)


def ring_bytes(kind: str, nbytes: Number, size: Number) -> Number:
    """Sent by each of `size` ranks of a ring for a buffer of `nbytes`. [bytes]

    An all-reduce sends 2 (n − 1)/n of the buffer, a gather, a reduce-scatter, an all-to-all or a ring of sends half of
    that (Thakur, Rabenseifner, Gropp 2005, sections 4.1 to 4.4).
    """
    return (2.0 if kind == "all_reduce" else 1.0) * nbytes * (size - 1) / size


def move_seconds(moves: Iterable[DataMove], fabric: Fabric) -> Number:
    """Time of collectives one after the other.  [s]"""
    return sum(
        move.pieces * COLLECTIVES[move.kind](move.nbytes / move.pieces, move.group, fabric) * _is_sent(move)
        for move in moves
    )


def card_seconds(moves: Iterable[DataMove], fabric: Fabric) -> Number:
    """What collectives put on a network card, at the best rate that it reaches.  [s]"""
    return sum(
        COLLECTIVES[each.kind](each.nbytes, each.group, fabric)
        * fabric.card_occupied(each.group, each.kind)
        * _is_sent(each)
        for each in moves
    )


def _is_sent(move: DataMove) -> Any:
    return np.asarray(move.nbytes) > 0 if move.of_experts else 1.0


def sent_by_group(moves: Iterable[DataMove]) -> dict[str, float]:
    """Bytes that a GPU sends of one layout's collectives, by kind of group. [bytes]"""
    found: Counter[str] = Counter()
    for move in moves:
        found[move.over] += np.asarray(move.sent_bytes).item()
    return dict(found)


def summed(params: Floats, width: Number, layouts: Layouts) -> list[DataMove]:
    """Gradients summed over all that hold the same, `width` bytes a parameter."""
    return _pair("all_reduce", ("data", "expert_data"), (layouts.data, layouts.expert_data), params, width)


def gathered(params: Floats, width: Number, layouts: Layouts, pieces: int = 1) -> list[DataMove]:
    """Weights gathered within sharding groups; all but experts in so many pieces."""
    return _pair(
        "all_gather", ("shards", "expert_shards"), (layouts.shards, layouts.expert_shards), params, width, pieces
    )


def reduced_to_shards(params: Floats, width: Number, layouts: Layouts, pieces: int = 1) -> list[DataMove]:
    """Gradients until every GPU has the sum of its shard's: within sharding groups, then between them."""
    moves = _pair(
        "reduce_scatter", ("shards", "expert_shards"), (layouts.shards, layouts.expert_shards), params, width, pieces
    )
    between = layouts.between_shards
    if between is not None:
        shards = np.stack([params[0] / layouts.shards.size, params[1] / layouts.expert_shards.size])
        moves += _pair("all_reduce", ("between", "between"), (between, between), shards, width, pieces)
    return moves


def between_groups(kind: str, params: Floats, width: Number, layouts: Layouts) -> list[DataMove]:
    """A collective between sharding groups, over a GPU's shard; nothing where all shard together."""
    if layouts.between_shards is None:
        return []
    return [DataMove(kind, "between", layouts.between_shards, layouts.shard_of(params) * width)]


def moved_once(
    layouts: Layouts, trained: Floats, zero_stage: int, spread: bool, copies: int
) -> tuple[list[DataMove], list[DataMove]]:
    """Gradient reduction and weight gather of ranks that train so much, once an update.

    2 and 3 reduce gradients whenever a rank turns to a stage, 3 gathers weights then.

    spread : sharding groups shard the optimizer's state among each other.
    copies : of the model, which sum gradients together.
    """
    costs, whole = layouts.costs, layouts.of_copies(copies)
    gradient, weight = costs.gradient_width, costs.training.activation_bytes
    reduction: list[DataMove] = []
    if zero_stage == 0:
        return summed(trained, gradient, whole), []
    if zero_stage == 1:
        reduction = reduced_to_shards(trained, gradient, whole.without_sums_between if spread else whole)
    gather = gathered(trained, weight, layouts) if zero_stage < 3 else []
    if spread:
        reduction = reduction + between_groups("reduce_scatter", trained, gradient, whole)
        gather = gather + between_groups("all_gather", trained, weight, layouts)
    return reduction, gather


def _pair(
    kind: str, over: tuple[str, str], groups: tuple[Group, Group], params: Floats, width: Number, pieces: int = 1
) -> list[DataMove]:
    """A collective over everything but experts, and one over experts where there are any."""
    (others, experts), (all_gpus, of_experts) = params, groups
    moves = [DataMove(kind, over[0], all_gpus, others * width, pieces)]
    if np.any(experts):
        moves.append(DataMove(kind, over[1], of_experts, experts * width, of_experts=True))
    return moves
