"""How a step ends: gradient reduction, tied embedding, update, weight gather. The rule, once, for one plan or many.

Each rank reduces as soon as it is done; the update waits for all of them, because the gradient norm and the overflow
check need every gradient. Overlapped, a stage's reduction goes on beside the last backward on it and all that its rank
does afterwards, except for the last bucket and for what it takes from the kernels that it overlaps.

Ranks, or kinds of ranks, are on the first axis; plans on the others. All in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sim.arrays import Number, PlanFloats, RankPlanFloats


class StepEnd(NamedTuple):
    """What follows a pipeline.

    step : when every rank has updated its weights. [s]
    reduce, gather : what of each rank's gradient reduction and weight gather lengthens the step. [s]
    """

    step: PlanFloats
    reduce: RankPlanFloats
    gather: RankPlanFloats


def end_of_step(
    pipeline_end: RankPlanFloats,
    reduce: RankPlanFloats,
    gather: RankPlanFloats,
    update: RankPlanFloats,
    *,
    tied_embedding: Number,
    hidden_share: Number,
    overlap_reduce: Number,
    overlap_gather: Number,
    reduced_after: Callable[[], Number],
    gather_window: Callable[[], Number],
    ends: tuple[int, int] = (0, -1),
) -> StepEnd:
    """A step's end, of one plan or many.

    Parameters
    ----------
    pipeline_end : array
        When each rank's last action is done. [s]
    reduce, gather, update : arrays
        Of each rank. [s]
    tied_embedding : array over plans
        Its reduction; 0: there is none. [s]
    hidden_share, overlap_reduce, overlap_gather : arrays over plans
        As of `exposed_reduction` and `exposed_gather`.
    reduced_after, gather_window : callables
        `after` and `window` of these, asked for where something overlaps. [s]
    ends : (int, int)
        As of `step_end`.
    """
    if np.any(overlap_reduce) and reduce.any():
        reduce = exposed_reduction(reduce, reduced_after(), hidden_share, overlap_reduce)
    if np.any(overlap_gather) and gather.any():
        gather = exposed_gather(gather, gather_window(), hidden_share, overlap_gather)
    return StepEnd(step_end(pipeline_end + reduce, tied_embedding, update + gather, ends), reduce, gather)


def exposed_reduction(reduce: Number, after: Number, hidden_share: Number, overlapped: Number) -> RankPlanFloats:
    """Part of each rank's gradient reduction that lengthens the step.  [s]

    Parameters
    ----------
    after : array
        From the end of a rank's last action until its reductions are done, where backwards overlap them. [s]
    hidden_share : array over plans
        Of reductions that compute overlaps, the share of the time that is really hidden.
    overlapped : bool or array over plans
        Whether they may run beside the backward at all.
    """
    return np.asarray(reduce - overlapped * hidden_share * np.clip(reduce - after, 0.0, reduce))


def waited_reduction(
    reduce: RankPlanFloats, tail: RankPlanFloats, backward: RankPlanFloats, hidden_share: Number
) -> RankPlanFloats:
    """Part of each rank's reduction that delays its update, where only the last backward can hide the rest.  [s]

    PyTorch's DistributedDataParallel reduces buckets of gradients while the backward makes the next ones, and its
    backward ends when all are summed (Li et al. 2020, arXiv:2006.15704, section 3.2.3).

    Parameters
    ----------
    tail : array
        The last bucket, which nothing hides. [s]
    backward : array
        Of the micro-batch whose backward completes the gradients. [s]
    """
    after = np.maximum(reduce - backward, np.minimum(tail, reduce))
    return exposed_reduction(reduce, after, hidden_share, True)


def exposed_gather(gather: Number, window: Number, hidden_share: Number, overlapped: Number) -> RankPlanFloats:
    """Part of each rank's weight gather that lengthens the step.  [s]

    Parameters
    ----------
    window : array
        Forward seconds of a rank before it needs the last of its gathered weights: they arrive layer by layer during
        the first micro-batch's forward on each stage that it holds. [s]
    """
    return np.asarray(gather - overlapped * hidden_share * np.minimum(gather, window))


def step_end(
    ready_at: RankPlanFloats, tied_embedding: Number, update: RankPlanFloats, ends: tuple[int, int] = (0, -1)
) -> PlanFloats:
    """When every rank has updated its weights.  [s]

    The ranks of the first and the last stage reduce the tied embedding once both have their own gradients; all update
    once the last is ready.

    Parameters
    ----------
    ready_at : array
        When each rank's own gradients are summed. [s]
    tied_embedding : array over plans
        Its reduction; 0: there is none. [s]
    update : array
        Of each rank, with the gather that follows it. [s]
    ends : (int, int)
        Ranks that hold the embedding and the head.
    """
    first, last = ends
    tied = (np.maximum(ready_at[first], ready_at[last]) + tied_embedding) * (np.asarray(tied_embedding) > 0)
    return np.asarray(np.maximum(ready_at.max(axis=0), tied) + update.max(axis=0))


def without_flush(
    period: Number, reduce: Number, updates: Number, hidden_share: Number, overlapped: Number
) -> tuple[PlanFloats, RankPlanFloats]:
    """Batch to batch where batches follow each other: (step, exposed reduction of each rank).  [s]

    A reduction that is overlapped has until the next update but one to be done; otherwise each update's is part of the
    period. The step is as long as the pipeline takes or as the network does: t = max(compute, all-reduce) as in
    PipeDream-2BW's cost model (Narayanan et al. 2021, arXiv:2006.09503, section 3.3).
    """
    exposed = overlapped * (reduce * updates - hidden_share * np.minimum(reduce * updates, period))
    return np.asarray(period + exposed.max(axis=0)), np.asarray(exposed)
