"""Many pipelines without the seconds of their stages: which links leave an NVLink domain, and what sends take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.arrays import Ints, PlanBools, PlanFloats, PlanInts
from sim.network.placement import Hops


class Sends(NamedTuple):
    """Seconds to send a micro-batch once over some of a pipeline's links, over plans. [s]

    total, passed : from rank 0 to the last, and to the middle rank that is looked at, link by link.
    first, last, wrap : between rank 0 and 1, the last rank and the one before it, the last rank and rank 0.
    before, after : from the middle rank to the one before it, and to the one after.
    """

    total: PlanFloats
    passed: PlanFloats
    first: PlanFloats
    before: PlanFloats
    after: PlanFloats
    last: PlanFloats
    wrap: PlanFloats


class Links(NamedTuple):
    """Links of many pipelines, over layouts or rows, which are the last axis.

    rank : the middle rank that is looked at, 0 where there is none: the last that holds a layer more; where none does,
        the last of those with the most links that leave an NVLink domain.
    number, far : how many links there are for each field of `Sends`, and how many of them leave a domain.
    """

    rank: Ints
    number: Ints
    far: Ints

    def take(self, rows: Ints) -> Links:
        """Return the links of some pipelines."""
        return Links(*(each[..., rows] for each in self))


def find_links(pipelines: Sequence[tuple[Hops, int, int]]) -> Links:
    """Return the links of pipelines: (which of them leave an NVLink domain, ranks, the last longer rank or 0)."""
    columns = zip(*(_links(*each) for each in pipelines), strict=True)
    return Links(*(np.stack(column, axis=-1) for column in columns))


@cache
def _links(hops: Hops, pp: int, longer: int) -> tuple[int, Ints, Ints]:
    """Return the fields of Links for one pipeline."""
    here = np.arange(pp)
    leaves = hops.cross(here, (here + 1) % pp).astype(np.int64)  # the link behind each rank
    rank = longer
    if pp > 2 and not longer:
        most = leaves[:-2] + leaves[1:-1]
        rank = 1 + int(np.flatnonzero(most == most.max())[-1])
    ends = [(0, pp - 1), (0, rank), (0, 1), (rank - 1, rank), (rank, rank + 1), (pp - 2, pp - 1), (pp - 1, pp)]
    some = [leaves[max(begin, 0) : end] for begin, end in ends]
    return rank, np.array([len(each) for each in some]), np.array([each.sum() for each in some])


def sends_over(links: Links, near: PlanFloats, far: PlanFloats) -> Sends:
    """Return sends of so many seconds inside an NVLink domain and to another one. [s]"""
    return Sends(*((links.number - links.far) * near + links.far * far))


class Pipelines(NamedTuple):
    """Many pipelines and their sends; arrays over plans.

    blocking : sends occupy the rank that sends; elsewhere compute overlaps them.
    longer : of pipelines of one chunk a rank, how many of the middle ranks hold a layer more: the first of them.
    """

    pp: PlanInts
    num_chunks: PlanInts
    num_microbatches: PlanInts
    gpipe: PlanBools
    links: Links
    sends: Sends
    blocking: bool
    longer: PlanInts
