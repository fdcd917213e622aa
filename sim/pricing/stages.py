"""Seconds of stages, put together from those of the blocks they hold; and the sends between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Floats, Ints, KindPlanFloats, Number, PlanFloats, StagePlanFloats
from sim.pricing.batch import Batch
from sim.pricing.cells import CAUSES
from sim.pricing.replicas import put_together
from sim.pricing.zero import zero_traffic
from sim.work.operations import Cause
from sim.work.stages import ModelPart


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one micro-batch on each kind of stage. [s]

    forward, backward : (kinds of stages, causes, plans); of one cause, all, where causes were not asked for.
    split : what the halves of a backward, each by itself, take more than the whole; likewise.
    weight_grad : a weight gradient by itself; (kinds of stages, plans).
    """

    forward: Floats
    backward: Floats
    split: Floats
    weight_grad: KindPlanFloats

    @property
    def input_grad(self) -> KindPlanFloats:
        """An input gradient by itself, with what is recomputed; (kinds of stages, plans). [s]"""
        return np.asarray((self.backward + self.split).sum(axis=1) - self.weight_grad)


def price_stages(
    batch: Batch,
    parts: Sequence[ModelPart],
    alone: Number,
    *,
    by_cause: bool = False,
    split: bool = True,
) -> StageSeconds:
    """Forward and backward of one micro-batch on kinds of stages.

    Parameters
    ----------
    parts : sequence of ModelPart
        What each kind of stage holds; numbers, or arrays over plans.
    alone
        As of `sim.pricing.zero.zero_traffic`.
    by_cause : bool
        Also by what they are spent on.
    split : bool
        Also the backward's halves; else these are left empty.
    """
    prices, here = batch.prices, (slice(None), slice(None), *batch.place)
    forward, backward = (each[here] for each in ((prices.forward_s, prices.backward_s) if by_cause else prices.total_s))
    passes = [forward.sum(axis=1), backward.sum(axis=1)]
    if split:
        apart = (prices.split_s if by_cause else prices.total_split_s)[here]
        weight_grad = prices.weight_grad_s[(slice(None), *batch.place)]
        passes += [passes[1] + apart.sum(axis=1) - weight_grad, weight_grad]
    traffic = zero_traffic(batch, passes, alone)
    host, data = (CAUSES.index(Cause.HOST), CAUSES.index(Cause.DATA_PARALLEL)) if by_cause else (0, 0)
    if traffic is not None:
        forward, backward = _plus(forward, data, traffic[0]), _plus(backward, data, traffic[1])
    forward, backward = put_together(parts, forward), put_together(parts, backward)
    forward[:, host] += batch.costs.forward_setup_s
    if not split:
        return StageSeconds(forward, backward, np.empty((len(forward), 1, 0)), np.empty((len(forward), 0)))
    if traffic is not None:
        apart, weight_grad = _plus(apart, data, traffic[2] + traffic[3] - traffic[1]), weight_grad + traffic[3]
    return StageSeconds(forward, backward, put_together(parts, apart), put_together(parts, weight_grad))


def _plus(seconds: Floats, cause: int, more: Floats) -> Floats:
    """Seconds (blocks, causes, plans) with more for one cause."""
    whole = np.array(
        np.broadcast_to(seconds, (*seconds.shape[:2], *np.broadcast_shapes(more.shape[1:], seconds.shape[2:])))
    )
    whole[:, cause] += more
    return whole


def sends_by_stage(batch: Batch, rank_of_stage: Ints, copies: int) -> tuple[StagePlanFloats, StagePlanFloats]:
    """Seconds of a send from each stage to the next, and to the one before; none between stages of one rank.  [s]

    Parameters
    ----------
    rank_of_stage : array
        As of an order that all plans have.
    copies : int
        Models that the stages belong to.
    """
    num_stages = len(rank_of_stage)
    near, far = near_and_far(batch)
    forward, backward = np.zeros((2, num_stages, *near.shape))
    here, there = rank_of_stage[:-1], rank_of_stage[1:]
    within = (np.arange(1, num_stages) % (num_stages // copies) != 0) & (here != there)
    if not within.any():
        return forward, backward
    kinds, of_layout = batch.layouts.kinds_of_hops
    hops, which = np.unique(of_layout[batch.layout], return_inverse=True)
    crosses = np.stack([kinds[number].cross(here, there) for number in hops], axis=1)
    forward[:-1] = np.where(crosses[:, which.ravel()], far, near) * within[:, np.newaxis]
    backward[1:] = forward[:-1]
    return forward, backward


def near_and_far(batch: Batch) -> tuple[PlanFloats, PlanFloats]:
    """Seconds of a send inside an NVLink domain, and to another; none without a pipeline.  [s]"""
    there = batch.pp > 1
    near, far = (table[batch.kind, batch.cell] * there for table in (batch.prices.near_s, batch.prices.far_s))
    return near, far
