"""GPipe: all forwards, then all backwards."""

from sim.schedules.actions import B, F, Row, in_turns, run
from sim.schedules.registry import schedule


@schedule("gpipe")
def gpipe(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """All forwards, then all backwards in the same order; every micro-batch's activations are in flight at once.

    Huang et al. 2019, arXiv:1811.06965, figure 2c. Bubble (p − 1)(t_F + t_B).
    """
    everything = range(num_microbatches)
    return in_turns((run(F, rank, everything), -num_microbatches), (run(B, rank, everything), 0))
