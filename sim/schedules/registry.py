"""Schedules by name. A new schedule is one function under `@schedule("name")`; all else follows.

The function says what a rank does, in order: compute only, no idle slots, no communication, no times. It takes the
rank, num_ranks, num_chunks, num_microbatches and options, and yields actions, or returns a row (`sim.schedules.
actions`), which is faster.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sim.errors import ScheduleError, nearest
from sim.schedules.actions import Action, Row, as_row, read_grid

OPTIONS = {
    "per_flush": "plan.microbatches_per_flush",
    "group": "plan.microbatch_group",
    "slices": "plan.sequence_slices",
    "ahead": "plan.vocabulary_over_stages",
    "stages": "stages",
    "batches": "batches",
    "times": "times",
    "candidate": "candidate",
}
"""What a schedule may take besides its sizes, and the field that sets it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A registered schedule.

    chunks : "one" or "many" a rank, or exactly so many; with "many", stage = chunk · num_ranks + rank.
    copies : pipelines, each with a model of its own, that run through the ranks at once.
    staggered : no rank waits for the others between steps, so a step is as long as the longest rank's own.
    asynchronous : batches follow each other without a flush; updates are in the order.
    delay : updates by which the version that a batch is begun with is behind the newest; None: it is the newest.
    options : keywords that the generator takes besides its sizes, of OPTIONS.
    requirement : (num_ranks, num_chunks, num_microbatches) -> what is wrong with them, or None.
    period : (num_ranks, num_chunks, **options) -> micro-batches after which the order repeats; None: it does not.
    candidates : of a schedule that chooses its order by what things take, (num_ranks, num_chunks, num_microbatches) ->
        rows from which it chooses; where weight gradients are apart, it places these elsewhere but changes nothing
        else, and no rank keeps more. The first is that of no times. Option `candidate` asks for one of them.
    """

    name: str
    rows: Callable[..., list[Row]]
    summary: str = ""
    chunks: Literal["one", "many"] | int = "one"
    copies: int = 1
    staggered: bool = False
    asynchronous: bool = False
    delay: int | None = None
    options: tuple[str, ...] = ()
    requirement: Callable[[int, int, int], str | None] = lambda p, v, m: None
    period: Callable[..., int] | None = None
    candidates: tuple[Callable[[int, int, int], list[Row]], ...] = ()

    @property
    def interleaves(self) -> bool:
        """Whether it takes more than one chunk a rank."""
        return self.chunks != "one"


_REGISTRY: dict[str, Schedule] = {}


def schedule(name: str, *, whole: bool = False, **facts: Any) -> Callable[[Any], Any]:
    """Register a generator under `name`; the first line of its docstring is its summary.

    Parameters
    ----------
    whole : bool
        The function gives the actions of all ranks at once.
    **facts
        As in `Schedule`: chunks, copies, staggered, asynchronous, delay, requirement, period, candidates.
    """

    def register(generator: Any) -> Any:
        summary, candidates = (generator.__doc__ or "").strip().partition("\n")[0], facts.get("candidates", ())
        options = tuple(option for option in OPTIONS if option in inspect.signature(generator).parameters)
        options += ("candidate",) * bool(candidates)

        def rows(p: int, v: int, m: int, candidate: int | None = None, **given: Any) -> list[Row]:
            if candidate is not None:
                found: list[Row] = candidates[candidate](p, v, m)
                return found
            if whole:
                return [as_row(row) for row in generator(p, v, m, **given)]
            return [as_row(generator(rank, p, v, m, **given)) for rank in range(p)]

        _REGISTRY[name] = Schedule(name, rows, summary, options=options, **facts)
        return generator

    return register


def microbatch_remedy(wanted: int) -> str:
    """How a plan gets so many micro-batches, to end a message of what is wrong with them."""
    return f"let training.global_batch_size / (plan.dp · plan.microbatch_size) be {wanted}"


def even_near(number: int) -> str:
    """The even numbers beside an odd one, for messages."""
    return f"{number + 1} or {number - 1}" if number > 1 else str(number + 1)


def schedules() -> list[Schedule]:
    """All registered schedules."""
    return [_REGISTRY[name] for name in schedule_names()]


def is_staggered(name: str) -> bool:
    """Whether a schedule's ranks begin the next step without waiting; an order that is not registered does not."""
    return name in _REGISTRY and _REGISTRY[name].staggered


def schedule_names() -> list[str]:
    """Names of all registered schedules."""
    return sorted(_REGISTRY)


def is_file(name: str) -> bool:
    """Whether a schedule's name is that of a text file with a grid: it has a slash or an ending."""
    return "/" in name or "\\" in name or name.endswith((".txt", ".grid"))


def get_schedule(name: str) -> Schedule:
    """The schedule registered as `name`, or the one that a text file of that name holds."""
    if is_file(name):
        return grid_schedule(name, read_grid(name))
    if name not in _REGISTRY:
        raise ScheduleError(f"unknown schedule {name!r}{nearest(name, _REGISTRY)}")
    return _REGISTRY[name]


def grid_schedule(name: str, grid: list[list[Action]]) -> Schedule:
    """A schedule that is written down: of one size, with its stages wherever the grid has them."""
    rows = [as_row(row) for row in grid]
    everything = np.concatenate(rows)
    size = (len(rows), int(everything[:, 0].max()) + 1, int(everything[:, 2].max()) + 1)

    def requirement(num_ranks: int, num_chunks: int, num_microbatches: int) -> str | None:
        asked = (num_ranks, num_ranks * num_chunks, num_microbatches)
        if asked == size:
            return None
        return (
            f"its grid has {size[0]} ranks, {size[1]} stages and {size[2]} micro-batches, but plan.pp is {asked[0]}, "
            f"plan.pp · plan.num_chunks {asked[1]} and a step has {asked[2]} micro-batches. Write another grid, or "
            "change plan.pp, plan.num_chunks, training.global_batch_size, plan.dp or plan.microbatch_size"
        )

    return Schedule(name, lambda p, v, m: rows, chunks="many", requirement=requirement)
