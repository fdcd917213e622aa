"""The order in which the replicas of PipeDream's stages take turns, 1F1B round robin."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil, lcm

import numpy as np

from sim.errors import ScheduleError
from sim.schedules import Order, make_order
from sim.schedules.actions import B, F, Row, U, in_turns, run
from sim.schedules.build import MOST_ACTIONS, STEADY, STREAM, folded


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


def build_replicated(
    replicas: Sequence[int], in_flight: Sequence[int] | None = None, *, fold: bool = False, rounds: int = STREAM
) -> Order:
    """PipeDream's order where stages are replicated, 1F1B round robin (`round_robin`): a step is one round of them all.

    replicas : workers of each stage.
    in_flight : micro-batches that a worker of each stage has begun and not finished, at most. Default: PipeDream's
        (`noam`).
    fold : as of `build_order`; then a step is one round of the steady state.
    rounds : that are in the order otherwise.
    """
    if not replicas or min(replicas) < 1:
        raise ScheduleError(f"every stage has one worker or more, not {list(replicas)}")
    return _replicated(tuple(replicas), in_flight, rounds, None, fold)


def _replicated(
    replicas: tuple[int, ...], in_flight: Sequence[int] | None, rounds: int, keep: int | None, fold: bool = True
) -> Order:
    """`build_replicated`, with `keep` micro-batches in the arrays of a folded order."""
    copies = lcm(*replicas)
    most = noam(replicas) if in_flight is None else in_flight
    if 2 * copies * len(replicas) * STEADY * sum(replicas) > MOST_ACTIONS:
        raise ScheduleError(
            f"the workers' turns repeat after {copies:,} micro-batches, the least common multiple of the "
            "stages' numbers of workers: too many to be played; give stages numbers with common divisors"
        )

    def rows(microbatches: int) -> list[Row]:
        return round_robin(replicas, most, microbatches)

    def make(microbatches: int) -> Order:
        return make_order("pipedream", rows(microbatches), len(replicas) * copies, microbatches, copies=copies)

    if not fold:
        return make(copies * rounds)
    again = partial(_replicated, replicas, in_flight, rounds)
    return folded(make, rows, copies, copies, keep or copies * (rounds + 1), again, endless=True)
