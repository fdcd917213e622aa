"""A step time that no order of a plan's actions can go below, wherever its stages are.

Schedules such as ZB-V, V-Half and V-Min place weight gradients by what things take: every plan has an order of its
own, but forwards and input gradients come in the same turn in all of them, and no rank ever keeps more than in the
order they begin from (`sim.schedules.passes.place_weight_gradients`). So before the (n + 1)-th forward of a rank that
keeps at most k, n + 1 − k weight gradients have been done; and none before its input gradient. Between any action a
and a later one b of a rank lie therefore, besides what else it does there, at least as many weight gradients as are
due before b less those that can have been done before a.

With m micro-batches, v stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), the one with the embedding or the head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after
  a micro-batch has come through p − 1 stages before and been sent p − 1 times. None of its stages is an earlier one, as
  it would have met the micro-batch there; so after its last input gradient the same stages have theirs to do. Where
  weight gradients are no actions of their own that is after all its work: (m v + p − 1)(f + i + w). Of two pipelines
  half as many stages lie before.

Where ranks do not wait for each other between steps (`Schedule.staggered`) only the first holds. What is done once a
step (reductions, updates, weight gathers) is counted when a plan's order is looked at, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.arrays import Array, PlanFloats
from sim.pricing.cells import Plans
from sim.pricing.deal import even_deal, params_of
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, price_stages
from sim.schedules import Order, get_schedule
from sim.schedules.actions import F, I, W
from sim.schedules.order import by_levels
from sim.schedules.passes import peak_in_flight
from sim.schedules.registry import is_file


@dataclass(frozen=True, slots=True)
class Fixed:
    """What all plans' orders have in common, where weight gradients float.

    Arrays over forwards and input gradients, level by level: those of a level, at most one a rank, need none of it.

    action : index in the order.
    levels : where each level ends.
    previous, needs : as of Order, counted among these; what is not needed stands last.
    inputs : input gradients before it on its rank: so many weight gradients can have been done.
    due : weight gradients that must have been done, so that no forward keeps more than the order ever does.
    """

    action: Array
    levels: Array
    previous: Array
    needs: Array
    inputs: Array
    due: Array


def fixed_of(order: Order) -> Fixed:
    """The fixed part of a validated order."""
    forward, moves = order.kind == F, order.kind != W
    place = np.flatnonzero(moves)
    number = np.full(len(order) + 1, len(place))
    number[place] = np.arange(len(place))
    first = np.searchsorted(place, order.first)
    needs = number[order.needs[place]]
    sequence, levels = by_levels(np.where(needs == len(place), -1, needs), np.full(len(place), -1), first)
    assert len(sequence) == len(place), "the order is valid"
    begin = np.zeros(len(place), dtype=bool)
    begin[first[:-1]] = True
    previous = np.where(begin, len(place), np.arange(len(place)) - 1)
    rank = order.rank[place]
    before = np.cumsum(forward[place]) - forward[place]
    forwards = before - before[first[:-1]][rank]
    inputs = np.arange(len(place)) - first[:-1][rank] - forwards
    due = np.clip(forwards + 1 - peak_in_flight(order).astype(np.int64)[rank], 0, inputs) * forward[place]
    back = np.empty(len(place) + 1, dtype=np.int64)
    back[sequence], back[-1] = np.arange(len(place)), len(place)
    return Fixed(place[sequence], levels, back[previous[sequence]], back[needs[sequence]], inputs[sequence],
                  due[sequence])  # fmt: skip


def play(fixed: Fixed, order: Order, occupy: Array, release: Array, weights: Array) -> tuple[Array, Array]:
    """Earliest start of every forward and input gradient, and earliest time at which every rank is done with its weight
    gradients too. Starts of other actions stay 0.  [s]

    The recurrence of the exact engine with one more term: s_b ≥ max over a of s_a + work between + what is due between.

    occupy, release : arrays over actions and plans, as of Program. [s]
    weights : weight gradient of every stage. [s]
    """
    lightest = np.full((order.num_ranks, weights.shape[1]), np.inf)
    np.minimum.at(lightest, order.rank_of_stage, weights)
    action, rank_of = fixed.action, order.rank[fixed.action]
    # Of every rank: its work so far and what weight gradients can have been done; the largest start less these.
    work, weighed = np.zeros((2, *lightest.shape))
    behind, behind_all = np.full((2, *lightest.shape), -np.inf)
    free, arrived = np.zeros((2, len(action) + 1, weights.shape[1]))
    start = np.zeros(occupy.shape)
    abroad = (order.abroad(order.needs)[action] >= 0)[:, np.newaxis]
    inputs = (order.kind[action] == I)[:, np.newaxis]
    begin = 0
    for end in fixed.levels.tolist():
        here = slice(begin, end)
        at, rank = action[here], rank_of[here]
        need = np.where(abroad[here], arrived[fixed.needs[here]], 0.0)
        due = work[rank] + fixed.due[here, np.newaxis] * lightest[rank] + behind[rank]
        now = np.maximum(np.maximum(free[fixed.previous[here]], need), due)
        idle = now - work[rank]
        behind[rank] = np.maximum(behind[rank], idle - fixed.inputs[here, np.newaxis] * lightest[rank])
        behind_all[rank] = np.maximum(behind_all[rank], idle - weighed[rank])
        start[at] = now
        free[here], arrived[here] = now + occupy[at], now + release[at]
        work[rank] += occupy[at]
        weighed[rank] += inputs[here] * weights[order.stage[at]]
        begin = end
    return start, work + weighed + behind_all


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
    whole = forward + backward
    least = whole.min(axis=0)
    each, stages = batch.num_microbatches * slices / copies, chunks * copies
    ends = each * (whole + (stages - 1) * least)
    pipeline = np.where(pp * chunks == 1, ends[FIRST], np.maximum(ends[FIRST], ends[LAST]))
    if not (chosen.staggered or chosen.asynchronous):  # whose step is the time from batch to batch
        splits, before = splits_backward(batch.schedule, slices), (pp - 1) // copies
        near, far = near_and_far(batch)
        send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near) * before
        fill, drain = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + send
            for part in (forward, inputs if splits else backward)
        )
        work = each * stages * np.minimum(least, whole[LAST])
        # Weight gradients on their own may all come after the last input gradient.
        later = each * stages * seconds.weight_grad_s.max(axis=0) if splits else 0.0
        pipeline = np.maximum(pipeline, np.where(before > 0, fill + np.maximum(work, work - later + drain), 0.0))
    return np.asarray(pipeline + batch.costs.stack.step_setup_s)


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
