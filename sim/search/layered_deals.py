"""How layered plans deal the layers of a model: which stages and ranks there are of every number of ranks and chunks.

Stages are dealt in turn. Of the first rank and of that of the last stage a bound wants to know what each of their
stages holds, in which rounds over all ranks; of every rank its memory what it holds altogether. What is alike is
counted, not listed: a model of one kind of layers has few kinds of rounds, however deep it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import Floats, Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.program import end_of_step
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, RankKinds, layers_before, params_of
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_stages, tied_reduction
from sim.pricing.zero import VisitSeconds
from sim.specs import ModelSpec, ParallelPlan
from sim.specs.plan import layers_of_stages
from sim.work.layers import EMBEDDING, FIRST_KIND, HEAD, num_blocks

FIRST, LAST, MIDDLE = range(3)
"""Kinds of stages: that of the embedding, that of the head, and from the third on those between."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """A micro-batch's ways from one stage of a rank to the rank's next, through all others; alike ones counted.

    often : how often there is such a round; (rounds, shapes).
    own, next : kinds of the stage that it begins with, and of the rank's next; (rounds, shapes).
    through : how many stages of each kind it goes through, the first of them its own; (rounds, kinds, shapes).
    """

    often: Ints
    own: Ints
    next: Ints
    through: Ints

    def take(self, shapes: Ints) -> Rounds:
        """The rounds of some shapes, which are the last axis."""
        return Rounds(*(getattr(self, field.name)[..., shapes] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Deals:
    """The stages and ranks of some shapes, each a number of ranks and of chunks; arrays over shapes, the last axis.

    stages : how often each kind of stage has each block, (kinds, blocks + 1, shapes) (`sim.pricing.deal`).
    there, back : rounds of the first rank forward, and of the last stage's rank backward.
    down : stages of each kind from the first rank's last one on, the model's last left out; (kinds, shapes).
    up : those from the model's second on that the last backwards come through before the first.
    end : kind of the first rank's last stage.
    before, returning : stages of each kind that the first rank holds before that one; and of them those whose weights
        it asks for only when it has gone through that one backward.
    span : ranks from that of the first stage to that of the last, both counted.
    ranks : kinds of ranks, the first rank first. fullest : places of those of which one needs most memory.
    same_ranks : the first of the shapes whose ranks hold the same.
    """

    stages: Floats
    there: Rounds
    back: Rounds
    down: Ints
    up: Ints
    end: Ints
    before: Ints
    returning: Ints
    span: Ints
    ranks: RankKinds
    fullest: tuple[int, ...]
    same_ranks: Ints


@dataclass(frozen=True, slots=True)
class _Deal:
    """One shape: kinds of its stages in turn; and how many ranks hold so much, and are the first or not."""

    there: Counter[Any]
    back: Counter[Any]
    counts: dict[str, Ints]
    end: int
    span: int
    ranks: Counter[tuple[tuple[float, ...], bool]]


@lru_cache(maxsize=4)
def deals_of(model: ModelSpec, plans: tuple[ParallelPlan, ...]) -> Deals:
    """Return what plans deal, whose ranks, chunks and schedules are those of the shapes."""
    before = layers_before(model)
    held = [np.diff(before[:, np.cumsum((0, *layers_of_stages(model.num_layers, plan)))], axis=1).T for plan in plans]
    middles = [list(dict.fromkeys(map(tuple, each[1:-1].tolist()))) for each in held]
    most = max(map(len, middles), default=0)
    padded = [each + [(0,) * len(before)] * (most - len(each)) for each in middles]
    middle = np.array(padded, dtype=np.int64).reshape(len(plans), most, len(before)).transpose(1, 2, 0)
    mtp, tied = model.num_mtp_layers, int(model.tied_embeddings)
    first, last = (np.array([each[place] for each in held], dtype=np.int64).T for place in (0, -1))
    stages = np.zeros((2 + most, num_blocks(model) + 1, len(plans)))
    stages[FIRST, EMBEDDING], stages[LAST, HEAD] = 1.0, 1.0
    stages[:, FIRST_KIND:-2] = np.stack([first, last, *middle])
    stages[LAST, -2], stages[LAST, -1] = mtp, max(0, mtp - 1) + tied * (mtp > 0)
    found = [
        _deal(plan.pp, _kinds(each, kinds), stages[..., shape])
        for shape, (plan, each, kinds) in enumerate(zip(plans, held, middles, strict=True))
    ]
    ranks = _ranks(found)
    counts = {name: np.stack([each.counts[name] for each in found], axis=1) for name in found[0].counts}
    return Deals(
        stages=stages,
        there=_rounds([each.there for each in found], len(stages)),
        back=_rounds([each.back for each in found], len(stages)),
        end=np.array([each.end for each in found]),
        span=np.array([each.span for each in found]),
        ranks=ranks,
        fullest=_fullest(ranks),
        same_ranks=_first_alike(plans, ranks),
        **counts,
    )


def _kinds(held: Ints, middles: list[tuple[int, ...]]) -> list[int]:
    """The kind of every stage in turn."""
    number = {part: MIDDLE + place for place, part in enumerate(middles)}
    return [FIRST, *(number[tuple(each)] for each in held[1:-1].tolist()), LAST]


def _deal(ranks: int, kinds: list[int], parts: Floats) -> _Deal:
    num_kinds = len(parts)

    def counted(stages: Iterable[int]) -> Ints:
        return np.bincount(np.array([kinds[stage] for stage in stages], dtype=np.int64), minlength=num_kinds)

    def rounds(begins: Sequence[int], step: int) -> Counter[Any]:
        return Counter(
            (kinds[begin], kinds[after], tuple(counted(range(begin, after, step)).tolist()))
            for begin, after in ((stage, stage + step * ranks) for stage in begins)
        )

    stages = len(kinds)
    own = range(0, stages, ranks)  # of the first rank
    span = stages - own[-1]
    held = [counted(range(rank, stages, ranks)) @ parts for rank in range(ranks)]
    return _Deal(
        there=rounds(own[:-1], 1),
        back=rounds(range(stages - 1, ranks - 1, -ranks), -1),
        counts={
            "down": counted(range(own[-1], stages - 1)),
            "up": counted(range(1, span)),
            "before": counted(own[:-1]),
            "returning": counted(own[:-2]),
        },
        end=kinds[own[-1]],
        span=span,
        ranks=Counter((tuple(counts.tolist()), rank == 0) for rank, counts in enumerate(held)),
    )


def _rounds(found: Sequence[Counter[Any]], num_kinds: int) -> Rounds:
    most = max(map(len, found), default=0)
    numbers = np.zeros((3, most, len(found)), dtype=np.int64)
    through = np.zeros((most, num_kinds, len(found)), dtype=np.int64)
    for shape, counter in enumerate(found):
        for place, ((own, following, stages), often) in enumerate(counter.items()):
            numbers[:, place, shape], through[place, :, shape] = (often, own, following), stages
    return Rounds(numbers[0], numbers[1], numbers[2], through)


def _ranks(found: Sequence[_Deal]) -> RankKinds:
    """Kinds of ranks over shapes: the first rank, that of the head, the others.

    Where the head is on the first rank, and where a shape has fewer kinds than others, one of them counts nothing.
    """
    rows = []
    for each in found:
        first = next(counts for counts, begins in each.ranks if begins)
        others = sorted(
            ((counts, number) for (counts, begins), number in each.ranks.items() if not begins),
            key=lambda item: (-item[0][HEAD], [-number for number in item[0][FIRST_KIND:-2]]),
        )
        rows.append([(first, 1), *([(first, 0)] if first[HEAD] else []), *others])
    most = max(map(len, rows), default=0)
    rows = [row + [(row[-1][0], 0)] * (most - len(row)) for row in rows]
    counts = np.array([[counts for counts, _ in row] for row in rows], dtype=float).transpose(1, 2, 0)
    numbers = np.array([[number for _, number in row] for row in rows], dtype=np.int64).T
    return RankKinds(counts, np.full((most, 1), EMBEDDING), numbers)


def _first_alike(plans: Sequence[ParallelPlan], ranks: RankKinds) -> Ints:
    """First shape like each: with as many ranks, of which as many hold the same blocks."""
    keys = [[plan.pp for plan in plans], *ranks.counts[:, :-1].reshape(-1, len(plans)), *ranks.number]
    first: dict[tuple[float, ...], int] = {}
    return np.array([first.setdefault(key, shape) for shape, key in enumerate(zip(*keys, strict=True))])


def _fullest(ranks: RankKinds) -> tuple[int, ...]:
    """Kinds of ranks that may be the fullest: the two ends, and middle kinds that no other exceeds in every shape."""

    def covered(place: int, other: int) -> bool:
        mine, others = ranks.counts[place], ranks.counts[other]
        return bool((mine[:-1] <= others[:-1]).all()) and not others[-1].any()

    middle = list(range(2, len(ranks.counts)))
    kept = [each for each in middle if not any(covered(each, other) for other in middle if other != each)]
    if not kept and middle:  # all alike
        kept = middle[:1]
    return (*range(min(2, len(ranks.counts))), *kept)


def deals_at(deals: Deals, shapes: Ints) -> Deals:
    """Return the deals of some shapes, one after the other, as many times as they are asked for."""
    names = ("stages", "down", "up", "end", "before", "returning", "span", "same_ranks")
    changed: dict[str, Any] = {name: getattr(deals, name)[..., shapes] for name in names}
    ranks = RankKinds(deals.ranks.counts[..., shapes], deals.ranks.first_block, deals.ranks.number[:, shapes])
    return replace(deals, there=deals.there.take(shapes), back=deals.back.take(shapes), ranks=ranks, **changed)


def least_step_s(batch: Plans, deals: Deals, of_layouts: Deals) -> PlanFloats:
    """Time that a step cannot go below.  [s]

    The first rank turns to its next stage when it has done all micro-batches of this one, and when the first of them
    has come round through all ranks; from its last stage the first micro-batch goes on to the model's last, which does
    all of them. The rank of that one goes back likewise, and the last micro-batch from its first stage to the model's.
    Embedding and head are counted where they stand, links between ranks at the nearest they can be. The first rank's
    backward is the last to end, and the embedding's gradients are complete only then.

    deals, of_layouts : of every plan, and of every layout of the batch; the same ranks hold the same.
    """
    stack = batch.costs.stack
    deal = Deal(deals.stages, of_layouts.ranks, span=deals.span)
    seconds = price_stages(batch, deal, split=False)
    forward, backward, moved = seconds.forward_s, seconds.backward_s, _least_at_visits(seconds.visits, deals)
    m = batch.num_microbatches
    near, far = near_and_far(batch)
    send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
    sending = np.where(batch.overlap_p2p, 0.0, m * send)

    def hops(stages: Ints, passes: KindPlanFloats) -> PlanFloats:
        return np.asarray((stages * (passes + send)).sum(axis=0))

    def around(rounds: Rounds, passes: KindPlanFloats, lost: _Lost) -> PlanFloats:
        plans, total = np.arange(len(m)), np.zeros(len(m))
        for often, begin, following, through in zip(rounds.often, rounds.own, rounds.next, rounds.through, strict=True):
            stay = m * passes[begin, plans] + sending + lost.of(begin, following, plans)
            total += often * np.maximum(stay, hops(through, passes))
        return total

    down, up = hops(deals.down, forward), hops(deals.up, backward)
    there = moved.begin + around(deals.there, forward, moved.there) + down + m * forward[LAST]
    back = m * backward[FIRST] + around(deals.back, backward, moved.back) + up
    complete = back + moved.tail
    if moved.streamed is not None:
        fetched, returned = moved.streamed
        there = np.maximum(there, fetched + down + m * forward[LAST])
        complete = np.maximum(complete, m * backward[LAST] + hops(deals.down, backward) + returned)
    ended = np.maximum(there + complete, moved.all)
    once = once_a_step(batch, deal).of_ranks(slice(0, 1))
    window = m * (deals.before * forward).sum(axis=0) + forward[deals.end, np.arange(len(m))]
    end = end_of_step(
        ended[np.newaxis],
        once.reduce_s,
        once.gather_s,
        once.optimizer_s,
        tied_embedding=tied_reduction(batch, deal),
        hidden_share=once.hidden_share,
        overlap_reduce=stack.overlap_grad_reduce,
        overlap_gather=stack.overlap_param_gather,
        # Of the first rank's reduction all but the last bucket may be over when its last backward is.
        reduced_after=lambda: np.maximum(there + back + once.reduce_tail_s, there + once.reduce_s) - ended,
        gather_window=lambda: window,
    )
    return np.asarray(end + stack.step_setup_s)


class _Lost(NamedTuple):
    """Time that a rank loses between visits to a stage and to its next, by their kinds; arrays (kinds, plans). [s]"""

    leaving: Number
    turning: Number

    def of(self, own: Ints, following: Ints, plans: Ints) -> PlanFloats:
        """Time lost between two kinds of stages, for each plan.  [s]"""
        if not np.ndim(self.leaving):
            return np.zeros(len(plans))
        return np.asarray(self.leaving[own, plans] + self.turning[following, plans])


class _AtVisits(NamedTuple):
    """What visits take at least; numbers, or arrays over plans. [s]

    begin, tail : before the first action of the first rank, and after its last.
    all : what its stream moves in a step.
    there, back : lost by a rank from one visit to the next.
    streamed : where gathers and reductions run beside compute, one after the other: until the first rank may begin its
        last stage's forward; and what is left to move, when that stage has been gone through on the way back, until its
        gradients are complete.
    """

    begin: Number
    tail: Number
    all: Number
    there: _Lost
    back: _Lost
    streamed: tuple[PlanFloats, PlanFloats] | None = None


def _least_at_visits(visits: VisitSeconds | None, deals: Deals) -> _AtVisits:
    if visits is None:
        return _AtVisits(0.0, 0.0, 0.0, _Lost(0.0, 0.0), _Lost(0.0, 0.0))
    waits = np.where(visits.ahead, 0.0, visits.gather) + visits.gather_slows
    moved = visits.gather.sum(axis=0) + visits.reduce
    reduced = np.where(visits.beside, visits.reduce_slows, visits.reduce)
    return _AtVisits(
        begin=visits.gather[0, FIRST] - visits.early[0, FIRST],
        tail=np.where(visits.beside, visits.tail, visits.reduce)[FIRST],
        all=(deals.before * moved).sum(axis=0) + moved[deals.end, np.arange(moved.shape[-1])],
        there=_Lost(np.zeros_like(reduced), waits[0]),
        back=_Lost(reduced, waits[1]),
        streamed=_streamed(visits, deals),
    )


def _streamed(visits: VisitSeconds, deals: Deals) -> tuple[PlanFloats, PlanFloats]:
    """The field `streamed` of `_AtVisits`."""
    (there, back), plans = visits.gather, np.arange(visits.reduce.shape[-1])
    fetched = (deals.before * there).sum(axis=0) + (there - visits.early[0])[deals.end, plans]
    returned = visits.tail[deals.end, plans] + (deals.before * visits.reduce + deals.returning * back).sum(axis=0)
    ahead, both = visits.ahead, visits.ahead & visits.beside
    return np.where(ahead, fetched, 0.0), np.where(both, returned, 0.0)


def memory_bytes(batch: Plans, of_layouts: Deals) -> PlanFloats:
    """Peak memory of the fullest rank: breadth-first orders keep all micro-batches of all chunks.  [bytes]"""
    ranks = of_layouts.ranks.counts[list(of_layouts.fullest)]
    of_plans = ranks[..., batch.layout]
    peaks, logits = (batch.num_microbatches * each for each in (stage_bytes(batch, of_plans), of_plans[:, HEAD]))
    held = params_of(ranks, batch.layouts)[..., batch.layout]
    return np.asarray(peak_memory(batch, held, peaks, logits).total.max(axis=0))
