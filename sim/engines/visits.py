"""What visits of chunks take of the ranks at least, whatever else they wait for: for bounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.arrays import ActionPlanFloats, Number, RankPlanFloats
from sim.engines.tasks import amounts_at_visits, classes_of, slowed_at_visits
from sim.pricing.zero import VisitSeconds
from sim.schedules import Order


class LeastAtVisits(NamedTuple):
    """What visits take of the ranks whatever they wait for besides, for bounds; arrays (ranks) or (ranks, plans). [s]

    begin : of each rank, from the step's begin until its first action may begin.
    lost : between its first action and its last, waiting for its stream and computing beside it.
    moved : by its stream in a step.
    """

    begin: RankPlanFloats
    lost: RankPlanFloats
    moved: RankPlanFloats


def least_at_visits(order: Order, visits: VisitSeconds, times: Number | None = None) -> LeastAtVisits:
    """Least that visits take of all ranks, repetitions counted in, wherever weight gradients stand.

    Nobody knows then which stage's comes last.

    Parameters
    ----------
    times : array over plans, optional
        Repetitions that each leaves out of the order. Default: as many as the order does.
    """
    each, first, last = classes_of(order, each=True), order.first[:-1], order.first[1:] - 1
    amounts = amounts_at_visits(order, each, visits)
    gather, reduce = amounts["gather"], amounts["body"] + amounts["bucket"]
    gathers, reduces = (np.where(beside, 0.0, each) for beside, each in
                        ((visits.ahead, gather), (visits.beside, reduce)))  # fmt: skip
    waits = gathers + reduces + slowed_at_visits(order, each, visits)[0]
    waits[first] -= gathers[first]
    waits[last] += visits.reduce_slows[order.stage[last]]
    longest = np.zeros_like(waits[first])
    np.maximum.at(longest, order.rank_of_stage, visits.reduce_slows)
    begin, moved = np.maximum(gather + amounts["early"], 0.0)[first], of_ranks(order, gather + reduce, times)
    return LeastAtVisits(begin, of_ranks(order, waits, times) - longest, moved)


def of_ranks(order: Order, seconds: ActionPlanFloats, times: Number | None = None) -> RankPlanFloats:
    """Sums over the actions of each rank, with the repetitions that plans leave out; default: those of the order."""
    axes = [1] * (seconds.ndim - 1)
    weight = order.weight.reshape(-1, *axes)
    if times is not None and order.fold is not None:
        weight = np.ones((len(order), *axes))
        weight = weight + np.isin(np.arange(len(order)), order.fold.block(0)).reshape(-1, *axes) * times
    return np.asarray(np.add.reduceat(seconds * weight, order.first[:-1], axis=0))
