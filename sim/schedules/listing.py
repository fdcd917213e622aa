"""Orders found by playing the pipeline with equal or given times: who is free takes the best it can do."""

from __future__ import annotations

import heapq
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
WIDE = 12
"""Ranks above which playing all at once beats a loop over single actions."""
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
    if max(home) >= WIDE:
        return _play_at_once(home, copies, num_microbatches, most_in_flight, forward_first)
    per_copy = len(home) // copies
    ranks = max(home) + 1
    arrived: list[deque[tuple[float, int]]] = [deque() for _ in range(2 * len(home))]  # of stage s, kind k at 2 s + k
    mine = [[stage for stage, where in enumerate(home) if where == rank] for rank in range(ranks)]
    for number in range(num_microbatches):
        arrived[2 * (number % copies) * per_copy].append((0.0, number))
    free, rows = [0.0] * ranks, [[] for _ in range(ranks)]  # type: ignore[var-annotated]
    in_flight = [0] * len(home)
    events = [(0.0, rank) for rank in range(ranks)]
    while events:
        now, rank = heapq.heappop(events)
        if now < free[rank]:
            continue
        able = [
            ((kind == F) != forward_first, arrived[2 * stage + kind][0][1], -stage)
            for stage in mine[rank]
            for kind in (F, B)
            if arrived[2 * stage + kind]
            and arrived[2 * stage + kind][0][0] <= now
            and (kind == B or in_flight[stage] < most_in_flight(stage))
        ]
        if not able:
            continue
        later, number, negative = min(able)
        forward = later != forward_first
        stage, kind = -negative, F if forward else B
        arrived[2 * stage + kind].popleft()
        in_flight[stage] += 1 if forward else -1
        rows[rank].append((stage, kind, number))
        free[rank] = now + 1.0
        heapq.heappush(events, (free[rank], rank))
        turns = forward and (stage + 1) % per_copy == 0
        if turns or forward or stage % per_copy:
            there = stage if turns else stage + 1 if forward else stage - 1
            arrived[2 * there + (B if turns or not forward else F)].append((free[rank], number))
            heapq.heappush(events, (max(free[rank], free[home[there]]), home[there]))
    return [np.array(row, dtype=np.int64).reshape(-1, 3) for row in rows]


def _play_at_once(
    home: Sequence[int], copies: int, num_microbatches: int, most_in_flight: Callable[[int], int], forward_first: bool
) -> list[Row]:
    """Do as `play` does, for all ranks at once: everything takes equally long, so all begin at the same moments."""
    stages, ranks, count = len(home), max(home) + 1, num_microbatches
    within = np.arange(stages) % (stages // copies)
    nowhere = 2 * stages
    # Of stage s, kind k (forward 0, backward 1) at 2 s + k: from where micro-batches come, in which order they came.
    source = np.empty(nowhere + 1, dtype=np.int64)
    source[0:nowhere:2] = np.where(within == 0, nowhere, 2 * np.arange(stages) - 2)
    source[1:nowhere:2] = np.where(within == within.max(), 2 * np.arange(stages), 2 * np.arange(stages) + 3)
    came = np.zeros((nowhere + 1, count + 1), dtype=np.int64)
    begins = np.flatnonzero(source[:nowhere] == nowhere)  # first stages
    dealt = np.zeros(nowhere, dtype=np.int64)
    for copy, first in enumerate(begins.tolist()):
        numbers = np.arange(copy, count, copies)
        came[first, : len(numbers)], dealt[first] = numbers, len(numbers)
    # Of every rank what it may do, in the order of the better stage: (ranks, kinds and stages), padded with nothing.
    mine = [[2 * s + k for s in range(stages) if home[s] == rank for k in (0, 1)] for rank in range(ranks)]
    width = max(map(len, mine))
    able = np.array([[*row, *[nowhere] * (width - len(row))] for row in mine])
    most = np.array([most_in_flight(stage) for stage in range(stages)] + [0])
    kind, stage = able % 2, able // 2
    later = (kind == 0) != forward_first
    worth = later * (count + 1) * (stages + 1) + (stages - stage)  # the earlier micro-batch, then the later stage
    done = np.zeros(nowhere + 1, dtype=np.int64)
    waiting = dealt.copy()
    waiting = np.append(waiting, 0)
    never = np.iinfo(np.int64).max
    is_backward, limit = kind == 1, most[stage]
    of_forward, of_backward = 2 * np.minimum(stage, stages - 1), np.minimum(2 * stage + 1, nowhere)
    every = np.arange(ranks)
    total = 2 * stages // copies * count
    everything, taken = np.empty((4, total), dtype=np.int64), 0
    target = np.full(nowhere + 1, nowhere)
    target[source[:nowhere]] = np.arange(nowhere)
    target[nowhere] = nowhere
    while taken < total:
        so_far = done[able]
        head = came[able, np.minimum(so_far, count)]
        free = (so_far < waiting[able]) & (is_backward | (done[of_forward] - done[of_backward] < limit))
        key = np.where(free, worth + head * (stages + 1), never)
        choice = key.argmin(axis=1)
        acting = np.flatnonzero(key[every, choice] != never)
        what, number = able[acting, choice[acting]], head[acting, choice[acting]]
        here = slice(taken, taken + len(what))
        everything[0, here], everything[1, here], everything[3, here] = acting, what, number
        done[what] += 1
        there = target[what]
        came[there, np.minimum(waiting[there], count)] = number
        waiting[there] += 1
        waiting[nowhere] = 0
        taken += len(what)
    everything[1], everything[2] = everything[1] // 2, everything[1] % 2
    order = np.argsort(everything[0], kind="stable")
    lengths = np.bincount(everything[0], minlength=ranks)
    columns = everything[1:, order].T.copy()
    columns[:, 1] = np.where(columns[:, 1] == 1, B, F)
    return np.split(columns, np.cumsum(lengths)[:-1])


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
