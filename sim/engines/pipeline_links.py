"""Many pipelines without the seconds of their stages: which links leave an NVLink domain, and what sends take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np

from sim.arrays import Bools, Ints, PlanBools, PlanFloats, PlanInts
from sim.engines.critical_paths import Counts, count
from sim.network.placement import Hops

ALIKE = 1e-12
"""Ranks are as busy as each other within this share."""


@dataclass(frozen=True, slots=True)
class Links:
    """Of many pipelines, over layouts or rows, which are the last axis.

    first, last, wrap : from rank 0 to 1, from the last but one to the last, and from the last to rank 0, leave.
    num_far : how many of the links between neighbours do.
    kinds : last middle rank both of whose links stay inside, of whose links one leaves, and both do (first axis).
    before_is_far, after_is_far : the link of each of these to the rank before, and to the one after, leaves.
    far_before : links that leave between rank 0 and each of them.
    marked_before, marked_after, marked_far : the same of the marked rank.
    """

    first: Bools
    last: Bools
    wrap: Bools
    num_far: Ints
    kinds: Ints
    before_is_far: Bools
    after_is_far: Bools
    far_before: Ints
    marked_before: Bools
    marked_after: Bools
    marked_far: Ints

    def take(self, rows: Ints) -> Links:
        """Those of some pipelines."""
        return Links(*(getattr(self, field.name)[..., rows] for field in fields(self)))


def find_links(pipelines: Sequence[tuple[Hops, int, int]]) -> Links:
    """Links of pipelines: (which of them leave an NVLink domain, ranks, a marked middle rank or 0)."""
    known = {each: _links(*each) for each in set(pipelines)}
    columns = zip(*(known[each] for each in pipelines), strict=True)
    return Links(*(np.stack(column, axis=-1) for column in columns))


@cache
def _links(hops: Hops, pp: int, marked: int) -> tuple[Any, ...]:
    """The fields of Links for one pipeline."""
    none = np.zeros(3, dtype=np.int64)
    if pp == 1:
        return (False, False, False, 0, none, none > 0, none > 0, none, False, False, 0)
    rank = np.arange(pp)
    crosses = hops.cross(rank, (rank + 1) % pp)
    far, wrap = crosses[:-1], bool(crosses[-1])
    before, after = far[:-1], far[1:]  # of the middle ranks
    kinds = none.copy()
    for kind, chosen in enumerate((~before & ~after, before != after, before & after)):
        kinds[kind] = np.flatnonzero(chosen)[-1] + 1 if chosen.any() else 0
    exists = kinds > 0
    passed = np.concatenate([[0], np.cumsum(far)])
    return (
        bool(far[0]),
        bool(far[-1]),
        wrap,
        int(far.sum()),
        kinds,
        exists & far[np.maximum(kinds - 1, 0)],
        exists & far[np.minimum(kinds, pp - 2)],
        passed[kinds],
        bool(marked and far[marked - 1]),
        bool(marked and far[marked]),
        int(passed[marked]),
    )


@dataclass(frozen=True, slots=True)
class Sends:
    """What it takes to send a micro-batch once, over plans. [s]

    near, far : to a rank of the same NVLink domain, and of another.
    first, last, wrap : between rank 0 and 1, the last rank and the one before it, the last rank and rank 0.
    total : from rank 0 to the last, link by link.
    """

    near: PlanFloats
    far: PlanFloats
    first: PlanFloats
    last: PlanFloats
    wrap: PlanFloats
    total: PlanFloats


@dataclass(frozen=True, slots=True)
class MiddleRank:
    """A middle rank of every pipeline, and the links it has. [s]

    rank : its number; 0: there is none.
    passed : from rank 0 to it.
    before, after : to the rank before it and to the one after.
    """

    rank: PlanInts
    passed: PlanFloats
    before: PlanFloats
    after: PlanFloats


def sends_over(links: Links, pp: PlanInts, near: PlanFloats, far: PlanFloats) -> Sends:
    """Sends of so long inside an NVLink domain and to another one. [s]"""
    first, last, wrap = (np.where(link, far, near) for link in (links.first, links.last, links.wrap))
    return Sends(near, far, first, last, wrap, _passed(links.num_far, pp - 1, near, far))


def _passed(num_far: Ints, num_links: Ints, near: PlanFloats, far: PlanFloats) -> PlanFloats:
    return np.asarray(num_far * far + (num_links - num_far) * near)


def busiest_middle(links: Links, sends: Sends) -> MiddleRank:
    """The last of the middle ranks that their sends occupy the longest."""
    near, far, exists = sends.near, sends.far, links.kinds > 0
    busy = np.where(exists, np.stack([near + near, near + far, far + far]), -1.0)
    ranks = np.where(busy >= busy.max(axis=0) * (1 - ALIKE), links.kinds, 0)
    kind = ranks.argmax(axis=0)[np.newaxis]
    rank, num_far, before, after = (
        np.take_along_axis(each, kind, axis=0)[0]
        for each in (links.kinds, links.far_before, links.before_is_far, links.after_is_far)
    )
    passed = _passed(num_far, rank, near, far)
    return MiddleRank(rank, passed, np.where(before, far, near), np.where(after, far, near))


def marked_middle(links: Links, sends: Sends, marked: PlanInts, others: MiddleRank) -> MiddleRank:
    """The marked ranks of pipelines that have one, and of those that have none another."""
    near, far = sends.near, sends.far
    numbers = (
        marked,
        _passed(links.marked_far, marked, near, far),
        np.where(links.marked_before, far, near),
        np.where(links.marked_after, far, near),
    )
    names = MiddleRank.__slots__
    return MiddleRank(
        *(np.where(marked > 0, own, getattr(others, name)) for name, own in zip(names, numbers, strict=True))
    )


def outermost_middle(sends: Sends, pp: PlanInts) -> tuple[MiddleRank, MiddleRank]:
    """The first and the last of the middle ranks, without the links after and before them."""
    there, none = pp > 2, np.zeros(len(pp))
    first = MiddleRank(np.where(there, 1, 0), sends.first, sends.first, none)
    return first, MiddleRank(np.where(there, pp - 2, 0), sends.total - sends.last, none, sends.last)


class Pipelines:
    """Many pipelines and their sends, without the seconds of their stages: what plans that differ in these share.

    pp, num_chunks, num_microbatches : as floats, which multiply seconds faster; arrays over plans.
    blocking : sends occupy the rank that sends; elsewhere compute overlaps them.
    longer : of pipelines of one chunk a rank, how many of the middle ranks hold a layer more: the first of them. The
        last of these is the marked one of the links.
    """

    def __init__(
        self,
        pp: PlanInts,
        num_chunks: PlanInts,
        num_microbatches: PlanInts,
        gpipe: PlanBools,
        links: Links,
        sends: Sends,
        blocking: bool,
        longer: PlanInts,
    ) -> None:
        self.longer, self.uneven = longer, bool(longer.any())
        self.pp, self.num_chunks, self.num_microbatches = (
            each.astype(float) for each in (pp, num_chunks, num_microbatches)
        )
        self.gpipe, self.links, self.sends, self.blocking = gpipe, links, sends, blocking
        self.alone, self.have_middle, self.interleaved = pp == 1, pp > 2, num_chunks > 1
        self._pp = pp

    @cached_property
    def sent(self) -> PlanFloats:
        """All sends of one micro-batch in one direction. [s]"""
        return np.asarray(self.num_chunks * self.sends.total + (self.num_chunks - 1) * self.sends.wrap)

    @cached_property
    def first(self) -> Counts:
        """Counts of the first rank."""
        return self._count(np.zeros_like(self.pp))

    @cached_property
    def first_chunks(self) -> PlanFloats:
        """Of the first rank's warm forwards those on its first chunk, and of as many of its last backwards."""
        warm, visits = self.first.warm, self.pp * self.num_chunks
        return np.asarray(warm // visits * self.pp + np.minimum(warm % visits, self.pp))

    @cached_property
    def middles(self) -> list[tuple[MiddleRank, Counts]]:
        """The middle ranks that may be the slowest: see `sim.engines.closed_form`."""
        if self.blocking:
            chosen = [busiest_middle(self.links, self.sends)]
        else:
            chosen = [*outermost_middle(self.sends, self._pp)]
        if self.uneven:  # the last of the longer ones is the busiest, where sends are overlapped after the first
            chosen[-1] = marked_middle(self.links, self.sends, self.longer, chosen[-1])
        return [(each, self._count(each.rank.astype(float))) for each in chosen]

    @cached_property
    def last(self) -> Counts:
        """Counts of the last rank."""
        return self._count(self.pp - 1)

    def _count(self, rank: PlanFloats) -> Counts:
        return count(self.pp, self.num_chunks, self.num_microbatches, rank)
