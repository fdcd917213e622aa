"""The prices of a search: unit of work by unit as they come, and wherever they are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.search.plans.columns import OVERLAPS, RECOMPUTES, SCHEDULES, Category
from sim.search.plans.layouts import LAYOUT
from sim.search.plans.space import Space
from sim.search.prices.units import categories_of
from sim.specs import ParallelPlan
from sim.specs.plan import DEFAULT_RECOMPUTE_MODULES
from sim.work.recompute import own_modules

NUMBERS = (*LAYOUT, "num_chunks", "microbatch_size")
CHOICES = ("recompute", "sequence_parallel", "zero_stage")
ROOM = ("recompute_modules", "recompute_method", "recompute_num_layers", "optimizer_offload", "offloaded_layers")
"""Fields of a plan that a search varies where a plan would not fit else (`sim.search.room`)."""
FIELDS = (*NUMBERS, "schedule", *CHOICES, *ROOM)
"""Fields of a plan that a search varies."""
SHOWN_FIELDS = (*NUMBERS, "schedule", "microbatch_group", *CHOICES, "optimizer_offload", "offloaded_layers")
"""What of a plan stands in tables, as `shown` has it."""


def value_of(category: Category, name: str, own: ParallelPlan) -> Any:
    """A field of the plans of a category, one of CHOICES or ROOM; `own` is the scenario's plan."""
    if name != "recompute_modules":
        return getattr(category, name)
    return own_modules(own) if category.recompute == "selective" and not category.modules else category.modules


def shown(plan: ParallelPlan, name: str) -> Any:
    """A field of a plan as tables have it: what is recomputed is one word.

    `moe_act+layernorm` where selective recomputation runs other modules again than usual, `2 layers` of every virtual
    stage that runs so many again, whole.
    """
    if name != "recompute":
        return getattr(plan, name)
    if plan.recompute == "selective" and plan.recompute_modules != DEFAULT_RECOMPUTE_MODULES:
        return "+".join(plan.recompute_modules)
    if plan.recompute_method == "block":
        return f"{plan.recompute_num_layers} layer{'s' * (plan.recompute_num_layers > 1)}"
    return plan.recompute if plan.recompute_num_layers == 1 else f"full by {plan.recompute_num_layers}"


@dataclass(frozen=True, slots=True)
class Priced:
    """Plans with their prices, one a place.

    category, row : which of the space's.
    step_time_s : by the closed form. [s]
    memory_bytes : of the fullest GPU. [bytes]
    """

    category: Array
    row: Array
    step_time_s: Array
    memory_bytes: Array

    def __len__(self) -> int:
        return len(self.row)

    def take(self, places: Array) -> Priced:
        """Some of the plans."""
        return Priced(*(getattr(self, name)[places] for name in Priced.__slots__))


def join(blocks: list[Priced]) -> Priced:
    """Several blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    columns = ([getattr(each, name) for each in blocks] for name in Priced.__slots__)
    return Priced(*(np.concatenate(column) if column else np.empty(0) for column in columns))


def of_unit(part: Space, seconds: Array, nbytes: Array) -> Priced:
    """The answers of `sim.search.prices.units.price_unit` with the plans they belong to."""
    numbers, rows = zip(*categories_of(part), strict=True)
    category = np.repeat(np.array(numbers, dtype=np.int16), [len(each) for each in rows])
    return Priced(category, (np.concatenate(rows) + part.first_row).astype(np.int32), seconds, nbytes)


def frame_of(space: Space, priced: Priced, more_categories: tuple[Category, ...] = ()) -> Any:
    """Priced plans of a space, or of a part of it, as a pandas table, a row a plan, in words that its reader knows."""
    import pandas as pd

    rows, columns, categories = priced.row - space.first_row, space.columns, (*space.categories, *more_categories)

    def chosen(of_categories: Iterable[Any]) -> Array:
        values: Array = np.array(list(of_categories))[priced.category]
        return values

    kinds = chosen(RECOMPUTES.index(each.recompute) for each in categories)
    overlaps = chosen(each.overlaps for each in categories)
    return pd.DataFrame(
        {
            **{name: getattr(columns, name)[rows] for name in ("num_gpus", *NUMBERS)},
            "schedule": pd.Categorical.from_codes(columns.schedule[rows], pd.Index(SCHEDULES)),
            "recompute": pd.Categorical.from_codes(kinds, pd.Index(RECOMPUTES)),
            **{name: chosen(getattr(each, name) for each in categories) for name in CHOICES[1:]},
            **dict(zip(OVERLAPS, overlaps.T, strict=True)),
            **{name: getattr(priced, name) for name in Priced.__slots__},
        }
    )


class PriceTable(ABC):
    """Where the prices of a search are kept; units may come in any order and are given back in theirs.

    folder : on disk; None where they are in memory.
    more_categories : that plans have besides those of the space.
    """

    folder: Path | None
    more_categories: tuple[Category, ...] = ()

    @property
    @abstractmethod
    def done(self) -> frozenset[int]:
        """Numbers of the units that are there."""

    @abstractmethod
    def add(self, number: int, part: Space, priced: Priced) -> None:
        """Keep the prices of a unit."""

    @abstractmethod
    def read(self, number: int) -> Priced:
        """The prices of a unit."""

    @abstractmethod
    def size(self, number: int) -> int:
        """How many plans a unit has, without reading it."""

    def blocks(self) -> Iterator[Priced]:
        """All prices, a unit at a time, in order."""
        return (self.read(number) for number in sorted(self.done))

    def at(self, places: Array) -> Priced:
        """The plans at some places, in the order asked for; only units that hold one are read, one at a time."""
        order = np.argsort(places, kind="stable")
        found, begin = [], 0
        for number in sorted(self.done):
            end = begin + self.size(number)
            here = places[order][np.searchsorted(places[order], begin) : np.searchsorted(places[order], end)]
            if len(here):
                found.append(self.read(number).take(here - begin))
            begin = end
        return join(found).take(np.argsort(order, kind="stable"))


@dataclass
class InMemory(PriceTable):
    """Prices kept as arrays: 22 bytes a plan."""

    units: dict[int, Priced] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def done(self) -> frozenset[int]:
        return frozenset(self.units)

    def add(self, number: int, part: Space, priced: Priced) -> None:
        self.units[number] = priced

    def read(self, number: int) -> Priced:
        return self.units[number]

    def size(self, number: int) -> int:
        return len(self.units[number])


@dataclass
class WithMore(PriceTable):
    """A table with more plans behind its own, in categories of their own."""

    table: PriceTable
    more: Priced
    more_categories: tuple[Category, ...]

    @property
    def folder(self) -> Path | None:  # type: ignore[override]
        return self.table.folder

    @property
    def done(self) -> frozenset[int]:
        return self.table.done | {_BEHIND_ALL}

    def add(self, number: int, part: Space, priced: Priced) -> None:
        self.table.add(number, part, priced)

    def read(self, number: int) -> Priced:
        return self.more if number == _BEHIND_ALL else self.table.read(number)

    def size(self, number: int) -> int:
        return len(self.more) if number == _BEHIND_ALL else self.table.size(number)


_BEHIND_ALL = 1 << 62
"""Number of the unit of plans that are in none of the space's."""
