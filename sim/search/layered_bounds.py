"""What a layered plan takes at least: a bound of its step time, and the memory of its fullest rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sim.arrays import Bools, Ints, KindPlanFloats, Number, PlanFloats
from sim.engines.step_end import end_of_step
from sim.pricing.batch import Batch
from sim.pricing.deal import dealt_ranks, dealt_stages
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.ranks import RankKind, once_a_step, tied_reduction
from sim.pricing.replicas import params_of
from sim.pricing.stages import near_and_far, price_stages
from sim.pricing.visits import VisitSeconds, price_visits
from sim.work.stages import ModelPart

FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages, as they are dealt."""


def _ranks(batch: Batch) -> tuple[RankKind, ...]:
    """The first, a middle and the last rank of every layout; embedding and head never share a stage."""
    kinds = dealt_ranks(batch)
    return tuple(replace(kind, part=replace(kind.part, shared_tables=0)) for kind in kinds)


def least_step_s(batch: Batch) -> PlanFloats:
    """Time that a step cannot go below.  [s]

    A rank turns to its next chunk when it has done all micro-batches of this one, and when the first of them has come
    round through all ranks; then the last chunk fills and drains the pipeline once. Embedding and head are counted
    where they stand, links between ranks at the nearest they can be. The first rank's backward is the last to end, and
    the embedding's gradients are complete only then.
    """
    costs, stack = batch.costs, batch.costs.stack
    parts = dealt_stages(batch)
    seconds = price_stages(batch, parts, False)
    passes = (seconds.forward[:, 0], seconds.backward[:, 0])
    (first_f, forward, last_f), (first_b, backward, last_b) = passes
    moved = _least_at_visits(price_visits(batch, parts, (*passes, passes[1]), False))
    m, v, pp = batch.num_microbatches, batch.num_chunks, batch.pp
    near, far = near_and_far(batch)
    width = (batch.layouts.tp * batch.layouts.data.size)[batch.layout]
    send = np.where(width >= costs.cluster.nvlink_domain_gpus, far, near)
    hop_f, hop_b = forward + send, backward + send
    sending = 0.0 if stack.overlap_p2p else m * send
    own_f, own_b = (sending + lost for lost in moved.lost)
    round_f = np.maximum(m * forward + own_f, pp * hop_f)
    round_b = np.maximum(m * backward + own_b, pp * hop_b)
    there = moved.begin + np.maximum(m * first_f + own_f, round_f) + (v - 2) * round_f + (pp - 1) * hop_f + m * last_f
    back = np.maximum(m * last_b + own_b, round_b) + (v - 2) * round_b + (pp - 1) * hop_b + m * first_b + moved.tail
    if moved.stream is not None:
        fetched, returned = moved.stream.least(v, pp == 1)
        there = np.maximum(there, fetched + (pp - 1) * hop_f + m * last_f)
        back = np.maximum(back, m * last_b + (pp - 1) * hop_b + returned)
    once = once_a_step(batch, _ranks(batch)).take(slice(0, 1))
    window = (v - 1) * m * forward + m * (first_f - forward) + forward + (last_f - forward) * (pp == 1)
    end = end_of_step(
        (there + back)[np.newaxis],
        once.reduce,
        once.gather,
        once.update,
        tied_embedding=tied_reduction(batch),
        hidden_share=once.hidden_share,
        overlap_reduce=stack.overlap_grad_reduce,
        overlap_gather=stack.overlap_param_gather,
        # Of the first rank's reduction all but the last bucket may be over when its backward is.
        reduced_after=lambda: once.reduce - np.minimum(once.reduce - once.tail, back),
        gather_window=lambda: window,
    )
    return np.asarray(end.step + stack.step_setup_s)


class _AtVisits(NamedTuple):
    """What visits take at least: (there, back) or a number, arrays over plans. [s]

    begin, tail : before the first action of the first rank, and after its last.
    lost : by a rank from one visit to the next, at stages in the middle.
    stream : where gathers and reductions run beside compute, one after the other.
    """

    begin: Number
    tail: Number
    lost: tuple[Number, Number]
    stream: _Stream | None = None


@dataclass(frozen=True, slots=True)
class _Stream:
    """Gathers and reductions of a rank where all of them run beside compute."""

    visits: VisitSeconds

    def least(self, chunks: Ints, alone: Bools) -> tuple[PlanFloats, PlanFloats]:
        """Until the first rank may begin its last chunk's forward; and what is left to move, when the first of its
        chunks has been gone through on the way back, until its gradients are complete.  [s]

        One visit's gather is begun ahead.
        """
        (there, back), reduce, tail = self.visits.gather, self.visits.reduce, self.visits.tail
        end, between = np.where(alone, LAST, MIDDLE), np.maximum(chunks - 2, 0)
        plans, several = np.arange(len(end)), chunks > 1

        def of_end(seconds: KindPlanFloats) -> PlanFloats:
            return np.broadcast_to(seconds, (3, len(end)))[end, plans]

        fetched = there[FIRST] + between * there[MIDDLE] + of_end(there - self.visits.early[0])
        returned = of_end(tail) + between * (reduce[MIDDLE] + back[MIDDLE]) + reduce[FIRST]
        ahead, beside = self.visits.ahead, self.visits.beside
        fetched, returned = np.where(several & ahead, fetched, 0.0), np.where(several & ahead & beside, returned, 0.0)
        return fetched, returned


def _least_at_visits(visits: VisitSeconds | None) -> _AtVisits:
    if visits is None:
        return _AtVisits(0.0, 0.0, (0.0, 0.0))
    gather, slows = visits.gather[:, 1], visits.gather_slows[:, 1]
    waits = np.where(visits.ahead, 0.0, gather)
    reduced = np.where(visits.beside, visits.reduce_slows, visits.reduce).min(axis=0)
    there, back = waits + slows
    return _AtVisits(
        begin=visits.gather[0, 0] - visits.early[0, 0],
        tail=np.where(visits.beside, visits.tail, visits.reduce)[0],
        lost=(there, back + reduced),
        stream=_Stream(visits),
    )


def memory_bytes(batch: Batch) -> PlanFloats:
    """Peak memory of the fullest rank: breadth-first orders keep all micro-batches of all chunks.  [bytes]"""
    kinds = _ranks(batch)
    parts = [_of_plans(kind.part, batch) for kind in kinds]
    peaks = batch.num_microbatches * stage_bytes(batch, parts)
    logits = batch.num_microbatches * np.stack([batch.pp == 1, 0 * batch.pp, 1 + 0 * batch.pp])
    held = params_of([kind.part for kind in kinds], batch.costs, batch.layouts).take(batch.layout)
    return np.asarray(peak_memory(batch, held, peaks, logits).total.max(axis=0))


def _of_plans(part: ModelPart, batch: Batch) -> ModelPart:
    """A part that every layout has, of every plan."""
    return part.each(lambda number: number[batch.layout] if np.ndim(number) else number)
