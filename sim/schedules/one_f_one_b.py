"""1F1B: one forward, one backward, at most p micro-batches in flight."""

from sim.schedules.actions import B, F, Row, in_turns, run
from sim.schedules.registry import schedule


@schedule("1f1b", period=lambda p, v: 1)
def one_f_one_b(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """PipeDream-Flush: after a warm-up one forward, one backward in turn; at most p − rank micro-batches in flight.

    Narayanan et al. 2021, arXiv:2104.04473, figure 3; DAPPLE (Fan et al. 2021). Bubble (p − 1)(t_F + t_B), as GPipe.
    """
    everything = range(num_microbatches)
    warmup = num_ranks - 1 - rank
    return in_turns((run(F, rank, everything), -warmup), (run(B, rank, everything), 0))
