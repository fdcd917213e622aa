"""Schedules with one chunk a rank: GPipe, 1F1B and of sequence slices, zero bubbles, and pipelines without a flush.

With zero bubbles the weight gradient is a task of its own and fills what would be the bubble. Without a flush batch
follows batch, and gradients come late.
"""

import numpy as np

from sim.schedules.actions import B, F, I, Row, U, W, in_turns, run
from sim.schedules.registry import microbatch_remedy, schedule


@schedule("gpipe")
def gpipe(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """All forwards, then all backwards in the same order; every micro-batch's activations are in flight at once.

    Huang et al. 2019, arXiv:1811.06965, figure 2c. Bubble (p − 1)(t_F + t_B).
    """
    everything = range(num_microbatches)
    return in_turns((run(F, rank, everything), -num_microbatches), (run(B, rank, everything), 0))


@schedule("1f1b", period=lambda p, v, ahead=0: 1)
def one_f_one_b(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, ahead: int = 0) -> Row:
    """PipeDream-Flush: after a warm-up one forward, one backward in turn; at most p − rank micro-batches in flight.

    Narayanan et al. 2021, arXiv:2104.04473, figure 3; DAPPLE (Fan et al. 2021). Bubble (p − 1)(t_F + t_B), as GPipe.

    ahead : forwards that every rank runs before its backwards besides. Where all ranks share the head, the last rank's
        backward waits for theirs, and they run one forward meanwhile: p + 1 micro-batches in flight (Yeung et al. 2024,
        arXiv:2411.05288, with one barrier, which is the default of its code).
    """
    everything = range(num_microbatches)
    warmup = num_ranks - 1 - rank + ahead
    return in_turns((run(F, rank, everything), -warmup), (run(B, rank, everything), 0))


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


@schedule("zb_h1", period=lambda p, v: 1)
def zb_h1(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """1F1B with the weight gradients of later ranks put off: a third of its bubble, no more memory than its first rank.

    Qi et al. 2023, arXiv:2401.10241, section 2.1. Bubble (p − 1)(t_F + t_I − t_W); p micro-batches in flight on each
    rank.
    """
    every = range(num_microbatches)
    warmup = num_ranks - 1 - rank
    return in_turns((run(F, rank, every), -warmup), (run(I, rank, every), 0), (run(W, rank, every), rank))


@schedule("zb_h2", staggered=True, period=lambda p, v: 1)
def zb_h2(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """Warm-up filled with forwards and the rest with weight gradients: no bubble, about twice the memory of 1F1B.

    Qi et al. 2023, arXiv:2401.10241, sections 2.2 and 4: the update is validated afterwards instead of waited for, so a
    rank begins the next step as soon as it is done. Bubble (p − 1)(t_F + t_I − 2 t_W); 2p − 1 micro-batches in flight.
    """
    every = range(num_microbatches)
    warmup = 2 * (num_ranks - 1 - rank)
    return in_turns((run(F, rank, every), -warmup), (run(I, rank, every), 0), (run(W, rank, every), 2 * rank))


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
