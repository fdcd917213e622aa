"""A unit of work: a part of the space, priced and memory-checked on its own, anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.costs.block import pricing
from sim.search.plans.columns import Category
from sim.search.plans.space import Space
from sim.search.prices.alive import kept_by_ranks
from sim.search.prices.facts import gather_facts
from sim.search.prices.held import AtSpots
from sim.search.prices.memory import find_peaks, memory_bytes
from sim.search.prices.price import StepTimes

Array = np.ndarray

PLANS_PER_UNIT = 400_000
"""So many that what the plans of a unit share is computed seldom, so few that a worker answers in a fraction of a
second and its arrays take tens of megabytes."""


def price_unit(part: Space) -> tuple[Array, Array]:
    """Step time and peak memory of every plan of a part: category after category, in each all its rows.  [s, bytes]

    A function of its argument alone, which pickles to some tens of kilobytes: a pool can run it on any machine.
    """
    scenario, columns = part.scenario, part.columns
    _, compute, fabric = pricing(scenario)
    recomputes = tuple(dict.fromkeys(category.recompute for category in part.categories))
    facts = gather_facts(part, columns)
    at_spots = AtSpots(scenario, facts.spots, compute, fabric)
    held = at_spots.held.ranks.take(columns.layout)
    kept = kept_by_ranks(columns, facts.num_microbatches)
    answers = np.empty((2, part.num_plans))
    places = _places(part)
    for flag in {category.sequence_parallel for category in part.categories}:
        rows = part.rows_of(flag)
        if not len(rows):
            continue
        own, own_facts = columns.take(rows), facts.take(rows)
        times = StepTimes(scenario, own_facts, at_spots, flag, recomputes)
        peaks = find_peaks(scenario, own, kept.take(rows), own_facts.cell, facts.cells, flag, recomputes)
        kinds = {(each.zero_stage, each.overlaps) for each in part.categories if each.sequence_parallel is flag}
        for zero_stage in {zero_stage for zero_stage, _ in kinds}:
            nbytes = memory_bytes(scenario, own, zero_stage, held.take(rows), peaks)
            for overlaps in (overlaps for zero, overlaps in kinds if zero == zero_stage):
                seconds = times.of(zero_stage, overlaps)
                for index, recompute in enumerate(recomputes):
                    place = places.get(Category(recompute, flag, zero_stage, overlaps))
                    if place is not None:
                        answers[0, place], answers[1, place] = seconds[index], nbytes[index]
    return answers[0], answers[1]


def _places(part: Space) -> dict[Category, slice]:
    """Where the plans of each category stand among all of a part."""
    ends = np.cumsum([len(rows) for _, rows in categories_of(part)]).tolist()
    return {each: slice(begin, end) for each, begin, end in zip(part.categories, [0, *ends], ends, strict=False)}


def categories_of(part: Space) -> Iterator[tuple[int, Array]]:
    """Number and rows of every category, in the order of `price_unit`."""
    rows = {flag: part.rows_of(flag) for flag in (False, True)}
    for number, category in enumerate(part.categories):
        yield number, rows[category.sequence_parallel]


def price_all(space: Space) -> Iterator[tuple[int, Array, Array, Array]]:
    """(category, rows, step times, memory) of one category after the other, part by part. [-, -, s, bytes]"""
    for part in space.parts(PLANS_PER_UNIT):
        seconds, nbytes = price_unit(part)
        begin = 0
        for number, rows in categories_of(part):
            end = begin + len(rows)
            if len(rows):
                yield number, part.first_row + rows, seconds[begin:end], nbytes[begin:end]
            begin = end
