"""A step time that no order with weight gradients elsewhere can go below, of many plans at once.

Schedules such as ZB-V, V-Half and V-Min place weight gradients by what things take: every plan has an order of its
own, but forwards and input gradients come in the same turn in all of them, and no rank ever keeps more than in the
order they begin from (`sim.schedules.listing.place_weight_gradients`). So before the (n + 1)-th forward of a rank that
keeps at most k, n + 1 − k weight gradients have been done; and none before its input gradient. Between any action a
and a later one b of a rank lie therefore, besides what else it does there, at least as many weight gradients as are
due before b less those that can have been done before a.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Array
from sim.schedules import Order
from sim.schedules.actions import F, I, W
from sim.schedules.passes import peak_in_flight
from sim.schedules.play import by_levels


@dataclass(frozen=True, slots=True)
class Fixed:
    """What all plans' orders have in common, where weight gradients float.

    Arrays over forwards and input gradients, level by level: those of a level, at most one a rank, need none of it.

    action : index in the order.
    levels : where each level ends.
    previous, needs : as of Order, counted among these; what is not needed stands last.
    inputs : input gradients before it on its rank: so many weight gradients can have been done.
    due : weight gradients that must have been done, so that no forward keeps more than the order ever does.
    """

    action: Array
    levels: Array
    previous: Array
    needs: Array
    inputs: Array
    due: Array


def fixed_of(order: Order) -> Fixed:
    """The fixed part of a validated order."""
    forward, moves = order.kind == F, order.kind != W
    place = np.flatnonzero(moves)
    number = np.full(len(order) + 1, len(place))
    number[place] = np.arange(len(place))
    first = np.searchsorted(place, order.first)
    needs = number[order.needs[place]]
    sequence, levels = by_levels(np.where(needs == len(place), -1, needs), np.full(len(place), -1), first)
    assert len(sequence) == len(place), "the order is valid"
    begin = np.zeros(len(place), dtype=bool)
    begin[first[:-1]] = True
    previous = np.where(begin, len(place), np.arange(len(place)) - 1)
    rank = order.rank[place]
    before = np.cumsum(forward[place]) - forward[place]
    forwards = before - before[first[:-1]][rank]
    inputs = np.arange(len(place)) - first[:-1][rank] - forwards
    due = np.clip(forwards + 1 - peak_in_flight(order).astype(np.int64)[rank], 0, inputs) * forward[place]
    back = np.empty(len(place) + 1, dtype=np.int64)
    back[sequence], back[-1] = np.arange(len(place)), len(place)
    return Fixed(place[sequence], levels, back[previous[sequence]], back[needs[sequence]], inputs[sequence],
                  due[sequence])  # fmt: skip


def play(fixed: Fixed, order: Order, occupy: Array, release: Array, weights: Array) -> tuple[Array, Array]:
    """Earliest start of every forward and input gradient, and earliest time at which every rank is done with its weight
    gradients too. Starts of other actions stay 0.  [s]

    The recurrence of the exact engine with one more term: s_b ≥ max over a of s_a + work between + what is due between.

    occupy, release : arrays over actions and plans, as of Program. [s]
    weights : weight gradient of every stage. [s]
    """
    lightest = np.full((order.num_ranks, weights.shape[1]), np.inf)
    np.minimum.at(lightest, order.rank_of_stage, weights)
    action, rank_of = fixed.action, order.rank[fixed.action]
    # Of every rank: its work so far and what weight gradients can have been done; the largest start less these.
    work, weighed = np.zeros((2, *lightest.shape))
    behind, behind_all = np.full((2, *lightest.shape), -np.inf)
    free, arrived = np.zeros((2, len(action) + 1, weights.shape[1]))
    start = np.zeros(occupy.shape)
    abroad = (order.abroad(order.needs)[action] >= 0)[:, np.newaxis]
    inputs = (order.kind[action] == I)[:, np.newaxis]
    begin = 0
    for end in fixed.levels.tolist():
        here = slice(begin, end)
        at, rank = action[here], rank_of[here]
        need = np.where(abroad[here], arrived[fixed.needs[here]], 0.0)
        due = work[rank] + fixed.due[here, np.newaxis] * lightest[rank] + behind[rank]
        now = np.maximum(np.maximum(free[fixed.previous[here]], need), due)
        idle = now - work[rank]
        behind[rank] = np.maximum(behind[rank], idle - fixed.inputs[here, np.newaxis] * lightest[rank])
        behind_all[rank] = np.maximum(behind_all[rank], idle - weighed[rank])
        start[at] = now
        free[here], arrived[here] = now + occupy[at], now + release[at]
        work[rank] += occupy[at]
        weighed[rank] += inputs[here] * weights[order.stage[at]]
        begin = end
    return start, work + weighed + behind_all
