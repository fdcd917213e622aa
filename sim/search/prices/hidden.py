"""How much of what data parallelism moves once a step many plans hide: the engines' rules in closed form."""

from __future__ import annotations

import numpy as np

from sim.engines.ways import NEVER
from sim.search.prices.ends import RankEnds, Stages
from sim.search.prices.facts import Facts
from sim.search.prices.held import OnceAStep

Array = np.ndarray


def reductions_after_end(stages: Stages, ends: RankEnds, rank_params: Array, once: OnceAStep) -> Array:
    """When reductions beside the backward are done, after the rank's last action: first, rank 1, last.  [s]

    `sim.engines.closed_form` over arrays. A rank's chunks between the first and the last are alike, so of those that
    are reduced before its first chunk only the outermost can set when all are done.

    Parameters
    ----------
    rank_params : array over first, middle and last rank, and rows
    """
    pipes, sends = stages.pipelines, stages.pipelines.sends
    _, b, b_last = stages.backward
    rest, one = pipes.num_chunks - 1, ~pipes.interleaved  # chunks but the first; whether there are none
    ring = pipes.pp * b + sends.total + sends.wrap  # from a chunk of a rank to the one before it
    layer = rank_params[1] / pipes.num_chunks  # of a chunk in the middle of the model
    of_last = np.where(one, b_last, b) + pipes.blocking * sends.last
    after = []
    for rank, occupied in enumerate((stages.backward[0], b + pipes.blocking * sends.first, of_last)):
        middle = layer / np.maximum(rank_params[rank], 1.0)
        outer = 1.0 - rest * middle  # of the chunk with embedding or head
        own, inner = (once.reduce[rank] * share for share in (np.where(one, 1.0, middle if rank else outer), middle))
        end = np.maximum(own - occupied, np.minimum(once.tail[rank], own))
        more = inner - ring  # by which each chunk more that waits for the next delays the end
        many = np.where(one, NEVER, own - occupied + np.maximum(more, rest * more))
        if rank == 2:
            farthest = once.reduce[rank] * outer + rest * more - occupied - (b_last - b)
            inside = own - occupied + np.maximum(more, (rest - 1) * more)
            many = np.maximum(np.where(one, NEVER, farthest), np.where(rest > 1, inside, NEVER))
        after.append(np.maximum(end, ends.turned_after[rank] + many))
    return np.stack(after)


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
