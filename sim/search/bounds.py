"""What the step time and the memory of plans cannot go below, where no closed form describes their schedule.

`LeastSteps` and `least_memory` hold for any order of a plan's actions, wherever its stages are. With m micro-batches, v
stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), with sends that it waits for, and the one with the embedding or the
  head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after
  a micro-batch has come through p − 1 stages before and been sent p − 1 times. None of its stages is an earlier one, as
  it would have met the micro-batch there; so after its last input gradient the same stages have theirs to do. Where
  weight gradients are no actions of their own that is after all its work: (m v + p − 1)(f + i + w). Of two pipelines
  half as many stages lie before;
- the rank with stage p − 2 sends both ways at each of its stages, and begins as many stages after the first;
- of an order it is known how many micro-batches ranks and stages keep at most: new ones wait for room (`keeping`).

Where ranks do not wait for each other between steps (`Schedule.staggered`) only what a rank does itself counts. What is
done once a step (reductions, updates, weight gathers) counts as far as no backward can hide it, where there is one copy
of the model.

Of layered orders (breadth-first, modular pipelines) more is known: when ranks turn from stage to stage
(`layered_step_s`), and all that they keep (`layered_memory`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.arrays import Ints, PlanFloats
from sim.engines.order_facts import OrderFacts
from sim.engines.program import end_of_step, exposed_gather, exposed_reduction
from sim.pricing.cells import Plans
from sim.pricing.deal import Deal, even_deal, params_of
from sim.pricing.memory import peak_memory, stage_bytes
from sim.pricing.stages import near_and_far, once_a_step, price_stages, tied_reduction
from sim.pricing.zero import VisitSeconds
from sim.schedules import Order, get_schedule
from sim.schedules.actions import W
from sim.schedules.passes import most_begun, peak_in_flight
from sim.work.layers import HEAD

FIRST, MIDDLE, LAST = range(3)
"""Kinds of stages; the only stage of all is of the first kind."""


class LeastSteps:
    """What the step of plans under one schedule cannot go below, of any order and of one whose activations are known.

    step_s : in any order. [s]
    """

    def __init__(self, batch: Plans, slices: int = 1) -> None:
        self.batch, self.chosen = batch, get_schedule(batch.schedule)
        self.splits = splits_backward(batch.schedule, slices)
        deal = even_deal(batch)
        seconds = price_stages(batch, replace(deal, stage_kinds=deal.stage_kinds[:3]))
        self.forward, self.backward, self.weights = seconds.forward_s, seconds.backward_s, seconds.weight_grad_s
        self.inputs = seconds.input_grad_s if self.splits else self.backward
        near, far = near_and_far(batch)
        self.send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
        self.blocked = np.where(batch.overlap_p2p, 0.0, self.send)
        self.each = batch.num_microbatches * slices / self.chosen.copies
        self.after = np.full(batch.shape, batch.costs.stack.step_setup_s)
        if self.chosen.copies == 1:
            window = np.where(batch.num_chunks == 1, slices * self.backward.max(axis=0), np.inf)
            self.after += _least_after(batch, deal, window)
        self.step_s = np.asarray(self._pipeline() + self.after)

    def _pipeline(self) -> PlanFloats:
        """Least seconds from the first action of any rank to the last backward."""
        pp, chunks, copies, stages = self.batch.pp, self.batch.num_chunks, self.chosen.copies, self._held
        # A rank that waits for what it sends does so at each stage in one direction at least; in the middle in both.
        whole = self.forward + self.backward + self.blocked
        least = whole.min(axis=0)
        ends = self.each * (whole + (stages - 1) * least)
        pipeline = np.where(pp * chunks == 1, ends[FIRST], np.maximum(ends[FIRST], ends[LAST]))
        between = self.each * stages * (whole[MIDDLE] + self.blocked) * (pp > 2)
        if self.chosen.staggered:  # whose step is the time from batch to batch
            return np.asarray(np.maximum(pipeline, between))
        before = (pp - 1) // copies
        # A rank of one stage that begins with the last or later has the last.
        work = self.each * np.where(stages == 1, whole[LAST], stages * least)
        # Of layers of several kinds a stage has more than the mean somewhere, but perhaps before that rank.
        alike = len(self.batch.costs.model.layer_kinds) == 1
        inside = np.where(alike & (pp > 2), before - (copies == 1), 0)
        found = (self._filled(before, work), self._filled(inside, between), pipeline, between)
        return np.asarray(np.max(found, axis=0))

    def _filled(self, before: Ints, work: PlanFloats) -> PlanFloats:
        """Least seconds where a rank with some work begins after so many stages and ends before the same ones."""
        fill, back = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + before * self.send
            for part in (self.forward, self.inputs)
        )
        drain = back - self.blocked  # the rank's last send is a part of its work then
        # Weight gradients on their own may all come after the last input gradient.
        later = self.each * self._held * self.weights.max(axis=0) if self.splits else 0.0
        return np.asarray(np.where(before > 0, fill + np.maximum(work, work - later + drain), 0.0))

    @property
    def _held(self) -> Ints:
        """Stages that each rank holds."""
        return np.asarray(self.batch.num_chunks * self.chosen.copies)

    def keeping(self, plans: Ints, order: Order) -> PlanFloats:
        """Least step of plans with an order, of which only what it keeps at most is looked at.  [s]

        What a rank keeps on average is how many activations come to it, times how long they stay: until the micro-batch
        has gone on to the last stage and come back (Little 1961, doi:10.1287/opre.9.3.383). And a stage that keeps L
        micro-batches at most takes the next one when the one L before has come back.
        """
        stages, home = order.num_stages // order.copies, order.rank_of_stage
        if len(self.batch.costs.model.layer_kinds) > 1 or stages == 1:
            return np.zeros(len(plans))
        stage = np.arange(order.num_stages) % stages
        leaves = (stage < stages - 1) & (home != np.roll(home, -1))
        onward = np.cumsum(leaves[::-1].reshape(order.copies, -1), axis=1).ravel()[::-1]
        counts = np.stack([stage == 0, stages - 1 - stage - (stage == 0), 2 * onward, np.ones_like(stage)], axis=1)
        both, each = (self.forward + self.inputs)[:, plans], self.each[plans]
        least = np.minimum(both[FIRST], both[MIDDLE]) if stages > 2 else both[FIRST]
        back = counts @ np.stack([both[FIRST], least, self.send[plans], both[LAST]])
        stay = back + self.weights[:, plans].min(axis=0) * self.splits
        of_ranks = np.stack([stay[home == rank].sum(axis=0) for rank in range(order.num_ranks)])
        steady = each * (of_ranks / peak_in_flight(order)[:, np.newaxis]).max(axis=0)
        in_turn = back * np.ceil(each / most_begun(order)[:, np.newaxis])
        if not self.chosen.staggered:  # else each rank's own time counts, without what is before and after it
            in_turn += back[0] - back
        return np.asarray(np.maximum(steady, in_turn.max(axis=0)) + self.after[plans])


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


def memory_in_order(batch: Plans, order: Order, deal: Deal, floating: bool) -> PlanFloats:
    """Peak memory of the fullest rank of plans that have an order.  [bytes]

    floating : weight gradients stand elsewhere in every plan; forwards and input gradients do not.
    """
    of_stages, held = stage_bytes(batch, deal.stage_kinds), params_of(deal.rank_kinds.counts, batch.layouts)
    fullest = np.zeros(batch.shape)
    for ranks in OrderFacts(order, deal.kind_of_stage, len(deal.stage_kinds), floating).fullest(deal.kind_of_rank):
        peak = (ranks.counts.astype(float) @ of_stages).max(axis=0)
        own = held[:, ranks.kind][..., batch.layout]
        fullest = np.maximum(fullest, peak_memory(batch, own, peak, ranks.logits, ranks.versions).total)
    return fullest


def layered_step_s(batch: Plans, deal: Deal) -> PlanFloats:
    """Time that a step cannot go below, of plans with as many ranks and chunks.  [s]

    The first rank turns to its next stage when it has done all micro-batches of this one, and when the first of them
    has come round through all ranks; from its last stage the first micro-batch goes on to the model's last, which does
    all of them. The rank of that one goes back likewise, and the last micro-batch from its first stage to the model's.
    Embedding and head are counted where they stand, links between ranks at the nearest they can be. The first rank's
    backward is the last to end, and the embedding's gradients are complete only then. Where ZeRO gathers and reduces at
    visits, ranks wait for what nothing hides.
    """
    stack, kind, m = batch.costs.stack, deal.kind_of_stage, batch.num_microbatches
    ranks, stages = int(batch.pp[0]), len(kind)
    own, last = np.arange(0, stages, ranks), np.arange(stages - 1, ranks - 1, -ranks)  # of the first and the last rank
    seconds = price_stages(batch, deal, split=False)
    forward, backward, visits = seconds.forward_s[kind], seconds.backward_s[kind], seconds.visits
    begin, tail, turning, turning_back = (
        np.zeros((4, 1)) if visits is None else _moved_at_visits(visits.of_stages(kind), own, last, ranks)
    )
    near, far = near_and_far(batch)
    send = np.where(batch.layouts.all_hops_leave[batch.layout], far, near)
    sending = np.where(batch.overlap_p2p, 0.0, m * send)
    start = np.zeros((1, len(m)))  # until a micro-batch has come through the stages before, one way and the other
    down, up = (np.concatenate([start, np.cumsum(each + send, axis=0)]) for each in (forward, backward))
    there = np.maximum(m * forward[own[:-1]] + sending + turning, np.diff(down[own], axis=0)).sum(axis=0)
    back = np.maximum(m * backward[last] + sending + turning_back, up[last + 1] - up[last + 1 - ranks])
    on = down[-2] - down[own[-1]] + m * forward[-1]
    there = begin + there + on
    ended_back = m * backward[0] + back.sum(axis=0) + up[stages - own[-1]] - up[1]
    ended = there + np.maximum(ended_back + tail, m * backward[-1] + up[-2] - up[own[-1]])
    once = once_a_step(batch, deal).of_ranks(deal.kind_of_rank[:1])
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
        reduced_after=lambda: np.maximum(there + ended_back + once.reduce_tail_s, there + once.reduce_s) - ended,
        gather_window=lambda: m * forward[own[:-1]].sum(axis=0) + forward[own[-1]],
    )
    return np.asarray(end + stack.step_setup_s)


def _moved_at_visits(visits: VisitSeconds, own: Ints, last: Ints, ranks: int) -> tuple[PlanFloats, ...]:
    """Least seconds of ZeRO's gathers and reductions at visits: before the first action of the first rank, after its
    last, and lost by a rank from one visit to the next, one way and the other; these (visits, plans).

    own, last : stages of the first rank, and of that of the model's last stage.
    """
    waits = np.where(visits.ahead, 0.0, visits.gather) + visits.gather_slows
    back = np.where(visits.beside, visits.reduce_slows, visits.reduce)[last] + waits[1, last - ranks]
    tail = np.where(visits.beside, visits.tail, visits.reduce)[0]
    return visits.gather[0, 0] - visits.early[0, 0], tail, waits[0, own[1:]], back


def layered_memory(batch: Plans, deal: Deal) -> PlanFloats:
    """Peak memory of the fullest rank: breadth-first orders keep all micro-batches of all chunks.  [bytes]"""
    counts = deal.rank_kinds.counts
    peaks, logits = batch.num_microbatches * stage_bytes(batch, counts), batch.num_microbatches * counts[:, [HEAD]]
    held = params_of(counts, batch.layouts)[..., batch.layout]
    return np.asarray(peak_memory(batch, held, peaks, logits).total.max(axis=0))
