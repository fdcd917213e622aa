"""What follows from an order alone, without seconds: visits, activations in flight, weight versions, staleness."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.arrays import Array, Bools, Ints
from sim.schedules.actions import B, F, I, U, W
from sim.schedules.order import Order
from sim.schedules.registry import get_schedule, schedule_names

IN_FLIGHT = np.array([1, -1, 0, -1, 0])
"""A forward keeps a stage's activations; the backward, or the weight gradient of a split one, frees them."""


@dataclass(frozen=True, slots=True)
class Visits:
    """Where a rank turns to a stage, forward or backward, and where it has all gradients of that turn; over actions.

    Micro-batches that follow each other on a stage are one visit: breadth-first orders visit each stage once,
    interleaved ones once a group of micro-batches. What ZeRO gathers and reduces it moves once a visit.

    opens : whether an action is the first of a visit.
    then : of such an action, the one that opens the rank's next visit the same way, forward or backward; −1 for the
        last of these and for all other actions.
    turns : of the last such action before a rank's first backward, that one; −1 for all others.
    closes : whether an action gives the last gradients of a backward visit: its last, or of split backwards the last
        weight gradient of its micro-batches.
    """

    opens: Bools
    then: Ints
    turns: Ints
    closes: Bools


@lru_cache(maxsize=256)
def visits_of(order: Order) -> Visits:
    """The visits of an order, counted in what is in its arrays."""
    gives = np.arange(len(order))  # the action with which a backward's gradients are complete
    halves = np.flatnonzero(order.kind == W)
    gives[order.needs[halves]] = halves
    opens, closes = np.zeros((2, len(order)), dtype=bool)
    then, turn = np.full((2, len(order)), -1)
    for chosen in (order.kind == F, (order.kind == B) | (order.kind == I)):
        place = np.flatnonzero(chosen)
        stage, rank = order.stage[place], order.rank[place]
        turns = np.concatenate([[True], (np.diff(stage) != 0) | (np.diff(rank) != 0)])
        opened = place[turns]
        opens[opened] = True
        follows = np.diff(order.rank[opened]) == 0
        then[opened[:-1][follows]] = opened[1:][follows]
    closes[np.maximum.reduceat(gives[place], np.flatnonzero(turns))] = True
    first = opened[np.concatenate([[True], ~follows])]  # backward of each rank
    before = np.flatnonzero(opens)
    turn[before[np.searchsorted(before, first) - 1]] = first
    return Visits(opens, then, turn, closes)


@lru_cache(maxsize=256)
def asks_of(order: Order, ahead: int = 1) -> Ints:
    """The visits whose weights are asked for when an action opens one, in turn; (turns, actions), −1: no more.

    One visit ahead these are the next the same way and, before a rank's first backward, that one. Further ahead each is
    asked for when a visit opens that stands so many before, the first of a rank asking for all that have none: in the
    same order, so that nothing waits for what it would not wait for otherwise.
    """
    visits = visits_of(order)
    asks = np.stack([visits.turns, visits.then])
    if ahead == 1:
        return asks
    asked: dict[int, list[int]] = {}
    for rank in range(order.num_ranks):
        here = order.of_rank(rank)
        openers = here.start + np.flatnonzero(visits.opens[here])
        for place, opener in enumerate(openers.tolist()):
            earlier = int(openers[max(0, place + 1 - ahead)])
            asked.setdefault(earlier, []).extend(each for each in asks[:, opener].tolist() if each >= 0)
    found = np.full((max(map(len, asked.values()), default=0), len(order)), -1)
    for opener, several in asked.items():
        found[: len(several), opener] = several
    return found


@lru_cache(maxsize=256)
def last_gradients(order: Order) -> Array:
    """Index of the last gradient action on each stage: (ranks, stages of a rank in the order in which these end).

    A rank with fewer stages has −1 at the end.
    """
    gradients = np.flatnonzero((order.kind != F) & (order.kind != U))
    _, from_end = np.unique(order.stage[gradients][::-1], return_index=True)
    last = np.sort(gradients[::-1][from_end])
    rank = order.rank[last]
    found = np.full((order.num_ranks, int(np.bincount(rank).max())), -1)
    found[rank, np.arange(len(last)) - np.searchsorted(rank, rank)] = last
    return found


@lru_cache(maxsize=256)
def updates_per_rank(order: Order) -> float:
    """Weight updates that stand in a step's order, on each rank."""
    return float(order.weight[order.kind == U].sum()) / order.num_ranks


@lru_cache(maxsize=256)
def last_first_visits(order: Order) -> Array:
    """Index of the action with which each rank first turns to the last of its stages."""
    _, first_visit = np.unique(order.stage, return_index=True)
    last = np.zeros(order.num_ranks, dtype=np.int64)
    np.maximum.at(last, order.rank[first_visit], first_visit)
    return last


def in_flight(order: Order, per_stage: Array) -> list[Array]:
    """What each rank keeps after each of its actions, where every micro-batch on stage s keeps `per_stage[s]`."""
    return np.split(_kept(order, per_stage), order.first[1:-1])


def peak_in_flight(order: Order, per_stage: Array | None = None) -> Array:
    """The most that each rank keeps at once; without `per_stage`, micro-batches on any of its stages."""
    kept = _kept(order, np.ones(order.num_stages) if per_stage is None else per_stage)
    return np.asarray(np.maximum(np.maximum.reduceat(kept, order.first[:-1]), 0.0))


def _kept(order: Order, per_stage: Array) -> Array:
    """What its rank keeps after each action."""
    change = IN_FLIGHT[order.kind] * np.asarray(per_stage)[order.stage]
    whole = np.concatenate([[0], np.cumsum(change)])
    return np.asarray(whole[1:] - whole[order.first[:-1]][order.rank])


def weight_versions(order: Order, delay: int | None = None) -> tuple[Array, Array]:
    """Return the most versions of its weights that each rank keeps, and the updates by which each gradient is late.

    Both concern asynchronous orders.

    Parameters
    ----------
    delay : int, optional
        Updates by which the version that a batch is begun with is behind the newest, as in PipeDream-2BW. Default: the
        schedule's own; where that has none, a forward takes the newest version there is and its backward the same.

    Returns
    -------
    versions : array over ranks
    staleness : array over ranks
        The most updates between the version a gradient was computed with and the one it is applied to.

    Notes
    -----
    A version is kept from its update until the last backward that uses it. Orders without updates in them have one
    version and no staleness.
    """
    versions, staleness = np.ones(order.num_ranks, dtype=np.int64), np.zeros(order.num_ranks, dtype=np.int64)
    if not (order.kind == U).any():
        return versions, staleness
    if delay is None and order.schedule in schedule_names():
        delay = get_schedule(order.schedule).delay
    for rank in range(order.num_ranks):
        here = order.of_rank(rank)
        kind, number = order.kind[here], order.microbatch[here]
        updates = kind == U
        if not updates.any():
            continue
        made = np.cumsum(updates)  # versions made before or by each action
        used = np.zeros(int(number.max()) + 1, dtype=np.int64)
        forward, backward = kind == F, (kind == B) | (kind == W)
        if delay is None:
            used[number[forward]] = made[forward]
        else:
            batch = np.searchsorted(
                number[updates], np.arange(len(used))
            )  # updates are named by their last micro-batch
            used = np.maximum(batch - delay, 0)
        applied = np.searchsorted(number[updates], number[backward])  # the update that a gradient goes into
        staleness[rank] = int((applied - used[number[backward]]).max(initial=0))
        # Before each action: the newest version, and those that micro-batches still to come back were begun with.
        last_use = np.full(int(made[-1]) + 1, -1)
        np.maximum.at(last_use, used[number[backward]], np.flatnonzero(backward))
        born = np.concatenate([[0], np.flatnonzero(updates)])
        replaced = np.append(born[1:] - 1, len(kind))  # kept as long as it is the newest, or wanted
        gone = np.maximum(last_use, replaced)
        counts = np.zeros(len(kind) + 2, dtype=np.int64)
        np.add.at(counts, born, 1)
        np.add.at(counts, np.minimum(gone, len(kind)) + 1, -1)
        versions[rank] = int(np.cumsum(counts)[: len(kind)].max(initial=1))
    return versions, staleness
