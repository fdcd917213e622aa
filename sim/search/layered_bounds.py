"""What a layered plan takes at least: a bound of its step time, and the memory of its fullest rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.arrays import Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.step_end import end_of_step
from sim.pricing.deal import Deal
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.plans import Plans
from sim.pricing.ranks import once_a_step, tied_reduction
from sim.pricing.replicas import params_of
from sim.pricing.stages import near_and_far, price_stages
from sim.pricing.zero import VisitSeconds
from sim.search.layered_deals import FIRST, LAST, Deals, Rounds
from sim.work.stages import HEAD


def least_step_s(batch: Plans, deals: Deals, of_layouts: Deals) -> PlanFloats:
    """Time that a step cannot go below.  [s]

    The first rank turns to its next stage when it has done all micro-batches of this one, and when the first of them
    has come round through all ranks; from its last stage the first micro-batch goes on to the model's last, which does
    all of them. The rank of that one goes back likewise, and the last micro-batch from its first stage to the model's.
    Embedding and head are counted where they stand, links between ranks at the nearest they can be. The first rank's
    backward is the last to end, and the embedding's gradients are complete only then.

    Parameters
    ----------
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
    once = once_a_step(batch, deal).of_kinds(slice(0, 1))
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
    return np.asarray(end.step + stack.step_setup_s)


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
