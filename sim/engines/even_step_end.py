"""How much of a step's end backwards and forwards may hide in many pipelines whose layers are dealt evenly: for bounds.

The rules of `sim.engines.step_end` for the schedules of `sim.engines.even_pipelines`, from sums instead of actions.
"""

from __future__ import annotations

import numpy as np

from sim.arrays import KindPlanFloats
from sim.engines.even_pipelines import BACKWARD, FORWARD, EvenPipelines
from sim.pricing.ranks import RankSeconds


def reductions_after_end(stages: EvenPipelines, once: RankSeconds) -> KindPlanFloats:
    """Return when reductions beside backwards are done at the earliest, after the rank is: first, rank 1, last. [s]

    That of a rank's first chunk goes on beside its last backward. Those of its other chunks come before.
    """
    pipes, sends, one = stages.pipelines, stages.pipelines.sends, stages.pipelines.num_chunks == 1
    layer = once.params[1] / pipes.num_chunks  # of a chunk in the middle of the model
    last = np.where(one, stages.backward[2], stages.backward[1]) + pipes.blocking * sends.last
    occupied = stages.backward[0], stages.of_second(BACKWARD) + pipes.blocking * sends.first, last
    after = []
    for rank, backward in enumerate(occupied):
        share = layer / np.maximum(once.params[rank], 1.0)
        share = (
            share if rank else 1.0 - (pipes.num_chunks - 1) * share
        )  # the first rank's first chunk has the embedding
        own = once.reduce_s[rank] * np.where(one, 1.0, share)
        after.append(np.maximum(own - backward, np.minimum(once.reduce_tail_s[rank], own)))
    return np.stack(after)


def gather_windows(stages: EvenPipelines) -> KindPlanFloats:
    """Return forward seconds of first, middle and last rank before the last gathered weights are needed. [s]

    `sim.engines.program.gather_window` for these schedules: pp micro-batches through every chunk but the last, one
    through that.
    """
    pp, v, one = stages.pipelines.pp, stages.pipelines.num_chunks, stages.pipelines.num_chunks == 1
    first, middle, last = stages.forward[:3]
    return np.stack(
        [
            np.where(one, first, pp * (first + (v - 2) * middle) + middle),
            np.where(one, stages.of_second(FORWARD), (pp * (v - 1) + 1) * middle),
            np.where(one, last, pp * (v - 1) * middle + last),
        ]
    )
