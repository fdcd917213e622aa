"""Pipelines without a flush: batch follows batch, and gradients come late."""

from collections.abc import Sequence
from math import ceil, lcm

import numpy as np

from sim.schedules.actions import B, F, Row, U, in_turns, run
from sim.schedules.registry import microbatch_remedy, schedule


def _enough(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
    if num_microbatches < num_ranks:
        return (
            f"a batch needs at least as many micro-batches as ranks, or two versions are too few: {num_microbatches} "
            f"on {num_ranks}; lower plan.pp, or {microbatch_remedy(num_ranks)}"
        )
    return None


def _stream(rank: int, num_ranks: int, total: int, updates: np.ndarray) -> Row:
    """1F1B without end, with weight updates after the backwards of these micro-batches."""
    everything = range(total)
    warmup = num_ranks - 1 - rank
    return in_turns(
        (run(F, rank, everything), -warmup), (run(B, rank, everything), 0), (run(U, rank, updates), updates)
    )


@schedule("pipedream", asynchronous=True)
def pipedream(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, batches: int = 1) -> Row:
    """1F1B without flush and an update after every micro-batch; rank r keeps p − r versions of its weights.

    Narayanan et al. 2019 (SOSP), arXiv:1806.03377, sections 3.2 and 3.3, with weight stashing. No bubble; a gradient of
    rank r is p − 1 − r updates late.
    """
    total = num_microbatches * batches
    return _stream(rank, num_ranks, total, np.arange(total))


@schedule("pipedream_2bw", asynchronous=True, delay=1, requirement=_enough)
def pipedream_2bw(rank: int, num_ranks: int, num_chunks: int, num_microbatches: int, batches: int = 1) -> Row:
    """1F1B without flush, an update a batch, two versions of the weights; every gradient is one update late.

    Narayanan et al. 2021, arXiv:2006.09503, section 3.1: a batch begins with the version before the newest, so that no
    micro-batch has to wait; at least as many micro-batches as ranks. No bubble.
    """
    total = num_microbatches * batches
    return _stream(rank, num_ranks, total, np.arange(num_microbatches - 1, total, num_microbatches))


def noam(replicas: Sequence[int]) -> tuple[int, ...]:
    """Micro-batches that a worker of each stage has in flight: the workers from its stage on, over the stage's own.

    Of the first stage that is PipeDream's NOAM, ceil(workers / replicas of the input stage) (Narayanan et al. 2019,
    section 3.2); of a straight pipeline p − s, as of 1F1B. Where a stage's workers do not divide those behind it, it
    may be one too few for the slowest stage never to wait (`sim.planners.answers.covering`).
    """
    return tuple(ceil(sum(replicas[at:]) / own) for at, own in enumerate(replicas))


def round_robin(replicas: Sequence[int], in_flight: Sequence[int], total: int) -> list[Row]:
    """PipeDream's 1F1B-RR: of the `replicas[s]` workers of stage s, micro-batch k is worker k mod replicas[s]'s.

    Narayanan et al. 2019 (SOSP), section 3.2. So each micro-batch takes one of lcm(replicas) ways through the workers,
    a straight pipeline each: stage s of way q is virtual stage q · stages + s, as of several copies of a model
    (`Order.copies`). A worker begins so many micro-batches, and then does one forward and one backward in turn. It
    updates after every backward; what its reduction with the stage's others takes is a matter of costs.

    replicas : workers of each stage; those of a stage stand together.
    in_flight : micro-batches that a worker of each stage has begun and not finished, at most (`noam`).
    total : micro-batches.
    """
    stages, ways = len(replicas), lcm(*replicas)
    rows = []
    for stage, own in enumerate(replicas):
        for worker in range(own):
            mine = np.arange(worker, total, own)
            place = mine % ways * stages + stage
            forward, backward, update = (run(kind, place, mine) for kind in (F, B, U))
            rows.append(in_turns((forward, 1 - in_flight[stage]), (backward, 0), (update, 0)))
    return rows
