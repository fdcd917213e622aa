"""Lower bounds of when ranks end, for many pipelines whose layers are dealt evenly: no action is visited.

A step takes as long as the longest path through its actions, where each waits for the one before it on its rank and for
what it is sent. Any path is a lower bound. Those along one busy rank are nearly always among the longest: entered
straight from rank 0, or after the first micro-batch has gone down all stages and come back; and left straight to rank
0, or before the last micro-batch goes down and comes back. With m micro-batches, t_F and t_B the seconds of a
micro-batch on each of p uniform ranks, and v chunks a rank, these are (m + (p − 1) / v)(t_F + t_B), exactly the step
[1]_.

Such a pipeline has three kinds of rank: the first (embedding), the last (head), and those in the middle. Paths follow
the first, the last and one in between (`Links.rank`).

.. [1] Narayanan et al. 2021, arXiv:2104.04473, section 2.2: bubble (p − 1)(t_F + t_B) / v.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.arrays import Ints, KindPlanFloats, Number, PlanBools, PlanFloats, PlanInts
from sim.network.placement import Hops
from sim.pricing.stages import StageSeconds


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


NEVER = -np.inf
"""End of a path that does not exist."""
FORWARD, BACKWARD = range(2)


class Through(NamedTuple):
    """The longest paths along one rank, over plans; both end when rank 0's last action does. [s]

    straight : the one that leaves the rank at its last action.
    beside_first : the same one, if it ends with rank 0's last backwards where these take longer than the rank's own.
    turned : the one that comes back through all stages, and so through every rank's last action.
    after : from the rank's last action to that of rank 0's.
    outer : forward and backward of a micro-batch on its outermost chunk, with the sends that occupy it.
    """

    straight: Number
    beside_first: Number
    turned: Number
    after: Number
    outer: tuple[PlanFloats, PlanFloats]


class EvenPipelines(NamedTuple):
    """Many pipelines; arrays over plans, and (kinds of stages, plans).

    blocking : sends occupy the rank that sends; elsewhere compute overlaps them.
    longer : of pipelines of one chunk a rank, how many of the middle ranks hold a layer more: the first of them.
    forward, backward : a micro-batch on the first, a middle and the last stage, and a longer middle one if any. [s]
    """

    pp: PlanInts
    num_chunks: PlanInts
    num_microbatches: PlanInts
    gpipe: PlanBools
    links: Links
    sends: Sends
    blocking: bool
    longer: PlanInts
    forward: KindPlanFloats
    backward: KindPlanFloats

    def find_ends(self) -> KindPlanFloats:
        """Return when the first rank, rank 1 and the last end at the earliest; NEVER where there is none. [s]"""
        down, back = (self._all_stages(way) for way in (FORWARD, BACKWARD))
        gpipe, rest, ranks = self.gpipe, self.num_microbatches - 1, [self._through(kind) for kind in range(3)]
        exists = self.pp > 0, self.pp > 2, self.pp > 1

        def longest(of_ranks: Iterable[PlanFloats]) -> PlanFloats:
            there = zip(of_ranks, exists, strict=True)
            return np.asarray(np.maximum.reduce([np.where(exist, each, NEVER) for each, exist in there]))

        # Forwards and backwards of GPipe are two flow shops, one after the other.
        flow = down + back + rest * longest(each.outer[FORWARD] for each in ranks)
        latest, found = np.where(gpipe, NEVER, longest(each.turned for each in ranks)), []
        afters = 0.0, self.backward[0] + (not self.blocking) * self.sends.first, ranks[2].after
        for kind in (2, 1, 0):
            straight = np.where(gpipe, flow + rest * ranks[kind].outer[BACKWARD], ranks[kind].straight)
            latest = np.where(exists[kind], np.maximum(latest, straight), latest)
            found.append(np.where(exists[kind], latest - afters[kind], NEVER))
        found[-1] = np.maximum(found[-1], np.where(gpipe, NEVER, longest(each.beside_first for each in ranks)))
        found[-1] = np.where(self.pp == 1, self.num_microbatches * (down + back), found[-1])
        return np.stack(found[::-1])

    def reductions_after_end(self, once: StageSeconds, ends_at: KindPlanFloats) -> KindPlanFloats:
        """Return when reductions beside backwards are done at the earliest, after the rank is: first, rank 1, last. [s]

        That of a rank's first chunk goes on beside its last backward. Those of all its chunks begin with the last
        backward of its last chunk, before which the rank has done all but the last (v − 1) p + 1 backwards.

        ends_at : what `find_ends` returned.
        """
        sends, (p, v, m, *_) = self.sends, self
        one, layer, after = v == 1, once.params[1] / v, []  # of a chunk in the middle of the model
        entered = 0.0, self.forward[0] + sends.first, self._others(FORWARD, 0, p - 1) + sends.total
        beside = (sends.wrap, sends.first), (sends.first, np.zeros(1)), (sends.last, sends.wrap)
        for rank, (before, beyond) in enumerate(beside):
            forward, backward = self._chunks(FORWARD, rank, 1, beyond), self._chunks(BACKWARD, rank, 1, before)
            share = layer / np.maximum(once.params[rank], 1.0)
            if rank == 0:  # its first chunk has the embedding
                share = 1.0 - (v - 1) * share
            own = once.reduce_s[rank] * np.where(one, 1.0, share)
            last = np.where(one, backward[1], backward[0 if rank else 1])
            of_first = np.maximum(own - last, np.minimum(once.reduce_tail_s[rank], own))
            busy = m * sum((v - 1) * each + outer for each, outer in (forward, backward))
            outermost = np.where(one | (rank > 0), 1, p)
            left = ((v - 1) * p + 1 - outermost) * backward[0] + outermost * backward[1]
            after.append(np.maximum(of_first, entered[rank] + busy - left + once.reduce_s[rank] - ends_at[rank]))
        return np.stack(after)

    def gather_windows(self) -> KindPlanFloats:
        """Return forward seconds of first, middle and last rank before the last gathered weights are needed. [s]

        The window of `Program.gather_s` for these schedules: pp micro-batches through every chunk but the last, one
        through that.
        """
        pp, v, one = self.pp, self.num_chunks, self.num_chunks == 1
        first, middle, last = self.forward[:3]
        of_first = np.where(one, first, pp * (first + (v - 2) * middle) + middle)
        of_second = np.where(one, self._middle(FORWARD, 1, 1), (pp * (v - 1) + 1) * middle)
        of_last = np.where(one, last, pp * (v - 1) * middle + last)
        return np.stack([of_first, of_second, of_last])

    def passes(self, way: int) -> KindPlanFloats:
        """Return the forwards or the backwards of the kinds of stages. [s]"""
        return self.backward if way else self.forward

    def _longer(self, way: int, first: Number, last: Number) -> Number:
        """What longer stages add to these ranks. [s]"""
        seconds = self.passes(way)
        if len(seconds) < 4:
            return 0.0
        number = np.maximum(np.minimum(last, self.longer) - np.maximum(first, 1) + 1, 0)
        return number * (seconds[3] - seconds[1])

    def _middle(self, way: int, first: Number, last: Number) -> PlanFloats:
        """One micro-batch through one chunk of each of these middle ranks. [s]"""
        return np.asarray((last - first + 1) * self.passes(way)[1] + self._longer(way, first, last))

    def _others(self, way: int, end: int, rank: Number) -> PlanFloats:
        """One micro-batch through one chunk of each of the ranks before one (end 0), or of those behind it (2). [s]"""
        first, last = (1, rank - 1) if end == 0 else (rank + 1, self.pp - 2)
        return np.asarray(self.passes(way)[end] + self._middle(way, first, last))

    def _all_stages(self, way: int) -> PlanFloats:
        """One micro-batch through all stages, sends included. [s]"""
        first, middle, last, *_ = self.passes(way)
        sent = self.num_chunks * self.sends.total + (self.num_chunks - 1) * self.sends.wrap
        between = (self.pp * self.num_chunks - 2) * middle + self._longer(way, 1, self.pp - 2)
        return np.asarray(np.where(self.pp == 1, first, first + between + last + sent))

    def _chunks(self, way: int, kind: int, rank: Number, send: PlanFloats) -> tuple[PlanFloats, PlanFloats]:
        """What a micro-batch occupies a rank for, on a chunk in the middle of the model and on its outermost. [s]"""
        sent = self.blocking * send
        each = (self._middle(way, rank, rank) if kind == 1 else self.passes(way)[1]) + sent
        # The first stage sends nothing back, and the last nothing on.
        ends = kind == (2 if way == FORWARD else 0)
        return each, each if kind == 1 else self.passes(way)[kind] + sent * (not ends)

    def _through(self, kind: int) -> Through:
        """Paths along the first rank, the middle one or the last; of no meaning where there is none."""
        sends, (p, v, m, *_) = self.sends, self
        rank, passed, before, after = (
            (0, 0.0, sends.wrap, sends.first),
            (self.links.rank, sends.passed, sends.before, sends.after),
            (p - 1, sends.total, sends.last, sends.wrap),
        )[kind]
        behind = p - 1 - rank
        warm = np.where(v > 1, 2 * behind + (v - 1) * p, behind) + 1  # its forwards up to the first backward
        # Of these, those on its outermost chunk; of as many of its last backwards, too.
        outermost = warm // (p * v) * p + np.minimum(warm % (p * v), p) if kind == 0 else 1
        chunks = self._chunks(FORWARD, kind, rank, after), self._chunks(BACKWARD, kind, rank, before)
        begins, ends = (warm * each + outermost * (outer - each) for each, outer in chunks)
        busy = m * sum((v - 1) * each + outer for each, outer in chunks)
        enter, leave, returned, left, lag = [np.zeros(1)] * 5
        if kind > 0:
            # All ranks do so many forwards before any backward, and backwards after any forward: rank 0 may be longer.
            alike = np.minimum(np.where(v > 1, p - 1, behind), m * v - 1)
            lead = self.forward[0] + self.blocking * sends.first - chunks[FORWARD][0]
            lag = alike * np.maximum(self.backward[0] - chunks[BACKWARD][0], 0.0)
            enter = self._others(FORWARD, 0, rank) + passed + alike * np.maximum(lead, 0.0)
            leave = self._others(BACKWARD, 0, rank) + passed - self.blocking * before
        if kind < 2:
            returned = self._others(BACKWARD, 2, rank) + sends.total - passed
            left = self._others(FORWARD, 2, rank) + sends.total - passed - self.blocking * after
        turns = np.where(warm <= m * v, 0.0, NEVER)  # a backward comes before its last forward
        twice = np.where((behind == 0) | (warm < m * v), 0.0, NEVER)  # and a forward between it and the next
        down, back = (self._all_stages(way) for way in (FORWARD, BACKWARD))
        returns, last_down = down + returned - begins + turns, back + left - ends + turns
        straight = busy + np.maximum(enter, returns) + leave
        return Through(
            straight,
            straight + lag,
            busy + np.maximum(enter, returns + twice) + last_down,
            leave,
            (chunks[FORWARD][1], chunks[BACKWARD][1]),
        )
