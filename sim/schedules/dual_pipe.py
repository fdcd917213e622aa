"""DualPipe: two pipelines in opposite directions, or one that turns round, whose forwards and backwards go in pairs."""

from __future__ import annotations

from sim.schedules.actions import PAIRED, B, F, I, Row, W, numbered
from sim.schedules.registry import even_near, microbatch_remedy, schedule

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
