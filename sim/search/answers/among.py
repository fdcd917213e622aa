"""Some of a search's plans: those with given fields, the best of them, and what rules them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.search.candidate import Candidate
from sim.search.confirm import run_best
from sim.search.plans.columns import SCHEDULES
from sim.search.plans.layouts import LAYOUT
from sim.search.result import SearchResult
from sim.search.table.priced import Priced
from sim.units import show

Array = np.ndarray

NUMBERS = (*LAYOUT, "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")
FIELDS = (*NUMBERS, "schedule", *CHOICES)
"""Fields of a plan that a search varies."""


def column(result: SearchResult, name: str) -> Array:
    """A field of every plan that was priced; a schedule is its place in SCHEDULES.

    Raises
    ------
    SpecError
        A field that a search does not vary.
    """
    return np.concatenate([_column_of(result, block, name) for block in result.blocks()])


def _column_of(result: SearchResult, block: Priced, name: str) -> Array:
    if name == "num_gpus" or name == "schedule" or name in NUMBERS:
        values: Array = getattr(result.space.columns, name)[block.row]
        return values
    _check(name)
    choices: Array = np.array([getattr(each, name) for each in result.space.categories])
    return choices[block.category]  # type: ignore[no-any-return]


def with_fields(result: SearchResult, named: Mapping[str, Any]) -> Array:
    """Which of the plans priced have these fields.

    Raises
    ------
    SpecError
        A field that a search does not vary.
    """
    return np.concatenate([has_fields(result, block, named) for block in result.blocks()])


def has_fields(result: SearchResult, block: Priced, named: Mapping[str, Any]) -> Array:
    """The same of the plans of a block."""
    match = np.ones(len(block), bool)
    for name, value in named.items():
        if name == "schedule":
            value = SCHEDULES.index(value) if value in SCHEDULES else -1
        match &= _column_of(result, block, name) == value
    return match


def fitting(result: SearchResult) -> Array:
    """Which of the plans priced fit in memory."""
    fits: Array = result.memory_bytes <= result.memory_limit_bytes
    return fits


def best_among(
    result: SearchResult, which: Array, known: dict[int, Candidate], ranking: Array, most: int = 40
) -> Candidate | None:
    """The best of some plans that fit, by the exact engine; None: none fits.

    Parameters
    ----------
    which : array of bool over the plans priced
    known : dict
        Plans that the exact engine has run, by place; those it runs here are added.
    ranking : array
        `result.ranking()`, which sorts all plans and so is asked once.
    most : int
        How many the exact engine runs at most; fewer where the best is proven before.
    """
    return best_of(result, ranking[which[ranking]], known, most)


def best_of(result: SearchResult, places: Array, known: dict[int, Candidate], most: int = 40) -> Candidate | None:
    """The same of plans at some places, in the order of their price."""
    best = run_best(result, places, 1, most, known).best
    return best[0] if best else None


def confirmed_already(result: SearchResult) -> dict[int, Candidate]:
    """The search's best plans by their place in the columns."""
    places = result.places_of([each.scenario for each in result.best])
    return {place: each for place, each in zip(places, result.best, strict=True) if place is not None}


def rank_among(result: SearchResult, place: int, chosen: Array) -> int:
    """1 for the best of some plans, by the closed form; plans that are equal have one rank.

    Parameters
    ----------
    chosen : array
        Their places.
    """
    score = result.score()
    return int(np.count_nonzero(score[chosen] < score[place])) + 1


def loss_of(result: SearchResult, answer: Estimate) -> float:
    """What an answer loses against the best, as a share, by the objective: time, cost or memory."""
    best = result.best[0]
    return replace(best, answer=answer).worth(result.objective) / best.worth(result.objective) - 1.0


def causes_apart(result: SearchResult, answer: Estimate) -> dict[str, float]:
    """Seconds by cause that an answer takes more than the best, largest first. [s]

    Where the cost is what counts, seconds on as many GPUs as the best has.
    """
    best = result.best[0].answer
    scale = answer.num_gpus / best.num_gpus if result.objective == "cost" else 1.0
    there, here = answer.breakdown.seconds, best.breakdown.seconds
    return dict(sorted(((cause, scale * there[cause] - here[cause]) for cause in there), key=lambda item: -item[1]))


def none_fits(result: SearchResult, which: Array) -> str:
    """That memory rules some plans out, and what the leanest of them needs."""
    place = int(np.argmin(np.where(which, result.memory_bytes, np.inf)))
    plan = result.scenario_at(place).plan
    experts = f"ep {plan.ep}, " if result.space.scenario.model.num_experts else ""
    return (
        f"none of the {np.count_nonzero(which):,} such plans fits in {show(result.memory_limit_bytes, 'B')}: the "
        f"leanest needs {show(float(result.memory_bytes[place]), 'B')} (recompute {plan.recompute}, ZeRO "
        f"{plan.zero_stage}, dp {plan.dp}, {experts}micro-batch {plan.microbatch_size})"
    )


def _check(name: str) -> None:
    if name not in FIELDS:
        raise SpecError(f"a search does not vary {name!r} of a plan{nearest(name, FIELDS)}")
