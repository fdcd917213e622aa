"""Orders found by playing the pipeline with equal or given times: who is free takes the best it can do."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from sim.schedules.actions import B, F, I, Row, W
from sim.schedules.order import make_order

Array = np.ndarray
Times = tuple[float, float, float, float]
"""Forward, input gradient, weight gradient, and a send to another rank; in any unit."""
EQUAL: Times = (1.0, 1.0, 1.0, 0.0)
TRIES = 3
"""Times that weight gradients are placed anew, each knowing how long ranks waited before."""


def play(home: Sequence[int], copies: int, num_microbatches: int, most_alive: Callable[[int], int]) -> list[Row]:
    """Forwards and backwards of equal length, as early as they can: a backward first, then the earliest micro-batch.

    Parameters
    ----------
    home : sequence
        Which rank holds each stage; stages of every copy of the model.
    most_alive : stage -> micro-batches
        How many a stage may have begun and not come back to.

    Returns
    -------
    list of Row
        Of each rank. Micro-batches are dealt to the copies in turn.
    """
    per_copy = len(home) // copies
    ranks = max(home) + 1
    arrived: list[deque[tuple[float, int]]] = [deque() for _ in range(2 * len(home))]  # of stage s, kind k at 2 s + k
    mine = [[stage for stage, where in enumerate(home) if where == rank] for rank in range(ranks)]
    for number in range(num_microbatches):
        arrived[2 * (number % copies) * per_copy].append((0.0, number))
    free, rows = [0.0] * ranks, [[] for _ in range(ranks)]  # type: ignore[var-annotated]
    alive = [0] * len(home)
    events = [(0.0, rank) for rank in range(ranks)]
    while events:
        now, rank = heapq.heappop(events)
        if now < free[rank]:
            continue
        able = [
            (kind == F, arrived[2 * stage + kind][0][1], -stage)
            for stage in mine[rank]
            for kind in (F, B)
            if arrived[2 * stage + kind]
            and arrived[2 * stage + kind][0][0] <= now
            and (kind == B or alive[stage] < most_alive(stage))
        ]
        if not able:
            continue
        forward, number, negative = min(able)
        stage, kind = -negative, F if forward else B
        arrived[2 * stage + kind].popleft()
        alive[stage] += 1 if forward else -1
        rows[rank].append((stage, kind, number))
        free[rank] = now + 1.0
        heapq.heappush(events, (free[rank], rank))
        turns = forward and (stage + 1) % per_copy == 0
        if turns or forward or stage % per_copy:
            there = stage if turns else stage + 1 if forward else stage - 1
            arrived[2 * there + (B if turns or not forward else F)].append((free[rank], number))
            heapq.heappush(events, (max(free[rank], free[home[there]]), home[there]))
    return [np.array(row, dtype=np.int64).reshape(-1, 3) for row in rows]


def place_weight_gradients(
    rows: Sequence[Row], num_stages: int, num_microbatches: int, times: Times = EQUAL
) -> list[Row]:
    """The same order of forwards and input gradients, with weight gradients where they cost least.

    A weight gradient is done where the wait for the next forward or input gradient is long enough for it, where that
    wait would make this rank the one that has waited most, and where a forward would keep more activations than the
    rows given ever do: the rules of Qi et al.'s heuristic (2023, arXiv:2401.10241, section 3.1).

    Returns
    -------
    list of Row
        The best of the rows given and of a few tries, by the longest time from a rank's first action to its last.
    """
    order = make_order("", rows, num_stages, num_microbatches)
    played = order.topological
    steps = np.stack([order.rank, order.stage, order.kind, order.microbatch], axis=1)[played]
    start, best = longest_at_work(steps, order.rank_of_stage.tolist(), times)
    # Forwards and input gradients in the order in which they begin.
    todo = steps[np.argsort(start, kind="stable")]
    todo = todo[todo[:, 2] != W]
    change = np.where(order.kind == F, 1, np.where(order.kind == W, -1, 0))
    limit = [int(np.cumsum(change[order.of_rank(rank)]).max()) for rank in range(order.num_ranks)]
    found = list(rows)
    for eager in (True, False):
        allowed = [0.0] * order.num_ranks
        for _ in range(TRIES):
            placed, span, allowed = _place(todo.tolist(), order.rank_of_stage.tolist(), limit, times, allowed, eager)
            if span < best:
                best, found = span, placed
    return found


class _Clock:
    """When every forward and input gradient is done, and when what a step needs from another stage is there."""

    def __init__(self, home: Sequence[int], times: Times) -> None:
        self.home, self.times, self.last = home, times, len(home) - 1
        self.done: dict[tuple[int, int, int], float] = {}

    def arrival(self, rank: int, stage: int, kind: int, number: int) -> float:
        if kind == W or (kind == F and stage == 0):
            return 0.0
        if kind == F:
            need = (stage - 1, F, number)
        else:
            need = (stage + 1, I, number) if stage < self.last else (stage, F, number)
        return self.done[need] + (self.times[3] if self.home[need[0]] != rank else 0.0)


def longest_at_work(steps: Array, home: Sequence[int], times: Times) -> tuple[Array, float]:
    """Start of each step (rank, stage, kind, micro-batch), and the longest time from a rank's first to its last.

    steps : array of shape (n, 4), in an order in which they can run.
    """
    clock = _Clock(home, times)
    seconds = {F: times[0], I: times[1], W: times[2]}
    free: dict[int, float] = {}
    first: dict[int, float] = {}
    start = []
    for rank, stage, kind, number in steps.tolist():
        here = max(free.get(rank, 0.0), clock.arrival(rank, stage, kind, number))
        first.setdefault(rank, here)
        start.append(here)
        free[rank] = clock.done[stage, kind, number] = here + seconds[kind]
    return np.array(start), max(free[rank] - first[rank] for rank in free)


def _place(
    todo: list[list[int]], home: list[int], limit: list[int], times: Times, allowed: list[float], eager: bool
) -> tuple[list[Row], float, list[float]]:
    """(rows, longest time at work, how long each rank waited).

    allowed : how long each rank waited in an earlier try: it may wait as long again as the worst one did.
    eager : do a weight gradient rather than become the rank that has waited most.
    """
    ranks, clock = len(limit), _Clock(home, times)
    free, first, waited = [0.0] * ranks, [-1.0] * ranks, [0.0] * ranks
    alive = [0] * ranks
    due: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]

    def do_weight_gradient(rank: int) -> None:
        stage, number = due[rank].popleft()
        rows[rank].append((stage, W, number))
        free[rank] += times[2]
        alive[rank] -= 1

    for rank, stage, kind, number in todo:
        at = clock.arrival(rank, stage, kind, number)
        while due[rank] and (at - free[rank] >= times[2] or (kind == F and alive[rank] >= limit[rank])):
            do_weight_gradient(rank)
        most = max(max(waited), max(allowed) - allowed[rank])
        if eager and due[rank] and at > free[rank] and waited[rank] + at - free[rank] > most:
            do_weight_gradient(rank)
        here = max(free[rank], at)
        if first[rank] < 0:
            first[rank] = here
        else:
            waited[rank] += here - free[rank]
        rows[rank].append((stage, kind, number))
        free[rank] = clock.done[stage, kind, number] = here + times[0 if kind == F else 1]
        if kind == F:
            alive[rank] += 1
        else:
            due[rank].append((stage, number))
    for rank in range(ranks):
        while due[rank]:
            do_weight_gradient(rank)
    span = max(end - begin for end, begin in zip(free, first, strict=True))
    return [np.array(row, dtype=np.int64).reshape(-1, 3) for row in rows], span, waited
