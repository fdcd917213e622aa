"""A step time that no order of a plan's actions can go below, wherever its stages are.

With m micro-batches, v stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), the one with the embedding or the head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after
  a micro-batch has come through p − 1 stages before and been sent p − 1 times. None of its stages is an earlier one, as
  it would have met the micro-batch there; so after its last input gradient the same stages have theirs to do. Where
  weight gradients are no actions of their own that is after all its work: (m v + p − 1)(f + i + w). Of two pipelines
  half as many stages lie before.

Where ranks do not wait for each other between steps (`Schedule.staggered`) only the first holds. The once-a-step
reduction and weight gather count where nothing may hide them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.arrays import Floats, Number, PlanFloats
from sim.pricing.deal import even_deal
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.ranks import once_a_step
from sim.pricing.replicas import params_of
from sim.pricing.stages import near_and_far, price_stages
from sim.pricing.zero import VisitSeconds
from sim.schedules.registry import is_file
from sim.search.schedules.variants import Variant

FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages; the only stage of all is of the first kind."""


def least_step_s(variant: Variant) -> PlanFloats:
    """Step time that no order of any plan goes below.  [s]"""
    batch, chosen = variant.batch, variant.schedule
    if is_file(chosen.name) or not batch.shape[0]:  # its stages may be dealt unevenly
        return np.zeros(batch.shape)
    pp, chunks, copies = batch.pp, batch.num_chunks, chosen.copies
    deal = even_deal(batch)
    seconds = price_stages(batch, replace(deal, stage_kinds=deal.stage_kinds[:3], alone=variant.alone))
    forward, backward, inputs = seconds.forward_s, seconds.backward_s, seconds.input_grad_s
    waits = _waits(seconds.visits)
    whole = forward + backward
    least = whole.min(axis=0)
    each = batch.num_microbatches * variant.slices / copies
    stages = chunks * copies
    alone = pp * chunks == 1

    once = _LeastOnceAStep(variant)
    reduce = np.where(batch.overlap_grad_reduce, 0.0, once.least("reduce_s"))
    gather = np.where(batch.overlap_param_gather & (not chosen.asynchronous), 0.0, once.least("gather_s"))
    update = once.least("optimizer_s") + gather
    embedding, head = (
        each * (whole[kind] + (stages - 1) * least) + stages * waits + part
        for kind, part in ((FIRST, reduce[0]), (LAST, reduce[2]))
    )
    if chosen.asynchronous:  # a rank's update stands in its order, and nothing hides the gather
        period = np.maximum(embedding + update[0], np.where(alone, 0.0, head + update[2]))
        return np.asarray(period + batch.costs.stack.step_setup_s)
    pipeline = np.where(alone, embedding, np.maximum(embedding, head))
    if not chosen.staggered:
        before = (pp - 1) // copies
        near, far = near_and_far(batch)
        send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near) * before
        fill, drain = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + send
            for part in (forward, inputs if variant.splits else backward)
        )
        work = each * stages * np.minimum(least, whole[LAST])
        # Weight gradients on their own may all come after the last input gradient.
        later = each * stages * seconds.weight_grad_s.max(axis=0) if variant.splits else 0.0
        inner = np.maximum(work + reduce[1], work - later + drain)
        pipeline = np.maximum(pipeline, np.where(before > 0, fill + inner, 0.0))
    updated = np.maximum(update[0], np.where(pp > 2, update[1], 0.0))
    return np.asarray(pipeline + updated + batch.costs.stack.step_setup_s)


def _waits(visits: VisitSeconds | None) -> Number:
    """What a rank with several stages waits at each, whatever its order: it turns to it, there and back.  [s]"""
    if visits is None:
        return 0.0
    gathers = np.where(visits.ahead, 0.0, visits.gather.sum(axis=0))
    return (gathers + np.where(visits.beside, 0.0, visits.reduce)).min(axis=0)


def least_memory(variant: Variant) -> PlanFloats:
    """What the fullest GPU of every plan cannot do with, whatever the order: one micro-batch on one stage.  [bytes]"""
    batch, chosen = variant.batch, variant.schedule
    if is_file(chosen.name) or not batch.shape[0]:
        return np.zeros(batch.shape)
    copies, single = float(chosen.copies), batch.pp == 1
    of_stages = stage_bytes(batch, even_deal(batch).stage_kinds[:3])

    def needed(embeddings: int, heads: int, stage: int) -> PlanFloats:
        kind = variant.rank_kinds(copies, ((embeddings, heads),))
        held = params_of(kind.counts, batch.layouts)[..., batch.layout]
        return np.asarray(peak_memory(batch, held, of_stages[stage], int(stage == LAST)).total[0])

    both = needed(1, 1, FIRST)
    ends = [needed(1, 0, FIRST), needed(0, 1, LAST)]
    return np.asarray(np.where(single, both, np.maximum(*(np.minimum(each, both) for each in ends))))


class _LeastOnceAStep:
    """Least that the rank with the embedding does once a step, one without, and the rank with the head.

    Where a rank holds several stages that with the embedding may hold the head too, and so may one without.
    """

    def __init__(self, variant: Variant) -> None:
        copies = variant.schedule.copies
        kinds = variant.rank_kinds(float(copies), ((1, 0), (0, 0), (0, 1), (1, 1)))
        self._once = once_a_step(variant.batch, replace(even_deal(variant.batch), rank_kinds=kinds, copies=copies))
        self._single = variant.batch.pp == 1

    def least(self, name: str) -> Floats:
        """Seconds of one part for each of the three, (kinds, plans).  [s]"""
        first, middle, last, both = getattr(self._once, name)
        ends = (np.where(self._single, both, np.minimum(end, both)) for end in (first, last))
        of_first, of_last = ends
        return np.stack([of_first, np.minimum(middle, last), of_last])
