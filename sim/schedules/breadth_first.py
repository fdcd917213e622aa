"""Looped breadth-first: every micro-batch goes through a chunk before the next chunk is begun."""

import numpy as np

from sim.schedules.actions import B, F, Row, in_turns, run
from sim.schedules.registry import schedule


@schedule("breadth_first", chunks="many")
def breadth_first(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """All micro-batches through one chunk, then the next; weights are gathered and gradients reduced once a chunk.

    Lamy-Poirier 2022, arXiv:2211.05953, section 4. Bubble (p − 1)(t_F + t_B)/v when there are at least p
    micro-batches; each chunk keeps all of them in flight.
    """
    return breadth_first_row(rank, num_ranks, num_ranks * num_chunks, num_microbatches)


def breadth_first_row(rank: int, num_ranks: int, num_stages: int, num_microbatches: int) -> Row:
    """A rank's actions: chunk by chunk, and back; backwards begin with the last micro-batch, as PyTorch's do."""
    chunks = np.arange(rank, num_stages, num_ranks)
    stages, numbers = chunks.repeat(num_microbatches), np.tile(np.arange(num_microbatches), len(chunks))
    return in_turns((run(F, stages, numbers), -len(numbers)), (run(B, stages[::-1], numbers[::-1]), 0))


@schedule("modular", chunks="many")
def modular(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, stages: int | None = None) -> Row:
    """Layered gradient accumulation on a modular pipeline: rank i holds layers i, i + p, …; breadth-first by layer.

    Lamy-Poirier 2021, arXiv:2106.02679: every micro-batch finishes a layer before any begins the next, so a layer's
    weights are gathered twice and its gradients reduced once a step, beside the whole backward. Breadth-first order
    with one layer a chunk; on one rank layered accumulation without a pipeline. Bubble p (p − 1)/(m n) of the compute
    for n layers; where p does not divide them the last round is incomplete, and with at least p micro-batches the step
    takes m ⌈n/p⌉ + (n − 1) mod p layers there and back.
    """
    num_stages = num_ranks * num_chunks if stages is None else stages
    return breadth_first_row(rank, num_ranks, num_stages, num_microbatches)
