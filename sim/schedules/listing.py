"""Orders found by playing the pipeline with equal or given times: who is free takes the best it can do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Array
from sim.schedules.actions import KINDS, B, F, I, Row, W
from sim.schedules.order import Order, make_order
from sim.schedules.passes import peak_in_flight

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

    Parameters
    ----------
    home : sequence
        Which rank holds each stage; stages of every copy of the model.
    most_in_flight : stage -> micro-batches
        How many a stage may have begun and not come back to.
    forward_first : bool
        Where both could be done, take a forward rather than a backward.

    Returns
    -------
    list of Row
        Of each rank. Micro-batches are dealt to the copies in turn.
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
    taken: list[Array] = []  # (rank, kind and stage, micro-batch) of what begins at each moment
    left = 2 * stages // copies * count
    while left:
        so_far = done[able]
        head = came[able, np.minimum(so_far, count)]
        free = (so_far < waiting[able]) & (is_backward | (done[of_forward] - done[of_backward] < limit))
        key = np.where(free, worth + head * (stages + 1), never)
        choice = key.argmin(axis=1)
        acting = np.flatnonzero(key[every, choice] != never)
        if not len(acting):  # all wait: what is missing is said when the order is made
            break
        what, number = able[acting, choice[acting]], head[acting, choice[acting]]
        taken.append(np.stack([acting, what, number]))
        left -= len(what)
        done[what] += 1
        there = target[what]
        came[there, np.minimum(waiting[there], count)] = number
        waiting[there] += 1
        waiting[nowhere] = 0
    rank, what, number = np.concatenate(taken, axis=1)
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

    Returns
    -------
    list of Row
        The best of the rows given and of a few tries, by the longest time from a rank's first action to its last.
    """
    order = make_order("", rows, num_stages, num_microbatches)
    start, best = at_work(order, times)
    # Forwards and input gradients in the order in which they begin.
    played = order.topological[np.argsort(start[order.topological], kind="stable")]
    todo = _Todo.of(order, played[order.kind[played] != W], times)
    found = list(rows)
    for eager in (True, False):
        allowed = [0.0] * order.num_ranks
        for _ in range(TRIES):
            done_by, span, waited = _place(todo, times[2], allowed, eager)
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


@dataclass(frozen=True, slots=True)
class _Todo:
    """Forwards and input gradients, one entry each in the order in which they begin.

    action, need : its index in the order, and that of what it waits for.
    weight : of an input gradient its weight gradient's index; −1 for a forward.
    limit : of every rank, the most it ever keeps.
    """

    action: list[int]
    rank: list[int]
    need: list[int]
    seconds: list[float]
    send: list[float]
    weight: list[int]
    limit: list[int]
    num_actions: int

    @classmethod
    def of(cls, order: Order, todo: Array, times: Times) -> _Todo:
        """Build the list of what is to do from an order and the times of its actions."""
        weights = np.full(len(order), -1)
        weights[order.needs[order.kind == W]] = np.flatnonzero(order.kind == W)
        seconds, sends = np.array(_seconds(order, times)), np.array(_sends(order, times))
        rank, need = order.rank[todo].tolist(), order.needs[todo].tolist()
        limit = [int(most) for most in peak_in_flight(order)]
        return cls(
            todo.tolist(), rank, need, seconds[todo].tolist(), sends[todo].tolist(), weights[todo].tolist(), limit,
            len(order),
        )  # fmt: skip


def _place(todo: _Todo, weight: float, allowed: list[float], eager: bool) -> tuple[list[list[int]], float, list[float]]:
    """(actions of every rank in order, longest time at work, how long each rank waited).

    allowed : how long each rank waited in an earlier try: it may wait as long again as the worst one did.
    eager : do a weight gradient rather than become the rank that has waited most.
    """
    ranks, limit = len(todo.limit), todo.limit
    free, first, waited = [0.0] * ranks, [-1.0] * ranks, [0.0] * ranks
    in_flight, most_waited, most_allowed = [0] * ranks, 0.0, max(allowed)
    due: list[deque[int]] = [deque() for _ in range(ranks)]
    done_by: list[list[int]] = [[] for _ in range(ranks)]
    end = [0.0] * (todo.num_actions + 1)  # what needs nothing needs number −1
    each = zip(todo.action, todo.rank, todo.need, todo.seconds, todo.send, todo.weight, strict=True)
    for action, rank, need, seconds, send, own in each:
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
