"""Pipelines that go down the ranks and come back: rank r holds stages r and 2p − 1 − r."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from sim.schedules.actions import F, I, Row, W, in_turns, numbered, run
from sim.schedules.order import make_order
from sim.schedules.passes import EQUAL, Times, at_work, place_weight_gradients
from sim.schedules.registry import schedule

BLOCK = 6
"""Equal units of time in which a rank does the six things a micro-batch asks of its two stages."""
CANDIDATES = 8
"""Blocks with the fewest chunks in flight that are played to find the shortest."""
_FACTS: dict[str, Any] = {"chunks": 2, "whole": True, "staggered": True, "period": lambda p, v, times=None: 1}
"""What all schedules here have in common."""


def _down_and_up(rank: int, num_ranks: int, num_microbatches: int) -> Row:
    """PyTorch's `ScheduleZBVZeroBubble` on one rank: the order of equal times."""
    down, up = rank, 2 * num_ranks - 1 - rank
    played = max(num_microbatches, 2 * num_ranks - 1)
    forward, back = [(down, F), (down, I), (down, W)], [(up, F), (up, I), (up, W)]
    left = num_ranks - rank
    steps = [(down, F)] * (2 * left - 1) + [(up, F), (down, F)] * rank + back * left
    steps += (forward + back) * (played - (2 * num_ranks - 1 - rank))
    steps += (forward[1:] + back) * (num_ranks - 1 - rank)
    steps += [(down, I), (up, I)] * rank + forward[1:] * left
    steps += [(up, W)] * rank + [(down, W)] * rank
    return numbered(steps, num_microbatches)


def _all_down_and_up(num_ranks: int, num_chunks: int, num_microbatches: int) -> list[Row]:
    return [_down_and_up(rank, num_ranks, num_microbatches) for rank in range(num_ranks)]


@schedule("zb_v", **_FACTS, candidates=(_all_down_and_up,))
def zb_v(num_ranks: int, num_chunks: int, num_microbatches: int, times: Times | None = None) -> list[Row]:
    """Zero bubble at 1F1B's memory, where forward, input gradient and weight gradient take equally long.

    Qi et al. 2024, arXiv:2405.15362, section 3; order as PyTorch's `ScheduleZBVZeroBubble`, with weight gradients
    placed by what things take where that is given. 2p chunks in flight on every rank, as much as p
    micro-batches of both.
    """
    rows = _all_down_and_up(num_ranks, num_chunks, num_microbatches)
    return rows if times is None else place_weight_gradients(rows, 2 * num_ranks, num_microbatches, times)


@cache
def _block(num_ranks: int, steps: tuple[int, int, int, int]) -> tuple[tuple[int, ...], ...]:
    """When each rank does F, F, I, I, W, W of one micro-batch (down, up, up, down; up, down), in equal units of time.

    `steps` is how much later the next rank does the same on the way down and up, forward and backward. At the turns one
    waits so long that no rank ever does two things at once when blocks repeat every six units [1]_, and that first the
    fewest chunks are in flight and then the step is shortest.

    .. [1] Qi et al. 2024, arXiv:2405.15362, section 3.2.
    """
    last = num_ranks - 1
    down_f, up_f, up_b, down_b = steps
    found = []
    for turns in product(range(1, BLOCK), repeat=3):
        rows = []
        for rank in range(num_ranks):
            first = rank * down_f
            second = last * down_f + turns[0] + (last - rank) * up_f
            third = last * (down_f + up_f) + turns[0] + turns[1] + rank * up_b
            fourth = last * (down_f + up_f + up_b) + sum(turns) + (last - rank) * down_b
            times = [first, second, third, fourth]
            if len({time % BLOCK for time in times}) < 4:
                break
            for after in (third, fourth):  # the weight gradient at the next moment that is free in every block
                taken = {time % BLOCK for time in times}
                times.append(next(time for time in range(after + 1, after + 2 * BLOCK) if time % BLOCK not in taken))
            rows.append(tuple(times))
        if len(rows) == num_ranks:
            found.append((max(_in_flight(times) for times in rows), sum(turns), tuple(rows)))
    assert found, f"no block of {steps} on {num_ranks} ranks"
    found.sort()
    fewest = [block for most, _, block in found if most == found[0][0]]
    return min(fewest[:CANDIDATES], key=_length)


def _length(block: tuple[tuple[int, ...], ...]) -> float:
    """How long a step of a few such blocks is when all is done as early as its order allows."""
    ranks = len(block)
    rows = [_repeat(rank, ranks, 2 * ranks, times) for rank, times in enumerate(block)]
    return at_work(make_order("", rows, 2 * ranks, 2 * ranks), EQUAL)[1]


def _in_flight(times: tuple[int, ...]) -> int:
    """The most chunks in flight at once where this block repeats."""
    spans = ((times[0], times[5]), (times[1], times[4]))
    return max(sum((now - begin) // BLOCK - (now - end) // BLOCK for begin, end in spans) for now in range(BLOCK))


def _kinds(rank: int, num_ranks: int) -> tuple[tuple[int, int], ...]:
    """(stage, kind) of the six things in a block."""
    down, up = rank, 2 * num_ranks - 1 - rank
    return ((down, F), (up, F), (up, I), (down, I), (up, W), (down, W))


def _repeat(rank: int, num_ranks: int, num_microbatches: int, times: tuple[int, ...]) -> Row:
    """The block, once every six units, as the order in which a rank does it."""
    every = np.arange(num_microbatches)
    kinds = _kinds(rank, num_ranks)
    return in_turns(
        *((run(kind, stage, every), time + BLOCK * every) for (stage, kind), time in zip(kinds, times, strict=True))
    )


HALF, MIN = (2, 1, 2, 1), (1, 1, 1, 1)
"""Steps of `_block`."""


def _blocks(num_ranks: int, num_microbatches: int, steps: tuple[int, int, int, int]) -> list[Row]:
    block = _block(num_ranks, steps)
    return [_repeat(rank, num_ranks, num_microbatches, block[rank]) for rank in range(num_ranks)]


def _v(num_ranks: int, num_microbatches: int, steps: tuple[int, int, int, int], times: Times | None) -> list[Row]:
    rows = _blocks(num_ranks, num_microbatches, steps)
    return place_weight_gradients(rows, 2 * num_ranks, num_microbatches, times or EQUAL)


@schedule("v_half", **_FACTS, candidates=(lambda p, v, m: _blocks(p, m, HALF),))
def v_half(num_ranks: int, num_chunks: int, num_microbatches: int, times: Times | None = None) -> list[Row]:
    """Half of 1F1B's activations for about half of its bubble.

    Qi et al. 2024, arXiv:2405.15362, section 3.3: there and back, a rank further on is three units later.
    """
    return _v(num_ranks, num_microbatches, HALF, times)


@schedule("v_min", **_FACTS, candidates=(lambda p, v, m: _blocks(p, m, MIN),))
def v_min(num_ranks: int, num_chunks: int, num_microbatches: int, times: Times | None = None) -> list[Row]:
    """A third of 1F1B's activations for about two thirds of its bubble.

    Qi et al. 2024, arXiv:2405.15362, section 3.3: there and back, a rank further on is two units later. Where forward,
    input gradient and weight gradient take unequal times its blocks no longer fit together and it slows down.
    """
    return _v(num_ranks, num_microbatches, MIN, times)
