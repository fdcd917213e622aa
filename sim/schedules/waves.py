"""Pipelines through which micro-batches come from both ends, go to and fro, or turn round: Chimera, Hanayo, DualPipe.

Chimera's and Hanayo's actions are played as early as they can; DualPipe's forwards and backwards go in pairs.
"""

from __future__ import annotations

from functools import lru_cache

from sim.schedules.actions import PAIRED, B, F, I, Row, W, numbered
from sim.schedules.order import Order, make_order
from sim.schedules.passes import Times, at_work, play
from sim.schedules.registry import even_near, microbatch_remedy, schedule


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


Step = tuple[int, int]
"""(phase, kind): phase 0 is the half of the pipeline that begins here or nearby, 1 the one that comes back."""


def _steps(depth: int, at: int, microbatches: int) -> list[Step]:
    """What a rank does, `at` of `depth` ranks from where its own phase begins; micro-batches of each phase."""
    far, near = depth - at - 1, at + 1
    steps: list[Step] = [(0, F)] * (2 * far)
    steps += [(0, F), (1, F)] * near
    pending: list[int] = []  # phases whose weight gradients are put off, oldest first
    for _ in range(far):
        steps += [(1, I), (1, W), (1, F)]
    main = [(0, F | PAIRED), (1, B), (1, F | PAIRED), (0, B)] * (microbatches - 2 * depth + near)
    if far == 0:
        main[0] = (0, F)  # the first pair of the rank in the middle is not one: it shortens the bubble
    steps += main
    steps += [(1, B), (1, F | PAIRED), (0, B)] * far
    halved = False
    for turn in range(near):
        halved |= turn == near // 2 and at % 2 == 1
        for phase in (1, 0):
            steps.append((phase, I if halved else B))
            pending += [phase] if halved else []
            halved |= turn == near // 2 and at % 2 == 0
    for _ in range(far):
        steps += [(pending.pop(0), W)] if pending else []
        steps.append((0, I if halved else B))
        pending += [0] if halved else []
    return steps + [(phase, W) for phase in pending]


def _enough(depth: int, num_microbatches: int, least: int) -> str | None:
    if num_microbatches < least:
        return (
            f"it needs at least {least} micro-batches on {depth} ranks, not {num_microbatches}; lower plan.pp, or "
            f"{microbatch_remedy(least)}"
        )
    return None


def _requirement(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_ranks % 2:
        odd = "; dualpipe_v, one copy in plan.num_chunks 2, takes odd ones" if num_ranks > 1 else ""
        return (
            "it holds two copies of the model's stages, pipelines that meet in the middle, so plan.pp = "
            f"{num_ranks} must be even; nearest: {even_near(num_ranks)}{odd}"
        )
    return _enough(num_ranks, num_microbatches, 2 * num_ranks)


@schedule("dualpipe", copies=2, requirement=_requirement, period=lambda p, v: 2)
def dualpipe(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """Two pipelines in opposite directions, forwards of one beside backwards of the other; two copies of the weights.

    DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1, order as in deepseek-ai/DualPipe. Bubble
    (p/2 − 1)(t_FB + t_B − 3 t_W) for equal halves, p + 1 micro-batches in flight. A pair takes as long as its parts
    one after the other; what they hide of each other's communication is a matter of the stack.
    """
    half = num_ranks // 2
    at = min(rank, num_ranks - 1 - rank)
    own = 0 if rank < half else 1  # the direction whose first stages are in this half
    stages = (rank, num_ranks + num_ranks - 1 - rank)  # of direction 0 and of direction 1
    each = num_microbatches // 2
    steps = [(stages[phase ^ own], kind) for phase, kind in _steps(half, at, each)]
    row = numbered(steps, each)
    row[:, 2] = 2 * row[:, 2] + row[:, 0] // num_ranks
    return row


@schedule("dualpipe_v", chunks=2, requirement=lambda p, v, m: _enough(p, m, 2 * p), period=lambda p, v: 1)
def dualpipe_v(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int) -> Row:
    """DualPipe cut in half: one pipeline that goes down the ranks and comes back, one copy of the weights.

    deepseek-ai/DualPipe, after Qi et al.; PyTorch's `ScheduleDualPipeV`. Rank r holds stages r and 2p − 1 − r.
    """
    stages = (rank, 2 * num_ranks - 1 - rank)
    steps = [(stages[phase], kind) for phase, kind in _steps(num_ranks, rank, num_microbatches)]
    return numbered(steps, num_microbatches)
