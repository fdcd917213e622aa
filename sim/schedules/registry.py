"""Schedules by name. A new schedule is one generator under `@schedule("name")`; all else follows.

The generator yields what one rank does, in order: compute only, no idle slots, no communication, no times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.errors import ScheduleError, nearest
from sim.schedules.actions import Action
from sim.schedules.order import Order, make_order

Generator = Callable[[int, int, int, int], Iterable[Action]]
"""(rank, num_ranks, num_chunks, num_microbatches) -> the rank's actions."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A registered schedule.

    interleaves : takes more than one chunk per rank; stage = chunk · num_ranks + rank.
    staggered : no rank waits for the others between steps, so a step is as long as the longest rank's own.
    requirement : (num_ranks, num_chunks, num_microbatches) -> what is wrong with them, or None.
    """

    name: str
    generator: Generator
    summary: str
    interleaves: bool
    staggered: bool
    requirement: Callable[[int, int, int], str | None]


MOST_ACTIONS = 4_000_000
"""A step of more is refused rather than run for minutes in gigabytes."""
_REGISTRY: dict[str, Schedule] = {}


def schedule(
    name: str,
    *,
    interleaves: bool = False,
    staggered: bool = False,
    requirement: Callable[[int, int, int], str | None] = lambda p, v, m: None,
) -> Callable[[Generator], Generator]:
    """Register a generator under `name`; the first line of its docstring is its summary."""

    def register(generator: Generator) -> Generator:
        summary = (generator.__doc__ or "").strip().partition("\n")[0]
        _REGISTRY[name] = Schedule(name, generator, summary, interleaves, staggered, requirement)
        build_order.cache_clear()
        return generator

    return register


def is_staggered(name: str) -> bool:
    """Whether a schedule's ranks begin the next step without waiting; an order that is not registered does not."""
    return name in _REGISTRY and _REGISTRY[name].staggered


def schedule_names() -> list[str]:
    """Names of all registered schedules."""
    return sorted(_REGISTRY)


def get_schedule(name: str) -> Schedule:
    """The schedule registered as `name`.

    Raises
    ------
    ScheduleError
        There is none; the message names the nearest.
    """
    if name not in _REGISTRY:
        raise ScheduleError(f"unknown schedule {name!r}{nearest(name, _REGISTRY)}")
    return _REGISTRY[name]


@lru_cache(maxsize=64)
def build_order(name: str, num_ranks: int, num_chunks: int, num_microbatches: int) -> Order:
    """Generate and validate the order of all ranks.

    Raises
    ------
    ScheduleError
        An unknown name, sizes the schedule cannot take, or an order that breaks a rule.
    """
    chosen = get_schedule(name)
    if min(num_ranks, num_chunks, num_microbatches) < 1:
        raise ScheduleError(
            "a schedule needs at least one rank, chunk and micro-batch, "
            f"not {num_ranks}, {num_chunks}, {num_microbatches}"
        )
    if num_chunks > 1 and not chosen.interleaves:
        able = " or ".join(repr(item.name) for item in _REGISTRY.values() if item.interleaves)
        raise ScheduleError(
            f"schedule {name!r} holds one chunk a rank, not num_chunks = {num_chunks}; "
            f"set plan.schedule to {able} or plan.num_chunks to 1"
        )
    num_actions = 2 * num_ranks * num_chunks * num_microbatches
    if num_actions > MOST_ACTIONS:
        raise ScheduleError(
            f"{num_ranks} ranks · {num_chunks} chunks · {num_microbatches} micro-batches make {num_actions:,} actions, "
            f"more than the {MOST_ACTIONS:,} that are played one by one; use a larger plan.microbatch_size or "
            "plan.dp, or a smaller training.global_batch_size"
        )
    problem = chosen.requirement(num_ranks, num_chunks, num_microbatches)
    if problem:
        raise ScheduleError(f"schedule {name!r}: {problem}")
    actions = tuple(tuple(chosen.generator(rank, num_ranks, num_chunks, num_microbatches)) for rank in range(num_ranks))
    order = make_order(name, actions, num_ranks * num_chunks, num_microbatches)
    astray = np.flatnonzero(order.stage % num_ranks != order.rank)
    if len(astray):
        stage, rank = int(order.stage[astray[0]]), int(order.rank[astray[0]])
        raise ScheduleError(
            f"schedule {name!r} puts stage {stage} on rank {rank}; stages are dealt in turn, so it belongs on rank "
            f"{stage % num_ranks} (stage = chunk · {num_ranks} + rank)"
        )
    return order
