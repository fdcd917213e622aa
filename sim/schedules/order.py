"""An order as arrays, validated: each micro-batch once per stage and kind, a stage on one rank, no deadlock.

Every action needs at most one other besides the one before it on its rank: a forward needs the forward of the stage
before, a backward the backward of the stage after (the last stage's its own forward), a weight gradient its input
gradient. That a backward follows its own stage's forward is implied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import ScheduleError
from sim.schedules.actions import Action, Kind
from sim.schedules.grid import format_grid

IntArray = np.ndarray
KINDS = (Kind.F, Kind.B, Kind.I, Kind.W)
_CODE = {kind: code for code, kind in enumerate(KINDS)}
F, B, I, W = range(4)  # noqa: E741


@dataclass(frozen=True, slots=True)
class Order:
    """What every rank does, in order. The arrays run over all actions, rank by rank.

    actions : one tuple of actions a rank.
    stage, kind, microbatch, rank : of each action; kind as an index into KINDS.
    previous : index of the action before it on its rank, or −1.
    needs : index of the action it waits for, or −1.
    topological : an order in which all can run.
    """

    schedule: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    stage: IntArray
    kind: IntArray
    microbatch: IntArray
    rank: IntArray
    previous: IntArray
    needs: IntArray
    topological: IntArray

    def visits_per_stage(self) -> float:
        """How often a rank turns to a stage it holds, averaged over stages and over forward and backward.

        Micro-batches that follow each other on a stage are one visit: breadth-first orders visit each stage once,
        interleaved ones once a group of micro-batches. What ZeRO gathers and reduces it moves once a visit.
        """
        visits = 0
        forward = self.kind == F
        for chosen in (forward, ~forward & (self.kind != W)):
            stage, rank = self.stage[chosen], self.rank[chosen]
            visits += int(((np.diff(stage) != 0) | (np.diff(rank) != 0)).sum()) + 1
        return visits / (2 * self.num_stages)

    def __len__(self) -> int:
        return len(self.stage)


def make_order(schedule: str, actions: Sequence[Sequence[Action]], num_stages: int, num_microbatches: int) -> Order:
    """Turn the ranks' actions into a validated Order.

    Raises
    ------
    ScheduleError
        An action missing, repeated or out of range, a stage on two ranks, or a deadlock; with the place in the grid.
    """
    rows = tuple(tuple(row) for row in actions)
    flat = [action for row in rows for action in row]
    stage = np.array([action.stage for action in flat], dtype=np.int64)
    kind = np.array([_CODE[action.kind] for action in flat], dtype=np.int64)
    microbatch = np.array([action.microbatch for action in flat], dtype=np.int64)
    rank = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    split = bool((kind == I).any())
    index = _index(rows, stage, kind, microbatch, rank, (num_stages, num_microbatches), split)
    needs = _needs(index, stage, kind, microbatch, num_stages, split)
    first = np.cumsum([0] + [len(row) for row in rows[:-1]])
    previous = np.arange(-1, len(flat) - 1)
    previous[first[first < len(flat)]] = -1
    topological = _topological(rows, needs, first)
    return Order(
        schedule,
        len(rows),
        num_stages,
        num_microbatches,
        rows,
        stage,
        kind,
        microbatch,
        rank,
        previous,
        needs,
        topological,
    )


def _index(
    rows: tuple[tuple[Action, ...], ...],
    stage: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    rank: IntArray,
    size: tuple[int, int],
    split: bool,
) -> IntArray:
    """Where each (kind, stage, micro-batch) stands; raises where one is missing, repeated or foreign."""
    num_stages, num_microbatches = size
    expected = (F, I, W) if split else (F, B)
    outside = (stage < 0) | (stage >= num_stages) | (microbatch < 0) | (microbatch >= num_microbatches)
    foreign = outside | ~np.isin(kind, expected)
    if foreign.any():
        place = int(foreign.argmax())
        raise ScheduleError(_at("{action} does not belong to the step", rows, place))
    code = (kind * num_stages + stage) * num_microbatches + microbatch
    index: IntArray = np.full(len(KINDS) * num_stages * num_microbatches, -1)
    index[code] = np.arange(len(code))
    repeated = index[code] != np.arange(len(code))
    if repeated.any():
        raise ScheduleError(_at("{action} is done more than once", rows, int(repeated.argmax())))
    index = index.reshape(len(KINDS), num_stages, num_microbatches)
    missing = np.argwhere(index[list(expected)] < 0)
    if len(missing):
        which, at_stage, at_microbatch = missing[0]
        action = Action(int(at_stage), KINDS[expected[which]], int(at_microbatch))
        more = f" ({len(missing)} actions are missing)" if len(missing) > 1 else ""
        raise ScheduleError(f"{action} is never done{more}\n{_window(rows, None, 0)}")
    home = rank[index[F, :, 0]]
    astray = home[stage] != rank
    if astray.any():
        place = int(astray.argmax())
        other = int(home[stage[place]])
        raise ScheduleError(_at(f"{{action}} is on rank {rank[place]}, but rank {other} holds that stage", rows, place))
    return index


def _needs(
    index: IntArray, stage: IntArray, kind: IntArray, microbatch: IntArray, num_stages: int, split: bool
) -> IntArray:
    needs = np.full(len(stage), -1)
    gradient = I if split else B
    later = (kind == F) & (stage > 0)
    needs[later] = index[F, stage[later] - 1, microbatch[later]]
    inner = (kind == gradient) & (stage < num_stages - 1)
    needs[inner] = index[gradient, stage[inner] + 1, microbatch[inner]]
    turn = (kind == gradient) & (stage == num_stages - 1)
    needs[turn] = index[F, stage[turn], microbatch[turn]]
    weight = kind == W
    needs[weight] = index[I, stage[weight], microbatch[weight]]
    return needs


def _topological(rows: tuple[tuple[Action, ...], ...], needs: IntArray, first: IntArray) -> IntArray:
    """Play the order: run each rank until it waits, go on where something became ready; raise where all wait."""
    need = needs.tolist()
    position = first.tolist()
    end = [start + len(row) for start, row in zip(position, rows, strict=True)]
    done = bytearray(len(need))
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(rows)))[::-1]
    sequence: list[int] = []
    while ready:
        rank = ready.pop()
        at, last = position[rank], end[rank]
        while at < last:
            blocker = need[at]
            if blocker >= 0 and not done[blocker]:
                waiting.setdefault(blocker, []).append(rank)
                break
            done[at] = 1
            sequence.append(at)
            if at in waiting:
                ready.extend(waiting.pop(at))
            at += 1
        position[rank] = at
    if len(sequence) < len(need):
        stuck = next(rank for rank in range(len(rows)) if position[rank] < end[rank])
        place = position[stuck]
        flat = [action for row in rows for action in row]
        raise ScheduleError(_at(f"deadlock: rank {stuck} waits for {flat[need[place]]} before {{action}}", rows, place))
    return np.array(sequence, dtype=np.int64)


def _at(message: str, rows: tuple[tuple[Action, ...], ...], place: int) -> str:
    """The message, with the action at flat index `place` filled in, and the grid around it, marked."""
    rank = 0
    while place >= len(rows[rank]):
        place -= len(rows[rank])
        rank += 1
    return f"{message.format(action=rows[rank][place])}\n{_window(rows, (rank, place), max(0, place - 4))}"


def _window(rows: tuple[tuple[Action, ...], ...], mark: tuple[int, int] | None, start: int) -> str:
    shown = [row[start : start + 10] for row in rows]
    return format_grid(shown, mark=None if mark is None else (mark[0], mark[1] - start), first=start)
