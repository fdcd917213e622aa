"""GPipe: all forwards, then all backwards."""

from collections.abc import Iterator

from sim.schedules.actions import Action, Kind
from sim.schedules.registry import schedule


@schedule("gpipe")
def gpipe(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[Action]:
    """All forwards, then all backwards in the same order; every micro-batch's activations are alive at once.

    Huang et al. 2019, arXiv:1811.06965, figure 2c. Bubble (p − 1)(t_F + t_B).
    """
    for microbatch in range(num_microbatches):
        yield Action(rank, Kind.F, microbatch)
    for microbatch in range(num_microbatches):
        yield Action(rank, Kind.B, microbatch)
