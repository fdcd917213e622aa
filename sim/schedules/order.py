"""An order as arrays, validated: each micro-batch once per stage and kind, a stage on one rank, no deadlock.

Every action needs at most one other besides the one before it on its rank: a forward needs the forward of the stage
before, a backward the backward of the stage after (the last stage's its own forward), a weight gradient its input
gradient. That a backward follows its own stage's forward is implied.

Most orders are periodic: with `period` more micro-batches every rank does the same, and in its steady state one block
of actions more. Where the blocks before a cut have been seen to take equally long, as a max-plus linear system does
after a transient [1]_, so will any further ones; a step of a million micro-batches is then timed from a few hundred,
exactly.

.. [1] Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and linearity", theorem 3.112 (cyclicity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sim.arrays import Array, IntArray
from sim.errors import ScheduleError
from sim.schedules.actions import KINDS, PAIRED, Action, B, F, I, Row, U, W, as_actions, as_row, format_grid


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Order:
    """What every rank does, in order. The arrays run over all actions, rank by rank.

    num_stages : virtual stages on all ranks; of every copy of the model where there are several.
    num_microbatches : that go through a step; under sequence slices each slice counts as one.
    copies : pipelines that run through the ranks at once, each with a model of its own, which take the micro-batches in
        turn; stage q · num_stages/copies + s is stage s of copy q.
    rank_of_stage : which rank holds each stage.
    stage, kind, microbatch, rank : of each action; kind as an index into KINDS.
    first : index of each rank's first action, and after the last the number of actions.
    previous : index of the action before it on its rank, or −1.
    needs : index of the action it waits for, or −1.
    pair_needs : where an action begins together with the next, what that one waits for; −1 for all others, None: no
        action does.
    topological : an order in which all can run.
    levels : where in it the actions end that could run at the same moment.
    fold : a repeating part of which only the beginning is in the arrays; None: everything is.
    per_flush : micro-batches after which the pipeline drains; None: it does once a step.
    """

    schedule: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    copies: int
    rank_of_stage: IntArray
    stage: IntArray
    kind: IntArray
    microbatch: IntArray
    rank: IntArray
    first: IntArray
    previous: IntArray
    needs: IntArray
    pair_needs: IntArray | None
    topological: IntArray
    levels: IntArray
    fold: Fold | None = None
    per_flush: int | None = None

    @property
    def flushes(self) -> int:
        """How often the pipeline drains in a step."""
        return 1 if self.per_flush is None else self.num_microbatches // self.per_flush

    @property
    def begins_flush(self) -> IntArray:
        """The actions with which a rank begins a flush after another."""
        if self.per_flush is None:
            return np.zeros(0, dtype=np.int64)
        flush = self.microbatch // self.per_flush
        return np.flatnonzero((self.previous >= 0) & (flush != flush[self.previous]))

    @property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """One tuple of actions a rank."""
        return tuple(as_actions(self.row(rank)) for rank in range(self.num_ranks))

    def row(self, rank: int) -> Row:
        """A rank's actions: stage, kind, micro-batch."""
        here = self.of_rank(rank)
        kind = self.kind[here]
        if self.pair_needs is not None:
            kind = kind + PAIRED * (self.pair_needs[here] >= 0)
        return np.stack([self.stage[here], kind, self.microbatch[here]], axis=1)

    def of_rank(self, rank: int) -> slice:
        """Slice of the arrays that holds a rank's actions."""
        return slice(int(self.first[rank]), int(self.first[rank + 1]))

    def abroad(self, needs: IntArray) -> IntArray:
        """Needs that another rank meets by a send; −1 where the rank's own order meets them."""
        return np.asarray(np.where((needs >= 0) & (self.rank[needs] != self.rank), needs, -1))

    @property
    def ends(self) -> tuple[int, int]:
        """Ranks of the model's first and last stage, which share a tied embedding; of several copies, of the first."""
        return int(self.rank_of_stage[0]), int(self.rank_of_stage[self.num_stages // self.copies - 1])

    @property
    def weight(self) -> IntArray:
        """How many actions of the step each action stands for: one, or more where a fold leaves some out."""
        return _weight(self)

    @property
    def is_head(self) -> IntArray:
        """Whether each stage is the last of its copy of the model."""
        per_copy = self.num_stages // self.copies
        return np.asarray(np.arange(self.num_stages) % per_copy == per_copy - 1)

    def __len__(self) -> int:
        return len(self.stage)


@lru_cache(maxsize=256)
def _weight(order: Order) -> IntArray:
    fold = order.fold
    endless = fold is not None and fold.endless  # a step is one batch of many
    weight = np.full(len(order), int(not endless), dtype=np.int64)
    if fold is not None:
        weight[fold.block(0)] += 1 if endless else fold.times
    weight.flags.writeable = False
    return weight


def make_order(
    schedule: str,
    actions: Sequence[Row | Iterable[Action]],
    num_stages: int,
    num_microbatches: int,
    *,
    copies: int = 1,
    per_flush: int | None = None,
) -> Order:
    """Turn the ranks' actions into a validated Order.

    actions : of each rank its actions, or its row.
    num_stages : of all copies of the model together.
    """
    rows = [as_row(row) for row in actions]
    lengths = [len(row) for row in rows]
    first = np.concatenate([[0], np.cumsum(lengths)])
    stage, kind, microbatch = np.ascontiguousarray(np.concatenate(rows).T) if rows else np.zeros((3, 0), dtype=int)
    rank = np.repeat(np.arange(len(rows)), lengths)
    paired = np.flatnonzero(kind & PAIRED)
    kind &= ~PAIRED
    size = (num_stages, num_microbatches, copies)
    index, home = _index(rows, stage, kind, microbatch, rank, size)
    needs = _needs(index, stage, kind, microbatch, num_stages // copies)
    pair_needs = None
    if len(paired):
        pair_needs = np.full(len(needs), -1)
        pair_needs[paired] = needs[paired + 1]
    previous = np.arange(-1, len(stage) - 1)
    previous[first[:-1][np.asarray(lengths) > 0]] = -1
    topological, levels = _topological(rows, needs, pair_needs, first)
    return Order(
        schedule,
        len(rows),
        num_stages,
        num_microbatches,
        copies,
        home,
        stage,
        kind,
        microbatch,
        rank,
        first,
        previous,
        needs,
        pair_needs,
        topological,
        levels,
        per_flush=per_flush,
    )


def _index(
    rows: Sequence[Row],
    stage: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    rank: IntArray,
    size: tuple[int, int, int],
) -> tuple[IntArray, IntArray]:
    """Where each (kind, stage, micro-batch) stands, and each stage's rank; raises at what is missing or foreign."""
    num_stages, num_microbatches, copies = size
    split = bool((kind == I).any())
    known = np.zeros(len(KINDS), dtype=bool)
    known[[F, B, U]] = True
    known[[I, W]] = split
    foreign = (stage < 0) | (stage >= num_stages) | (microbatch < 0) | (microbatch >= num_microbatches) | ~known[kind]
    if copies > 1:  # they take the micro-batches in turn
        foreign |= stage // (num_stages // copies) != microbatch % copies
    if foreign.any():
        raise ScheduleError(_at("{action} does not belong to the step", rows, int(foreign.argmax())))
    code = (kind * num_stages + stage) * num_microbatches + microbatch
    index: IntArray = np.full(len(KINDS) * num_stages * num_microbatches, -1)
    index[code] = np.arange(len(code))
    repeated = index[code] != np.arange(len(code))
    if repeated.any():
        raise ScheduleError(_at("{action} is done more than once", rows, int(repeated.argmax())))
    index = index.reshape(len(KINDS), num_stages, num_microbatches)
    halves = (index[I] >= 0) | (index[W] >= 0)
    both = (index[B] >= 0) & halves  # a whole backward and a half of one
    if both.any():
        raise ScheduleError(_at("{action} does not belong to the step", rows, int(index[:, both].max())))
    _require_all(rows, index, halves, copies, split)
    home = np.full(num_stages, -1)
    home[stage[::-1]] = rank[::-1]  # the first to turn to a stage holds it
    astray = home[stage] != rank
    if astray.any():
        place = int(astray.argmax())
        other = int(home[stage[place]])
        raise ScheduleError(_at(f"{{action}} is on rank {rank[place]}, but rank {other} holds that stage", rows, place))
    return index, home


def _require_all(rows: Sequence[Row], index: IntArray, halves: IntArray, copies: int, split: bool) -> None:
    """Raise where an action is missing.

    halves : of which stages and micro-batches a half of a backward is done. split : whether of any.
    """
    _, num_stages, num_microbatches = index.shape
    of_stage = np.arange(num_stages)[:, np.newaxis] // (num_stages // copies)
    expected = of_stage == np.arange(num_microbatches) % copies
    halved = halves | (split and not (index[B] >= 0).any())
    lacking = (index < 0) & expected
    lacking[B] &= ~halved
    lacking[[I, W]] &= halved
    lacking[U] = False
    if lacking.any():
        missing = np.argwhere(lacking)
        which, at_stage, at_microbatch = missing[0].tolist()
        action = Action(at_stage, KINDS[which], at_microbatch)
        more = f" ({len(missing):,} actions are missing)" if len(missing) > 1 else ""
        near = int(index[:, at_stage, at_microbatch].max())  # what is done of the micro-batch on that stage
        if near >= 0:
            raise ScheduleError(_at(f"{action} is never done, though {{action}} is{more}", rows, near))
        raise ScheduleError(f"{action} is never done{more}\n{_window(rows, None, 0)}")


def _needs(index: IntArray, stage: IntArray, kind: IntArray, microbatch: IntArray, per_copy: int) -> IntArray:
    needs = np.full(len(stage), -1)
    within = stage % per_copy
    later = np.flatnonzero((kind == F) & (within > 0))
    needs[later] = index[F, stage[later] - 1, microbatch[later]]
    backward = (kind == B) | (kind == I)
    gradient = np.maximum(index[B], index[I])  # whichever there is
    inner = np.flatnonzero(backward & (within < per_copy - 1))
    needs[inner] = gradient[stage[inner] + 1, microbatch[inner]]
    turn = np.flatnonzero(backward & (within == per_copy - 1))
    needs[turn] = index[F, stage[turn], microbatch[turn]]
    weight = np.flatnonzero(kind == W)
    needs[weight] = index[I, stage[weight], microbatch[weight]]
    return needs


def _topological(
    rows: Sequence[Row], needs: IntArray, pair_needs: IntArray | None, first: IntArray
) -> tuple[IntArray, IntArray]:
    """An order in which all actions can run, and its levels; raise where all ranks wait."""
    also = np.full(len(needs), -1) if pair_needs is None else pair_needs
    sequence, levels = by_levels(needs, also, first)
    if len(sequence) < len(needs):
        done = np.zeros(len(needs) + 1, dtype=bool)
        done[sequence], done[-1] = True, True  # what needs nothing needs number −1
        place = int(np.argmin(done))
        stuck = int(np.searchsorted(first, place, side="right")) - 1
        awaited = int(needs[place])
        if done[awaited] and pair_needs is not None:
            awaited = int(pair_needs[place])
        row = int(np.searchsorted(first, awaited, side="right")) - 1
        blocker = as_actions(rows[row][awaited - first[row]][np.newaxis])[0]
        raise ScheduleError(_at(f"deadlock: rank {stuck} waits for {blocker} before {{action}}", rows, place))
    return sequence, levels


def by_levels(needs: IntArray, also: IntArray, first: IntArray) -> tuple[IntArray, IntArray]:
    """Run each rank's actions in order, each when what it needs is done: for all ranks at once, one action each.

    needs, also, first : as needs, pair_needs and first in `Order`.

    Returns the actions that can run, in an order in which they can (all of them unless the order deadlocks), and where
    in it those end that could run at the same moment.
    """
    position, end = first[:-1].copy(), first[1:]
    done = np.zeros(len(needs) + 2, dtype=bool)
    done[-1] = True  # what needs nothing needs number −1
    needs = np.append(needs, len(needs))  # beyond the last rank's end: never done
    pairs = bool((also >= 0).any())
    also = np.append(also, -1)
    found: list[IntArray] = []
    while True:
        ready = done[needs[position]] & (position < end)
        if pairs:
            ready &= done[also[position]]
        go = position[ready]
        if not len(go):
            break
        done[go] = True
        found.append(go)
        position += ready
    levels = np.cumsum([len(level) for level in found])
    return (np.concatenate(found) if found else np.empty(0, dtype=np.int64)), levels


def _at(message: str, rows: Sequence[Row], place: int) -> str:
    """The message, with the action at flat index `place` filled in, and the grid around it, marked."""
    rank = 0
    while place >= len(rows[rank]):
        place -= len(rows[rank])
        rank += 1
    action = as_actions(rows[rank][place][np.newaxis])[0]
    return f"{message.format(action=action)}\n{_window(rows, (rank, place), max(0, place - 4))}"


def _window(rows: Sequence[Row], mark: tuple[int, int] | None, start: int) -> str:
    shown = [as_actions(row[start : start + 10]) for row in rows]
    return format_grid(shown, mark=None if mark is None else (mark[0], mark[1] - start), first=start)


@dataclass(frozen=True, slots=True)
class Fold:
    """A block of actions on every rank that would stand `times` more before its cut.

    period : micro-batches of a block.
    cuts : flat index of each rank's first action after the fold.
    lengths : actions of a block on each rank.
    seen : blocks before the cuts that are in the arrays.
    depth : blocks before its own back to which the needs of a block, and of what follows the cut, reach.
    kept : micro-batches in the arrays.
    rebuild : micro-batches -> the order with so many of them in its arrays.
    endless : a block is a whole batch, and batches follow each other without a flush.
    """

    period: int
    times: int
    cuts: Array
    lengths: Array
    seen: int
    depth: int
    kept: int
    rebuild: Callable[[int], Any]
    endless: bool = False

    def unfold(self) -> Any:
        """The order with everything in its arrays."""
        return self.rebuild(self.kept + self.times * self.period)

    def block(self, back: int) -> Array:
        """Flat indices of the block `back` blocks before the last one seen, rank by rank."""
        begins, before = self.cuts - (back + 1) * self.lengths, np.cumsum(self.lengths) - self.lengths
        return np.asarray(np.arange(self.lengths.sum()) + np.repeat(begins - before, self.lengths))
