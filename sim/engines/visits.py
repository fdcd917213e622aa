"""What ranks move once a visit, on a stream of their own beside compute: one thing after the other, as it is asked for.

A rank asks for the weights of its next forward visit when it begins one, and for those of its next backward visit when
it begins a backward one (the first of these, when it begins the visit before it), so that they are on their way while
it computes or waits; without overlap, when it has nothing else to do, and computes nothing meanwhile. It hands in the
gradients of a backward visit when its last micro-batch gives them. So each way there is room for two chunks, that at
work and the next, and a backward visit waits for the gradients of the one before the last. A stack that gathers further
ahead (`StackSpec.prefetched_layers`) asks so many visits earlier, in the same order, and has room for as many more. One
group's collectives run one after the other, which is why PyTorch's FSDP asks for weights before it hands in gradients
(torch.distributed.fsdp.BackwardPrefetch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import ActionPlanFloats, Array, Ints, KindPlanFloats, Number, RankPlanFloats
from sim.pricing.visits import VisitSeconds
from sim.schedules import Order
from sim.schedules.actions import F
from sim.schedules.passes import Visits, asks_of, visits_of

WEIGHTS, GRADIENTS = range(2)
"""What is moved."""
_PASSES = np.array([0, 1, 2, 2, 0])
"""Which pass of `VisitSeconds.early` each kind of action is; only the first three open visits."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What the actions of an order ask of their rank's stream; arrays (actions), or (actions, plans). [s]

    visits : of the order.
    asks : of an action that opens a visit, those whose weights are asked for then (`sim.schedules.passes.asks_of`); and
        of which plans, one array after the other.
    gather, early : of an action that opens a visit, as of `sim.pricing.visits.VisitSeconds`.
    reduce, tail : of an action that closes one, the same.
    queues : whether a visit waits for its turn on the stream; those that move nothing do not.
    ahead : whether it is asked for when a visit before begins.
    beside : whether gradients are reduced while the rank goes on; array (plans).
    """

    visits: Visits
    asks: tuple[tuple[Ints, Array], ...]
    gather: ActionPlanFloats
    early: ActionPlanFloats
    reduce: ActionPlanFloats
    tail: ActionPlanFloats
    queues: Array
    ahead: Array
    beside: Array

    def first_waits(self, order: Order) -> RankPlanFloats:
        """How long each rank waits for the weights of its first visit, if it has nothing else to wait for.  [s]"""
        first = order.first[:-1]
        return np.asarray(self.gather[first] - self.early[first])


@dataclass(frozen=True, slots=True)
class LeastAtVisits:
    """What visits take of the ranks whatever they wait for besides, for bounds; arrays (ranks) or (ranks, plans). [s]

    begin : of each rank, from the step's begin until its first action may begin.
    lost : between its first action and its last, waiting for its stream and computing beside it.
    tail : after its last action.
    moved : by its stream in a step.
    """

    begin: RankPlanFloats
    lost: RankPlanFloats
    tail: RankPlanFloats
    moved: RankPlanFloats

    def end(self, last: RankPlanFloats) -> RankPlanFloats:
        """When ranks are done whose last actions end then.  [s]"""
        return np.asarray(np.maximum(last + self.tail, self.moved))

    def take(self, choices: Any) -> LeastAtVisits:
        """Those of some choices, on the axis behind that of ranks."""
        return LeastAtVisits(
            self.begin[:, choices], self.lost[:, choices], self.tail[:, choices], self.moved[:, choices]
        )


def least_at_visits(
    order: Order, visits: VisitSeconds, times: Number | None = None, floating: bool = False
) -> LeastAtVisits:
    """Of all ranks, repetitions counted in.

    Parameters
    ----------
    times : array over plans, optional
        Repetitions that each leaves out of the order. Default: as many as the order does.
    floating : bool
        Weight gradients may stand elsewhere, so that nobody knows which stage's comes last.
    """
    stream, first, last = stream_of(order, visits), order.first[:-1], order.first[1:] - 1
    gathers, reduces = (np.where(beside, 0.0, each) for beside, each in
                        ((stream.ahead, stream.gather), (stream.beside, stream.reduce)))  # fmt: skip
    waits = gathers + reduces + lost_at_visits(order, visits)
    waits[first] -= gathers[first]
    moved = of_ranks(order, stream.gather + stream.reduce, times)
    if floating:
        waits[last] += visits.reduce_slows[order.stage[last]]
        longest = np.zeros_like(waits[first])
        np.maximum.at(longest, order.rank_of_stage, visits.reduce_slows)
        lost = of_ranks(order, waits, times) - longest
        return LeastAtVisits(stream.first_waits(order), lost, np.zeros_like(lost), moved)
    waits[last] -= reduces[last]
    tail = np.where(stream.beside, stream.tail, stream.reduce)[last]
    return LeastAtVisits(stream.first_waits(order), of_ranks(order, waits, times), tail, moved)


def even_visits(visits: VisitSeconds, num_visits: Number, num_chunks: Number) -> LeastAtVisits:
    """The same of the first rank, one in the middle and the last of interleaved pipelines with evenly dealt layers.

    Parameters
    ----------
    visits : VisitSeconds
        Of the first stage, one in the middle and the last.
    num_visits : array over plans
        Of every stage, there and back.
    """
    gather, slows = visits.gather.sum(axis=0), visits.gather_slows.sum(axis=0)
    waits = np.where(visits.ahead, slows, gather) + np.where(visits.beside, visits.reduce_slows, visits.reduce)
    first, last = np.array([0, 1, 1]), np.array([0, 1, 1])  # stages with which ranks begin and end

    def step(of_stages: KindPlanFloats) -> KindPlanFloats:
        outer, middle, head = of_stages[:3]
        rest = (num_chunks - 1) * middle
        return np.asarray(num_visits * np.stack([outer + rest, num_chunks * middle, rest + head]))

    once = np.where(visits.ahead, visits.gather_slows[0], visits.gather[0])[first]
    at_end = np.where(visits.beside, visits.reduce_slows, visits.reduce)[last]
    return LeastAtVisits(
        begin=(visits.gather[0] - visits.early[0])[first],
        lost=step(waits) - once - at_end,
        tail=np.where(visits.beside, visits.tail, visits.reduce)[last],
        moved=step(gather + visits.reduce),
    )


def of_ranks(order: Order, seconds: ActionPlanFloats, times: Number | None = None) -> RankPlanFloats:
    """Sums over the actions of each rank, with the repetitions that plans leave out; default: those of the order."""
    axes = [1] * (seconds.ndim - 1)
    weight = order.weight.reshape(-1, *axes)
    if times is not None and order.fold is not None:
        weight = np.ones((len(order), *axes))
        weight = weight + np.isin(np.arange(len(order)), order.fold.block(0)).reshape(-1, *axes) * times
    return np.asarray(np.add.reduceat(seconds * weight, order.first[:-1], axis=0))


def stream_of(order: Order, visits: VisitSeconds) -> Stream:
    """What an order asks of the streams, where visits to its stages, (stages) or (stages, plans), move so much."""
    found, axes = visits_of(order), [1] * (visits.reduce.ndim - 1)
    back = (order.kind != F).astype(np.int64)
    place = (back, order.stage)
    opens, closes = found.opens.reshape(-1, *axes), found.closes.reshape(-1, *axes)
    gather, reduce = visits.gather[place] * opens, visits.reduce[order.stage]
    gives_back = reduce * (opens & (back > 0).reshape(-1, *axes))
    return Stream(
        found,
        _asks(order, visits),
        gather,
        visits.early[_PASSES[order.kind], order.stage] * opens,
        reduce * closes,
        visits.tail[order.stage] * closes,
        queues=(gather > 0) | (gives_back > 0),
        ahead=visits.ahead | (gather == 0),
        beside=visits.beside,
    )


def _asks(order: Order, visits: VisitSeconds) -> tuple[tuple[Ints, Array], ...]:
    """Where the visits to come are asked for.

    A rank that waits for its reductions would wait for gathers before them too: it asks one visit ahead.
    """
    one, further = asks_of(order, 1), asks_of(order, visits.prefetched)
    if one is further:
        return ((one, np.ones_like(visits.beside)),)
    return tuple((asks, where) for asks, where in ((one, ~visits.beside), (further, visits.beside)) if where.any())


def lost_at_visits(order: Order, visits: VisitSeconds) -> ActionPlanFloats:
    """What a rank's compute loses beside its stream, of each action that opens or closes a visit.  [s]"""
    return sum(_lost(order, visits), np.zeros((len(order), *visits.reduce.shape[1:])))


def slowed_by(order: Order, visits: VisitSeconds) -> ActionPlanFloats:
    """The same put behind actions: it holds up their rank, and no message.  [s]

    What is gathered for a visit slows what is done before it.
    """
    beside_gathers, beside_reductions = _lost(order, visits)
    beside_reductions[:-1] += beside_gathers[1:]
    return beside_reductions


def _lost(order: Order, visits: VisitSeconds) -> tuple[ActionPlanFloats, ActionPlanFloats]:
    """Beside the weights of the visit that an action opens, and the gradients of that which it closes.  [s]"""
    found = visits_of(order)
    gathers, reductions = np.zeros((2, len(order), *visits.reduce.shape[1:]))
    opened, closed = np.flatnonzero(found.opens), np.flatnonzero(found.closes)
    gathers[opened] = visits.gather_slows[(order.kind[opened] != F).astype(np.int64), order.stage[opened]]
    reductions[closed] = visits.reduce_slows[order.stage[closed]]
    gathers[order.first[:-1]], reductions[order.first[1:] - 1] = 0.0, 0.0  # nothing goes on beside these
    return gathers, reductions


class Streams:
    """The streams of all ranks while an order is played, action by action or level by level.

    until : after each action, when its rank's stream is done with all that was asked for. [s]
    waited : how long the stream alone kept each action waiting, or its rank after it. [s]
    moved : (rank, pass, begin, end) of everything that is moved, where that is asked for action by action. [s]
    """

    def __init__(self, order: Order, stream: Stream, *, remember: bool = False) -> None:
        self._stream, self._remember = stream, remember
        self.moved: list[tuple[int, int, float, float]] = []
        plans = stream.gather.shape[1:]
        self._free = np.zeros((order.num_ranks, *plans))
        self._ready, self.until, self.waited = np.zeros((3, len(order), *plans))
        self._last = np.zeros(len(order), dtype=bool)
        self._last[order.first[1:] - 1] = True
        for rank, first in enumerate(order.first[:-1].tolist()):
            self._ask(rank, first, np.zeros(plans), np.True_)

    def _ask(self, rank: Any, action: Any, now: Any, where: Any) -> None:
        """Ask for the weights of the visit that an action opens, of some plans."""
        stream, free = self._stream, self._free[rank]
        asked = stream.queues[action] & stream.ahead[action] & where
        done = np.maximum(free, now) + stream.gather[action]
        self._note_move(rank, WEIGHTS, asked, np.maximum(free, now), done)
        self._free[rank] = np.where(asked, done, free)
        self._ready[action] = np.where(asked, done - stream.early[action], self._ready[action])

    def open(self, rank: Any, action: Any, idle: Any, now: Any) -> Any:
        """When an action begins that could `now`, and opens a visit, where its rank is idle from then on.  [s]"""
        stream, free = self._stream, self._free[rank]
        late = stream.queues[action] & ~stream.ahead[action]
        done = np.maximum(free, idle) + stream.gather[action]
        start = np.maximum(now, np.where(late, done, self._ready[action]))
        self._note_move(rank, WEIGHTS, late, np.maximum(free, idle), done)
        self._free[rank] = np.where(late, done, free)
        self.waited[action] = start - now
        for asks, where in stream.asks:
            for opens in asks[:, action]:
                if not np.ndim(opens):
                    if opens >= 0:
                        self._ask(rank, opens, start, where)
                elif (some := opens >= 0).any():
                    self._ask(rank[some], opens[some], start[some], where)
        return start

    def close(self, rank: Any, action: Any, start: Any, end: Any) -> Any:
        """When the rank is free again after an action that gives the last gradients of a visit.  [s]"""
        stream, free = self._stream, self._free[rank]
        seconds = stream.reduce[action]
        there = seconds > 0
        beside = np.maximum(np.maximum(free, start) + seconds, end + stream.tail[action])
        after = np.maximum(free, end) + seconds
        taken = np.where(stream.beside, beside, after)
        self._note_move(rank, GRADIENTS, there, np.maximum(free, np.where(stream.beside, start, end)), taken)
        self._free[rank] = np.where(there, taken, free)
        freed = np.where(there & ~stream.beside, after, end)
        goes_on = (
            ~self._last[action].reshape(-1, *[1] * (np.ndim(freed) - 1)) if np.ndim(action) else ~self._last[action]
        )
        self.waited[action] += np.where(goes_on, freed - end, 0.0)
        return freed

    def _note_move(self, rank: Any, what: int, there: Any, begin: Any, end: Any) -> None:
        if self._remember and there and end > begin:
            self.moved.append((rank, what, float(begin), float(end)))

    def note(self, rank: Any, action: Any) -> None:
        """Remember until when the streams are taken, after these actions."""
        self.until[action] = self._free[rank]


def moved_at_visits(order: Order, stream: Stream, start: Array, end: Array) -> list[tuple[int, int, float, float]]:
    """(rank, WEIGHTS or GRADIENTS, begin, end) of everything that is moved in a step whose actions were played.  [s]"""
    streams, visits = Streams(order, stream, remember=True), stream.visits
    for rank in range(order.num_ranks):
        idle = 0.0
        for action in range(*order.of_rank(rank).indices(len(order))):
            if visits.opens[action]:
                streams.open(rank, action, idle, start[action])
            idle = float(end[action])
            if visits.closes[action]:
                idle = float(streams.close(rank, action, start[action], end[action]))
    return streams.moved
