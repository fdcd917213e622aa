"""Zero bubble: the weight gradient is a task of its own and fills what would be the bubble."""

from collections.abc import Iterator

from sim.schedules.actions import Action, Kind
from sim.schedules.registry import schedule


def _split(rank: int, warmup: int, delay: int, num_microbatches: int) -> Iterator[Action]:
    """Warm-up forwards; then input gradient, weight gradient of `delay` micro-batches before, next forward."""
    warmup = min(warmup, num_microbatches)
    for microbatch in range(warmup):
        yield Action(rank, Kind.F, microbatch)
    for microbatch in range(num_microbatches):
        yield Action(rank, Kind.I, microbatch)
        if microbatch >= delay:
            yield Action(rank, Kind.W, microbatch - delay)
        if warmup + microbatch < num_microbatches:
            yield Action(rank, Kind.F, warmup + microbatch)
    for microbatch in range(max(0, num_microbatches - delay), num_microbatches):
        yield Action(rank, Kind.W, microbatch)


@schedule("zb_h1")
def zb_h1(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[Action]:
    """1F1B with the weight gradients of later ranks put off: a third of its bubble, no more memory than its first rank.

    Qi et al. 2023, arXiv:2401.10241, section 2.1. Bubble (p − 1)(t_F + t_I − t_W); p micro-batches alive on every rank.
    """
    return _split(rank, num_ranks - rank, rank, num_microbatches)


@schedule("zb_h2", staggered=True)
def zb_h2(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Iterator[Action]:
    """Warm-up filled with forwards and the rest with weight gradients: no bubble, about twice the memory of 1F1B.

    Qi et al. 2023, arXiv:2401.10241, sections 2.2 and 4: the update is validated afterwards instead of waited for, so a
    rank begins the next step as soon as it is done. Bubble (p − 1)(t_F + t_I − 2 t_W); 2p − 1 micro-batches alive.
    """
    return _split(rank, 2 * (num_ranks - rank) - 1, 2 * rank, num_microbatches)
