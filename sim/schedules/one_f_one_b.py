"""1F1B: one forward, one backward, at most p micro-batches alive."""

from collections.abc import Iterator

from sim.schedules.actions import Action, Kind
from sim.schedules.registry import schedule


@schedule("1f1b")
def one_f_one_b(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[Action]:
    """PipeDream-Flush: after a short warm-up one forward, one backward in turn; at most p − rank micro-batches alive.

    Narayanan et al. 2021, arXiv:2104.04473, figure 3; DAPPLE (Fan et al. 2021). Bubble (p − 1)(t_F + t_B), as GPipe.
    """
    warmup = min(num_ranks - 1 - rank, num_microbatches)
    for microbatch in range(warmup):
        yield Action(rank, Kind.F, microbatch)
    for microbatch in range(warmup, num_microbatches):
        yield Action(rank, Kind.F, microbatch)
        yield Action(rank, Kind.B, microbatch - warmup)
    for microbatch in range(num_microbatches - warmup, num_microbatches):
        yield Action(rank, Kind.B, microbatch)
