"""The one loop of every search: what has the lowest bound is opened first, until no better plan can be left.

Whatever bounds a plan (the closed form, a bound of any order, the price in its own order), the loop is the same. A node
is a bound and what to do where it is the lowest: run a plan on the exact engine, or look closer at several plans, which
gives nodes with higher bounds. Once the last of the best few is no worse than the lowest bound, none that was not run
can be among them: they are proven. So a search is a list of nodes, and what it found is one record.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import Generic, TypeVar

from sim.arrays import Floats

Answer = TypeVar("Answer")

ROUNDING = 1e-9
"""Steps and scores that are less apart, as a share, are equal."""


def gap_of(worth: float, bound: float) -> float:
    """Largest share by which a plan could be better than `worth`, if none is below `bound`; 0 if none could."""
    return 0.0 if bound >= worth * (1 - ROUNDING) else 1.0 - bound / worth


@dataclass(slots=True)
class Found(Generic[Answer]):
    """What is known of some plans, at every moment of their search and after it.

    top : how many of the best are to be proven. most : plans that are run at most.
    plans : that the search is about.
    ran : score and answer of those that were run and fit.
    runs : plans that were run.
    bound : score that no plan which was not run goes below; infinite where there is none.
    """

    top: int = 1
    most: float = inf
    plans: int = 0
    ran: list[tuple[float, Answer]] = field(default_factory=list)
    runs: int = 0
    bound: float = inf

    @property
    def best(self) -> tuple[Answer, ...]:
        """The answers in order; of equals those that ran first."""
        return tuple(answer for _, answer in sorted(self.ran, key=lambda each: each[0]))

    @property
    def worst(self) -> float:
        """Score of the last of the best few; infinite where there are fewer."""
        scores = sorted(score for score, _ in self.ran)
        return scores[self.top - 1] if len(scores) >= self.top else inf

    @property
    def proven(self) -> bool:
        """Whether no plan that was not run can be among the best few."""
        return gap_of(self.worst, self.bound) == 0.0

    @property
    def gap(self) -> float:
        """Largest share by which a plan that was not run could be better than the best; 1 where none is known."""
        return gap_of(min((score for score, _ in self.ran), default=inf), self.bound)

    def record(self, ran: tuple[float, Answer] | None) -> None:
        """Count a run; None: the plan does not fit or cannot be run."""
        self.runs += 1
        self.ran += [] if ran is None else [ran]

    def with_best(self) -> Found[Answer]:
        """The record without the answers of other plans than the best few, which take memory."""
        return replace(self, ran=sorted(self.ran, key=lambda each: each[0])[: self.top])


Key = tuple[float, ...]
"""The bound of a node, then what decides between equals."""
Node = tuple[Key, Callable[[Found[Answer]], "Iterable[Node[Answer]]"] | None]
"""What is done where the bound is the lowest; None: it is the bound of plans that are not listed."""


def best_first(nodes: Iterable[Node[Answer]], found: Found[Answer]) -> Found[Answer]:
    """Open nodes until the best few are proven or as many plans as wanted were run.

    found : filled as plans are run.
    """
    number = count()
    heap = [(key, next(number), opened) for key, opened in nodes]
    heapq.heapify(heap)
    while heap:
        key, _, opened = heapq.heappop(heap)
        found.bound = key[0]
        if opened is None or found.proven or found.runs >= found.most:
            return found
        for each, further in opened(found):
            heapq.heappush(heap, (each, next(number), further))
    found.bound = inf
    return found


def in_order(bounds: Floats | Sequence[float], visit: Callable[[int, Found[Answer]], object]) -> Iterator[Node[Answer]]:
    """Yield the node of plans whose bounds rise: the first is visited, and the node of the others follows.

    visit : called with a plan's place, and the record that it fills.
    """

    def node(place: int) -> Iterator[Node[Answer]]:
        if place < len(bounds):
            yield (float(bounds[place]),), lambda found: opened(place, found)

    def opened(place: int, found: Found[Answer]) -> Iterator[Node[Answer]]:
        visit(place, found)
        return node(place + 1)

    return node(0)
