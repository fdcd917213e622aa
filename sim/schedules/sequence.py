"""Seq1F1B: each sequence goes through the pipeline in slices."""

import numpy as np

from sim.schedules.actions import B, F, Row, in_turns, run
from sim.schedules.registry import schedule


@schedule("seq1f1b", period=lambda p, v, slices=1: 1)
def seq1f1b(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, slices: int = 1) -> Row:
    """1F1B of sequence slices, k to a micro-batch: backwards take a micro-batch's slices from the last to the first.

    Sun et al. 2024, arXiv:2406.03488, section 3. Slices are cut so that they cost the same under a causal mask. Bubble
    (p − 1)(t_F + t_B)/k; (p + k − 1)/k micro-batches in flight. Slice c of micro-batch j is number j k + c.
    """
    forwards = np.arange(num_microbatches * slices)
    backwards = forwards.reshape(num_microbatches, slices)[:, ::-1].ravel()
    warmup = num_ranks - 1 - rank + slices - 1
    return in_turns((run(F, rank, forwards), -warmup), (run(B, rank, backwards), 0))
