"""A step time and a memory that no order of a plan's actions can go below, wherever its stages are.

With m micro-batches, v stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), with sends that it waits for, and the one with the embedding or the
  head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after
  a micro-batch has come through p − 1 stages before and been sent p − 1 times. None of its stages is an earlier one, as
  it would have met the micro-batch there; so after its last input gradient the same stages have theirs to do. Where
  weight gradients are no actions of their own that is after all its work: (m v + p − 1)(f + i + w). Of two pipelines
  half as many stages lie before.

Where ranks do not wait for each other between steps (`Schedule.staggered`) only the first holds. What is done once a
step (reductions, updates, weight gathers) counts as far as no backward can hide it, where there is one copy of the
model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.arrays import PlanFloats
from sim.engines.program import exposed_gather, exposed_reduction
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, even_deal, params_of
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_stages
from sim.schedules import get_schedule
from sim.schedules.actions import W
from sim.schedules.registry import is_file

FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages; the only stage of all is of the first kind."""


def least_step_s(batch: Plans, slices: int = 1) -> PlanFloats:
    """Step time that no order of any plan goes below; sequences are cut into so many slices.  [s]"""
    chosen = get_schedule(batch.schedule)
    if is_file(chosen.name) or not batch.shape[0]:  # its stages may be dealt unevenly
        return np.zeros(batch.shape)
    pp, chunks, copies = batch.pp, batch.num_chunks, chosen.copies
    deal = even_deal(batch)
    seconds = price_stages(batch, replace(deal, stage_kinds=deal.stage_kinds[:3]))
    forward, backward, inputs = seconds.forward_s, seconds.backward_s, seconds.input_grad_s
    near, far = near_and_far(batch)
    send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
    # A rank that waits for what it sends does so at each stage in one direction at least.
    whole = forward + backward + np.where(batch.overlap_p2p, 0.0, send)
    least = whole.min(axis=0)
    each, stages = batch.num_microbatches * slices / copies, chunks * copies
    ends = each * (whole + (stages - 1) * least)
    pipeline = np.where(pp * chunks == 1, ends[FIRST], np.maximum(ends[FIRST], ends[LAST]))
    if not (chosen.staggered or chosen.asynchronous):  # whose step is the time from batch to batch
        splits, before = splits_backward(batch.schedule, slices), (pp - 1) // copies
        fill, drain = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + before * send
            for part in (forward, inputs if splits else backward)
        )
        work = each * stages * np.minimum(least, whole[LAST])
        # Weight gradients on their own may all come after the last input gradient.
        later = each * stages * seconds.weight_grad_s.max(axis=0) if splits else 0.0
        pipeline = np.maximum(pipeline, np.where(before > 0, fill + np.maximum(work, work - later + drain), 0.0))
    if copies == 1 and not chosen.asynchronous:
        window = np.where(stages == 1, slices * backward.max(axis=0), np.inf)
        pipeline = pipeline + _least_after(batch, deal, window)
    return np.asarray(pipeline + batch.costs.stack.step_setup_s)


def _least_after(batch: Plans, deal: Deal, window: PlanFloats) -> PlanFloats:
    """What every rank does after its last backward, of which at most a `window` hides the reduction.  [s]"""
    once = once_a_step(batch, deal)
    beside, share = batch.overlap_grad_reduce, once.hidden_share
    reduce = exposed_reduction(once.reduce_s, np.maximum(once.reduce_tail_s, once.reduce_s - window), share, beside)
    gather = exposed_gather(once.gather_s, once.gather_s, share, batch.overlap_param_gather)
    there = deal.rank_kinds.number[:, batch.layout] > 0
    return np.asarray(np.where(there, reduce + once.optimizer_s + gather, np.inf).min(axis=0))


def least_memory(batch: Plans) -> PlanFloats:
    """Memory that the fullest GPU of every plan needs, whatever the order.  [bytes]

    It holds no fewer parameters than the mean rank, and one micro-batch on one of its stages.
    """
    chosen, model = get_schedule(batch.schedule), batch.costs.model
    if is_file(chosen.name) or not batch.shape[0]:
        return np.zeros(batch.shape)
    share = chosen.copies / batch.layouts.pp
    layers = (share * model.layers_of(kind) for kind in model.layer_kinds)
    mtps, tied = model.num_mtp_layers * share, int(model.tied_embeddings) * share
    mean = np.stack([share, share, *layers, mtps, mtps + tied])  # tables that two of them read count once
    held = params_of(mean[np.newaxis], batch.layouts)[..., batch.layout]
    of_stages = stage_bytes(batch, even_deal(batch).stage_kinds[:3])
    return np.asarray(peak_memory(batch, held, of_stages.min(axis=0)).total[0])


def splits_backward(name: str, slices: int = 1) -> bool:
    """Whether weight gradients are actions of their own under a schedule."""
    chosen = get_schedule(name)
    chunks = chosen.chunks if isinstance(chosen.chunks, int) else 1 if chosen.chunks == "one" else 2
    options = {"slices": slices} if "slices" in chosen.options else {}
    rows = [*chosen.rows(4, chunks, 8, **options), *(row for each in chosen.candidates for row in each(4, chunks, 8))]
    return any(bool((row[:, 1] == W).any()) for row in rows)
