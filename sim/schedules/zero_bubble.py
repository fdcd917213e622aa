"""Zero bubble: the weight gradient is a task of its own and fills what would be the bubble."""

from sim.schedules.actions import F, I, Row, W, in_turns, run
from sim.schedules.registry import schedule


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
