"""Pipelines through which micro-batches come from both ends, or go to and fro, played as early as they can."""

from functools import lru_cache

from sim.schedules.actions import Row
from sim.schedules.order import Order, make_order
from sim.schedules.passes import Times, at_work, play
from sim.schedules.registry import even_near, schedule


def _even_ranks(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_ranks % 2:
        return (
            "it holds two copies of the model's stages, pipelines that meet in the middle, so plan.pp = "
            f"{num_ranks} must be even; nearest: {even_near(num_ranks)}"
        )
    return None


@schedule("chimera", copies=2, whole=True, requirement=_even_ranks, period=lambda p, v: 2)
def chimera(num_ranks: int, num_chunks: int, num_microbatches: int) -> list[Row]:
    """Two 1F1B pipelines in opposite directions with a copy of the weights each: half of the bubble, even memory.

    Li and Hoefler 2021, arXiv:2107.06925, section 3.1. With as many micro-batches as ranks the bubble is
    (p/2 − 1)(t_F + t_B) if both take equally long and (p − 2) t_B if t_B = 2 t_F, as in the paper; with more it stays
    (p − 2) t_B, for one more micro-batch in flight. Gradients of both copies are summed.
    """
    home = [*range(num_ranks), *reversed(range(num_ranks))]
    return play(home, 2, num_microbatches, lambda stage: num_ranks - stage % num_ranks, forward_first=True)


def _even_chunks(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_chunks % 2:
        return (
            f"a wave goes down the ranks and comes back, so plan.num_chunks = {num_chunks} must be even; "
            f"nearest: {even_near(num_chunks)}"
        )
    return None


def _home(num_ranks: int, num_chunks: int) -> list[int]:
    """Which rank holds each stage of a wave."""
    return [*range(num_ranks), *reversed(range(num_ranks))] * (num_chunks // 2)


@lru_cache(maxsize=256)
def _waves(num_ranks: int, num_chunks: int, num_microbatches: int) -> list[Row]:
    """Waves of num_ranks micro-batches."""
    return play(_home(num_ranks, num_chunks), 1, num_microbatches, lambda stage: num_ranks)


@lru_cache(maxsize=256)
def _eager(num_ranks: int, num_chunks: int, num_microbatches: int) -> list[Row]:
    """Forwards ahead of the waves."""
    home = _home(num_ranks, num_chunks)
    ahead = [-(-2 * (len(home) - stage) // num_chunks) for stage in range(len(home))]
    return play(home, 1, num_microbatches, lambda stage: ahead[stage], forward_first=True)


@lru_cache(maxsize=128)
def _orders(num_ranks: int, num_chunks: int, num_microbatches: int) -> tuple[tuple[list[Row], Order], ...]:
    """Both, ready to be timed."""
    size = (num_ranks, num_chunks, num_microbatches)
    both = _waves(*size), _eager(*size)
    return tuple((rows, make_order("", rows, num_ranks * num_chunks, num_microbatches)) for rows in both)


@schedule(
    "hanayo",
    chunks="many",
    whole=True,
    requirement=_even_chunks,
    period=lambda p, v, times=None: p,
    candidates=(_waves, _eager),
)
def hanayo(num_ranks: int, num_chunks: int, num_microbatches: int, times: Times | None = None) -> list[Row]:
    """Waves: micro-batches go down the ranks and come back, num_chunks/2 times; one copy of the weights.

    Liu et al. 2023, arXiv:2308.15762. Bubble (p − 1)(t_F + t_B)/v for equal times and v chunks a rank; up to p
    micro-batches in flight on each chunk. Where backwards take longer, waves of p micro-batches leave gaps; then
    forwards may go ahead of them instead.
    """
    size = (num_ranks, num_chunks, num_microbatches)
    if times is None:
        return _waves(*size)
    return min(_orders(*size), key=lambda each: at_work(each[1], times)[1])[0]
