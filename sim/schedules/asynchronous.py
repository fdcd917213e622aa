"""Pipelines without a flush: batch follows batch, and gradients come late."""

import numpy as np

from sim.schedules.actions import B, F, Row, U, in_turns, run
from sim.schedules.registry import microbatch_remedy, schedule


def _enough(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_microbatches < num_ranks:
        return (
            f"a batch needs at least as many micro-batches as ranks, or two versions are too few: {num_microbatches} "
            f"on {num_ranks}; lower plan.pp, or {microbatch_remedy(num_ranks)}"
        )
    return None


def _stream(rank: int, num_ranks: int, total: int, updates: np.ndarray) -> Row:
    """1F1B without end, with weight updates after the backwards of these micro-batches."""
    everything = range(total)
    warmup = num_ranks - 1 - rank
    return in_turns(
        (run(F, rank, everything), -warmup), (run(B, rank, everything), 0), (run(U, rank, updates), updates)
    )


@schedule("pipedream", asynchronous=True)
def pipedream(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, batches: int = 1) -> Row:
    """1F1B without flush and an update after every micro-batch; rank r keeps p − r versions of its weights.

    Narayanan et al. 2019 (SOSP), arXiv:1806.03377, sections 3.2 and 3.3, with weight stashing. No bubble; a gradient of
    rank r is p − 1 − r updates late.
    """
    total = num_microbatches * batches
    return _stream(rank, num_ranks, total, np.arange(total))


@schedule("pipedream_2bw", asynchronous=True, delay=1, requirement=_enough)
def pipedream_2bw(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, batches: int = 1) -> Row:
    """1F1B without flush, an update a batch, two versions of the weights; every gradient is one update late.

    Narayanan et al. 2021, arXiv:2006.09503, section 3.1: a batch begins with the version before the newest, so that no
    micro-batch has to wait; at least as many micro-batches as ranks. No bubble.
    """
    total = num_microbatches * batches
    return _stream(rank, num_ranks, total, np.arange(num_microbatches - 1, total, num_microbatches))
