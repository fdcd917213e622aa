"""How much of a step's end backwards and forwards may hide in many pipelines whose layers are dealt evenly.

The rules of `sim.engines.step_end` for orders that the closed form knows, from sums instead of actions.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import KindPlanFloats
from sim.engines.critical_paths import NEVER
from sim.engines.even_pipelines import EvenPipelines, RankEnds
from sim.pricing.ranks import RankSeconds


def reductions_after_end(stages: EvenPipelines, ends: RankEnds, once: RankSeconds) -> KindPlanFloats:
    """When reductions that the backward overlaps are done, after the rank is: first, rank 1, last.  [s]

    `sim.engines.closed_form` over arrays. A rank's chunks between the first and the last are alike, so of those that
    are reduced before its first chunk only the outermost can set when all are done.
    """
    pipes, sends = stages.pipelines, stages.pipelines.sends
    b, b_last = stages.backward[1:3]
    rest, one = pipes.num_chunks - 1, ~pipes.interleaved  # chunks but the first; whether there are none
    ring = pipes.pp * b + sends.total + sends.wrap  # from a chunk of a rank to the one before it
    layer = once.params[1] / pipes.num_chunks  # of a chunk in the middle of the model
    of_last = np.where(one, b_last, b) + pipes.blocking * sends.last
    after = []
    for rank, occupied in enumerate((stages.backward[0], stages.second[1] + pipes.blocking * sends.first, of_last)):
        middle = layer / np.maximum(once.params[rank], 1.0)
        outer = 1.0 - rest * middle  # of the chunk with embedding or head
        own, inner = (once.reduce_s[rank] * share for share in (np.where(one, 1.0, middle if rank else outer), middle))
        end = np.maximum(own - occupied, np.minimum(once.reduce_tail_s[rank], own))
        more = inner - ring  # by which each chunk more that waits for the next delays the end
        many = np.where(one, NEVER, own - occupied + np.maximum(more, rest * more))
        if rank == 2:
            farthest = once.reduce_s[rank] * outer + rest * more - occupied - (b_last - b)
            inside = own - occupied + np.maximum(more, (rest - 1) * more)
            many = np.maximum(np.where(one, NEVER, farthest), np.where(rest > 1, inside, NEVER))
        after.append(np.maximum(end, ends.turned_after[rank] + many))
    return np.stack(after)


def gather_windows(stages: EvenPipelines) -> KindPlanFloats:
    """Forward seconds of first, middle and last rank before the last gathered weights are needed.  [s]

    `sim.engines.timeline.gather_window` for these schedules: pp micro-batches through every chunk but the last, one
    through that.
    """
    pipes = stages.pipelines
    pp, v, one = pipes.pp, pipes.num_chunks, ~pipes.interleaved
    first, middle, last = stages.forward[:3]
    return np.stack(
        [
            np.where(one, first, pp * (first + (v - 2) * middle) + middle),
            np.where(one, stages.second[0], (pp * (v - 1) + 1) * middle),
            np.where(one, last, pp * (v - 1) * middle + last),
        ]
    )
