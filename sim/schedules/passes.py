"""What follows from an order alone, without seconds, and orders that are listed action by action."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.arrays import Array, Bools, Ints
from sim.schedules.actions import KINDS, B, F, I, Row, U, W
from sim.schedules.order import Order, make_order
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


def most_begun(order: Order) -> Ints:
    """The most micro-batches that each stage has begun and not come back to at once."""
    by_stage = np.argsort(order.stage, kind="stable")
    kind = order.kind[by_stage]
    begins = np.searchsorted(order.stage[by_stage], np.arange(order.num_stages))
    begun = np.cumsum((kind == F).astype(np.int64) - ((kind == B) | (kind == I)))
    before = np.concatenate([[0], begun])[begins]
    return np.asarray(np.maximum.reduceat(begun, begins) - before)


def _kept(order: Order, per_stage: Array) -> Array:
    """What its rank keeps after each action."""
    change = IN_FLIGHT[order.kind] * np.asarray(per_stage)[order.stage]
    whole = np.concatenate([[0], np.cumsum(change)])
    return np.asarray(whole[1:] - whole[order.first[:-1]][order.rank])


def weight_versions(order: Order) -> tuple[Array, Array]:
    """Return the most versions of its weights that each rank keeps, and the updates by which each gradient is late.

    Both concern asynchronous orders. A batch is begun with a version as much older than the newest as the schedule
    says, as in PipeDream-2BW; where it says nothing, a forward takes the newest there is and its backward the same.

    Returns:
    versions : array over ranks
    staleness : array over ranks. The most updates between the version a gradient was computed with and the one it is
        applied to.

    A version is kept from its update until the last backward that uses it. Orders without updates in them have one
    version and no staleness.
    """
    versions, staleness = np.ones(order.num_ranks, dtype=np.int64), np.zeros(order.num_ranks, dtype=np.int64)
    if not (order.kind == U).any():
        return versions, staleness
    delay = get_schedule(order.schedule).delay if order.schedule in schedule_names() else None
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
        gone = np.sort(np.maximum(last_use, replaced))
        versions[rank] = (np.arange(1, len(born) + 1) - np.searchsorted(gone, born)).max()
    return versions, staleness


Times = tuple[float, float, float, float]
"""Forward, input gradient, weight gradient, and a send to another rank; in any unit."""
EQUAL: Times = (1.0, 1.0, 1.0, 0.0)
TRIES = 3
"""Times that weight gradients are placed anew, each knowing how long ranks waited before."""


def play(
    home: Sequence[int],
    copies: int,
    num_microbatches: int,
    most_in_flight: Callable[[int], int],
    *,
    forward_first: bool = False,
) -> list[Row]:
    """Forwards and backwards of equal length, as early as they can: the earliest micro-batch first.

    Since everything takes equally long, all ranks begin at the same moments, and each moment is one step of arrays.

    home : which rank holds each stage; stages of every copy of the model.
    most_in_flight : how many a stage may have begun and not come back to.
    forward_first : where both could be done, take a forward rather than a backward.

    Returns the actions of each rank. Micro-batches are dealt to the copies in turn.
    """
    stages, ranks, count = len(home), max(home) + 1, num_microbatches
    target, came, waiting = _arrivals(stages, copies, count)
    nowhere = len(target) - 1
    # Of every rank what it may do, in the order of the better stage: (ranks, kinds and stages), padded with nothing.
    mine = [[2 * s + k for s in range(stages) if home[s] == rank for k in (0, 1)] for rank in range(ranks)]
    width = max(map(len, mine))
    able = np.array([[*row, *[nowhere] * (width - len(row))] for row in mine])
    kind, stage = able % 2, able // 2
    later = (kind == 0) != forward_first
    worth = later * (count + 1) * (stages + 1) + (stages - stage)  # the earlier micro-batch, then the later stage
    is_backward, limit = kind == 1, np.array([*map(most_in_flight, range(stages)), 0])[stage]
    of_forward, of_backward = 2 * np.minimum(stage, stages - 1), np.minimum(2 * stage + 1, nowhere)
    never, every, done = np.iinfo(np.int64).max, np.arange(ranks), np.zeros(nowhere + 1, dtype=np.int64)
    taken: list[tuple[Array, ...]] = []  # (rank, kind and stage, micro-batch) of what begins at each moment
    left = 2 * stages // copies * count
    while left:
        so_far = done[able]
        head = came[able, np.minimum(so_far, count)]
        free = (so_far < waiting[able]) & (is_backward | (done[of_forward] - done[of_backward] < limit))
        key = np.where(free, worth + head * (stages + 1), never)
        choice = key.argmin(axis=1)
        acting = (key[every, choice] != never).nonzero()[0]
        if not len(acting):  # all wait: what is missing is said when the order is made
            break
        what, number = able[acting, choice[acting]], head[acting, choice[acting]]
        taken.append((acting, what, number))
        left -= len(what)
        done[what] += 1
        there = target[what]
        came[there, np.minimum(waiting[there], count)] = number
        waiting[there] += 1
        waiting[nowhere] = 0
    rank, what, number = (np.concatenate(column) for column in zip(*taken, strict=True))
    columns = np.stack([what // 2, np.where(what % 2, B, F), number], axis=1)
    return np.split(columns[np.argsort(rank, kind="stable")], np.cumsum(np.bincount(rank, minlength=ranks))[:-1])


def _arrivals(stages: int, copies: int, count: int) -> tuple[Array, Array, Array]:
    """Return where micro-batches go on to, and for each place which have come and how many, before anything is done.

    The forward of stage s is at 2 s, its backward at 2 s + 1, and the last place is nowhere.
    """
    per_copy, nowhere, each = stages // copies, 2 * stages, np.arange(stages)
    within, target = each % per_copy, np.full(nowhere + 1, nowhere)
    target[0:nowhere:2] = np.where(within < per_copy - 1, 2 * each + 2, 2 * each + 1)
    target[1:nowhere:2] = np.where(within > 0, 2 * each - 1, nowhere)
    came, waiting = np.zeros((nowhere + 1, count + 1), dtype=np.int64), np.zeros(nowhere + 1, dtype=np.int64)
    for copy in range(copies):
        numbers = np.arange(copy, count, copies)
        came[2 * copy * per_copy, : len(numbers)], waiting[2 * copy * per_copy] = numbers, len(numbers)
    return target, came, waiting


def place_weight_gradients(
    rows: Sequence[Row], num_stages: int, num_microbatches: int, times: Times = EQUAL
) -> list[Row]:
    """Put weight gradients where they cost least into an order of forwards and input gradients, which stays as it is.

    A weight gradient is done where the wait for the next forward or input gradient is long enough for it, where that
    wait would make this rank the one that has waited most, and where a forward would keep more activations than the
    rows given ever do: the rules of Qi et al.'s heuristic (2023, arXiv:2401.10241, section 3.1).

    Returns the best of the rows given and of a few tries, by the longest time from a rank's first action to its last.
    """
    order = make_order("", rows, num_stages, num_microbatches)
    start, best = at_work(order, times)
    # Forwards and input gradients in the order in which they begin.
    played = order.topological[np.argsort(start[order.topological], kind="stable")]
    todo = played[order.kind[played] != W]
    weights = np.full(len(order), -1)  # of an input gradient its weight gradient; −1 for a forward
    weights[order.needs[order.kind == W]] = np.flatnonzero(order.kind == W)
    facts = order.rank, order.needs, np.array(_seconds(order, times)), np.array(_sends(order, times)), weights
    entries = list(zip(todo.tolist(), *(each[todo].tolist() for each in facts), strict=True))
    limit = [int(most) for most in peak_in_flight(order)]
    found = list(rows)
    for eager in (True, False):
        allowed = [0.0] * order.num_ranks
        for _ in range(TRIES):
            done_by, span, waited = _place(entries, len(order), limit, times[2], allowed, eager)
            if span < best:
                best = span
                columns = np.stack([order.stage, order.kind, order.microbatch], axis=1)
                found = [columns[row] for row in done_by]
            if not eager or waited == allowed:  # another try would do the same
                break
            allowed = waited
    return found


def at_work(order: Order, times: Times) -> tuple[Array, float]:
    """Start of every action, and the longest time from a rank's first to the end of its last."""
    seconds, send = _seconds(order, times), _sends(order, times)
    need, previous = order.needs.tolist(), order.previous.tolist()
    end = [0.0] * (len(order) + 1)  # what needs nothing needs number −1, which is done at 0
    for action in order.topological.tolist():
        free, there = end[previous[action]], end[need[action]] + send[action]
        end[action] = (free if free > there else there) + seconds[action]
    ends = np.array(end[:-1])
    starts = ends - np.array(seconds)
    last = order.first[1:] - 1
    return starts, float((ends[last] - starts[order.first[:-1]]).max())


def _seconds(order: Order, times: Times) -> list[float]:
    """How long each action takes."""
    table = np.zeros(len(KINDS))
    table[[F, I, W, B]] = (*times[:3], times[1] + times[2])
    return list(table[order.kind].tolist())


def _sends(order: Order, times: Times) -> list[float]:
    """How long what each action needs is on its way."""
    return list(np.where(order.abroad(order.needs) >= 0, times[3], 0.0).tolist())


def _place(
    entries: Sequence[tuple[int, int, int, float, float, int]],
    num_actions: int,
    limit: list[int],
    weight: float,
    allowed: list[float],
    eager: bool,
) -> tuple[list[list[int]], float, list[float]]:
    """(actions of every rank in order, longest time at work, how long each rank waited).

    entries : forwards and input gradients in the order in which they begin: action, rank, what it waits for, seconds,
        seconds of the send before it, and the weight gradient that follows.
    limit : the most that each rank ever keeps.
    allowed : how long each rank waited in an earlier try: it may wait as long again as the worst one did.
    eager : do a weight gradient rather than become the rank that has waited most.
    """
    ranks = len(limit)
    free, first, waited = [0.0] * ranks, [-1.0] * ranks, [0.0] * ranks
    in_flight, most_waited, most_allowed = [0] * ranks, 0.0, max(allowed)
    due: list[deque[int]] = [deque() for _ in range(ranks)]
    done_by: list[list[int]] = [[] for _ in range(ranks)]
    end = [0.0] * (num_actions + 1)  # what needs nothing needs number −1
    for action, rank, need, seconds, send, own in entries:
        at, now = end[need] + send, free[rank]
        pending, done = due[rank], done_by[rank]
        while pending and (at - now >= weight or (own < 0 and in_flight[rank] >= limit[rank])):
            done.append(pending.popleft())
            now += weight
            in_flight[rank] -= 1
        if at > now:
            if eager and pending and waited[rank] + at - now > max(most_waited, most_allowed - allowed[rank]):
                done.append(pending.popleft())
                now += weight
                in_flight[rank] -= 1
            here = at if at > now else now
        else:
            here = now
        if first[rank] < 0:
            first[rank] = here
        else:
            waited[rank] += here - now
            if waited[rank] > most_waited:
                most_waited = waited[rank]
        done.append(action)
        free[rank] = end[action] = here + seconds
        if own < 0:
            in_flight[rank] += 1
        else:
            pending.append(own)
    for rank in range(ranks):
        for own in due[rank]:
            done_by[rank].append(own)
            free[rank] += weight
    span = max(stop - begin for stop, begin in zip(free, first, strict=True))
    return done_by, span, waited
