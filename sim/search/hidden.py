"""How much of what data parallelism moves once a step many plans hide: the engines' rules in closed form."""

from __future__ import annotations

import numpy as np

from sim.search.facts import Facts
from sim.search.held import OnceAStep
from sim.search.sends import Sends

Array = np.ndarray


def reduction_after_end(
    facts: Facts, rank_params: Array, backward: Array, once: OnceAStep, sends: Sends, blocking: bool
) -> Array:
    """When reductions beside the backward are done, after the rank's last action: first, two middle kinds, last.  [s]

    `sim.engines.timeline.reductions` in closed form. A rank ends with pp backwards on each of its chunks, the last
    chunk's first. Each reduction begins when the last backward on its chunk does and the reductions before it are done,
    and ends at least one bucket after that backward; so the last one ends at the latest of what any chunk alone would
    lead to, and as chunks between the first and the last are alike, only the outermost of them can set it.

    Parameters
    ----------
    rank_params : array over first, middle and last rank, and rows
    backward : array over stages, ways to recompute and rows
        As `sim.search.stages.stage_seconds` gives it. [s]
    """
    columns = facts.columns
    layer = rank_params[1] / columns.num_chunks  # of a chunk in the middle of the model
    one = columns.num_chunks == 1
    none: Array = np.zeros(len(columns))
    near, far, wrap, before = sends.back_near, sends.back_far, sends.back_wrap, sends.back_last
    after = []
    for rank, chunk_sends in ((0, (none, wrap, wrap)), (1, (near,) * 3), (1, (far,) * 3), (2, (before,) * 3)):
        # The chunk that a rank holds first, those between, and the last, by backward seconds and by parameters.
        stages = ((0, 1, 1), (1, 1, 1), (1, 1, 2))[rank]
        occupied = [backward[stage] + blocking * each for stage, each in zip(stages, chunk_sends, strict=True)]
        occupied[0] = np.where(one, backward[rank] + blocking * chunk_sends[0], occupied[0])
        middle = layer / np.maximum(rank_params[rank], 1.0)
        outer = 1.0 - (columns.num_chunks - 1) * middle  # of the chunk with embedding or head
        shares = [outer if stage != 1 else middle for stage in stages]
        shares[0] = np.where(one, 1.0, shares[0])
        durations = [once.reduce[rank] * share for share in shares]
        after.append(_latest(columns.pp, columns.num_chunks, occupied, durations, once.tail[rank]))
    return np.stack(after)


def _latest(pp: Array, chunks: Array, occupied: list[Array], durations: list[Array], tail: Array) -> Array:
    """End of a rank's reductions after its last action, from its first, middle and last chunk.  [s]"""
    own = [
        np.maximum(each - busy, np.minimum(tail, each)) for busy, each in zip(occupied, durations, strict=True)
    ]  # the end if from this chunk on nothing waits
    first: Array = own[0]
    if (chunks == 1).all():
        return first
    whole, rest = pp * occupied[0], np.maximum(chunks - 2, 0)
    of_last = own[2] - whole - rest * pp * occupied[1] + durations[0] + rest * durations[1]
    # Of those between only the outermost count: with each one more the end moves on by the same.
    of_first = own[1] - whole + durations[0]
    inner = np.maximum(chunks - 3, 0)
    of_middle = of_first + np.maximum(0.0, inner * (durations[1] - pp * occupied[1]))
    rest_of_chunks = np.maximum(np.where(chunks > 1, of_last, -np.inf), np.where(chunks > 2, of_middle, -np.inf))
    latest: Array = np.maximum(first, rest_of_chunks)
    return latest


def gather_windows(facts: Facts, forward: Array) -> Array:
    """Forward seconds of first, middle and last rank before the last gathered weights are needed.  [s]

    `sim.engines.timeline.gather_window` for these schedules: pp micro-batches through every chunk but the last, one
    through that.
    """
    pp, v = facts.columns.pp, facts.columns.num_chunks
    one = v == 1
    first, middle, last = forward
    return np.stack(
        [
            np.where(one, first, pp * (first + (v - 2) * middle) + middle),
            np.where(one, middle, (pp * (v - 1) + 1) * middle),
            np.where(one, last, pp * (v - 1) * middle + last),
        ]
    )
