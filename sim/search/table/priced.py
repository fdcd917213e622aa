"""The prices of a search: part by part as they come, and wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from sim.search.plans.space import Space
from sim.search.prices.units import categories_of

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Priced:
    """Plans with their prices, one a place.

    category, row : which of the space's.
    """

    category: Array
    row: Array
    step_time_s: Array
    memory_bytes: Array

    def __len__(self) -> int:
        return len(self.row)

    def take(self, places: Array) -> Priced:
        """Some of the plans."""
        return Priced(self.category[places], self.row[places], self.step_time_s[places], self.memory_bytes[places])


def join(blocks: list[Priced]) -> Priced:
    """Several as one."""
    if len(blocks) == 1:
        return blocks[0]
    columns = ([getattr(each, name) for each in blocks] for name in Priced.__slots__)
    return Priced(*(np.concatenate(column) if column else np.empty(0) for column in columns))


def of_unit(part: Space, seconds: Array, nbytes: Array) -> Priced:
    """The answers of `sim.search.prices.units.price_unit` with the plans they belong to."""
    numbers, rows = zip(*categories_of(part), strict=True)
    category = np.repeat(np.array(numbers, dtype=np.int16), [len(each) for each in rows])
    return Priced(category, (np.concatenate(rows) + part.first_row).astype(np.int32), seconds, nbytes)


class Prices(Protocol):
    """Where the prices of a search are kept; units may come in any order and are given back in theirs."""

    @property
    def folder(self) -> Path | None:
        """On disk; None where they are in memory."""

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the units that are there."""

    def add(self, number: int, part: Space, priced: Priced) -> None:
        """Keep those of a unit."""

    def blocks(self) -> Iterator[Priced]:
        """All of them, some at a time, in order."""

    def at(self, places: Array) -> Priced:
        """Those at some places, counted over all blocks."""


@dataclass
class InMemory:
    """Kept as arrays: 22 bytes a plan."""

    parts: dict[int, Priced] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the units that are there."""
        return frozenset(self.parts)

    def add(self, number: int, part: Space, priced: Priced) -> None:
        """Keep those of a unit."""
        self.parts[number] = priced

    def blocks(self) -> Iterator[Priced]:
        """All of them, some at a time, in order."""
        return (self.parts[number] for number in sorted(self.parts))

    def at(self, places: Array) -> Priced:
        """Those at some places."""
        return pick(((len(block), partial(_same, block)) for block in self.blocks()), places)


def _same(block: Priced) -> Priced:
    return block


def pick(blocks: Iterable[tuple[int, Callable[[], Priced]]], places: Array) -> Priced:
    """The plans at some places, in the order asked for, with one block in hand at a time.

    Parameters
    ----------
    blocks : iterable of (how many plans, function that gives them)
        Those that hold no such place are not asked for.
    places : array
    """
    order = np.argsort(places, kind="stable")
    found, begin = [], 0
    for size, read in blocks:
        end = begin + size
        here = places[order][np.searchsorted(places[order], begin) : np.searchsorted(places[order], end)]
        if len(here):
            found.append(read().take(here - begin))
        begin = end
    return join(found).take(np.argsort(order, kind="stable"))
