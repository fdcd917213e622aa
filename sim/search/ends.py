"""When the ranks of many pipelines end: `sim.engines.closed_form` over arrays.

The layers are dealt evenly, so a pipeline has three kinds of rank: the first (embedding), the last (head), and those in
the middle, of which the first, rank 1, ends last and so is the one to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.engines.ways import NEVER, Along, Pipe, ends, gpipe_end, warmup
from sim.search.columns import SCHEDULES
from sim.search.facts import Facts
from sim.search.sends import Sends, busiest_middle, outermost_middle

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class RankEnds:
    """Of the first rank, rank 1 and the last (first axis), over ways to recompute and rows. [s]

    ended : when each has ended its last action; never where there is none, or where rank 1 is the last.
    turned : when the last micro-batch has passed each on its way back at the earliest; never for GPipe.
    """

    ended: Array
    turned: Array


@dataclass(frozen=True)
class Stages:
    """Seconds of the first, a middle and the last stage of many pipelines, over stages, ways to recompute and rows.

    blocking : sends occupy the rank that sends.
    """

    facts: Facts
    forward: Array
    backward: Array
    sends: Sends
    blocking: bool

    @cached_property
    def pipe(self) -> Pipe:
        """What all ranks share."""
        columns, sends = self.facts.columns, self.sends
        p, v = columns.pp, columns.num_chunks
        links = v * sends.total + (v - 1) * sends.wrap
        down, back = (
            np.where(p == 1, first, first + (p * v - 2) * middle + last + links)
            for first, middle, last in (self.forward, self.backward)
        )
        return Pipe(p, v, self.facts.num_microbatches, down, back)

    def find_ends(self) -> RankEnds:
        """Of all kinds of rank."""
        columns, m = self.facts.columns, self.facts.num_microbatches
        p, one = columns.pp, columns.pp == 1
        found = ends(self.pipe, [self._first(), *self._middle(), self._last()])
        gpipe = columns.schedule == SCHEDULES.index("gpipe")
        first = np.where(one, m * (self.forward[0] + self.backward[0]), found.of_first())
        after = (self._after(1, self.sends.first, self.sends.first), self._after_last())
        in_flow = self._gpipe()
        ended, turned = [np.where(gpipe, in_flow[0], first)], [np.where(gpipe, NEVER, found.turned)]
        for later, rank, there, flow in zip(after, (1, p - 1), (p > 2, ~one), in_flow[1:], strict=True):
            ended.append(np.where(there, np.where(gpipe, flow, found.of(rank, later)), NEVER))
            turned.append(turned[0] - later)
        return RankEnds(np.stack(ended), np.stack(turned))

    def _after(self, rank: Array | int, passed: Array, before: Array) -> Array:
        """From the end of a rank to that of rank 0. [s]

        Parameters
        ----------
        passed, before : links from rank 0 to it, and the last of them. [s]
        """
        links = passed - before if self.blocking else passed
        after: Array = links + (rank - 1) * self.backward[1] + self.backward[0]
        return after

    def _after_last(self) -> Array:
        return self._after(self.facts.columns.pp - 1, self.sends.total, self.sends.last)

    def _first(self) -> Along:
        (f, f_mid, f_last), (b, b_mid, b_last), sends = self.forward, self.backward, self.sends
        columns = self.facts.columns
        p, v, on = columns.pp, columns.num_chunks, float(self.blocking)
        many = v > 1
        to_second, around = on * sends.first, on * sends.wrap
        warm = warmup(self.pipe, 0) + 1
        of_first = warm // (p * v) * p + np.minimum(warm % (p * v), p)
        own = np.where(many, np.maximum(f + b, f_mid + b_mid + around), f + b) + to_second
        least_forward, least_backward = (
            np.where(many, np.minimum(end, middle), end) for end, middle in ((f, f_mid), (b, b_mid))
        )
        left = sends.total - to_second + (p - 2) * f_mid + f_last
        return Along(
            rank=np.zeros_like(p),
            busy=self.facts.num_microbatches * (f + b + (v - 1) * (f_mid + b_mid + around) + v * to_second),
            before=0.0,
            after=0.0,
            returned=(p - 2) * b_mid + b_last + sends.total,
            left=left,
            warm_forward=of_first * f + (warm - of_first) * f_mid + warm * to_second,
            warm_backward=of_first * b + (warm - of_first) * (b_mid + around),
            lead=0.0,
            lag=0.0,
            own=own,
            cycle=None if self.blocking else self._cycle(least_forward, least_backward, 0, 0.0),
        )

    def _cycle(self, forward: Array, backward: Array, rank: Array | int, passed: Array | float) -> Array:
        """Down from a rank to the last and back, at least, where sends run beside compute.  [s]

        Parameters
        ----------
        forward, backward : its own. [s]
        passed : links from rank 0 to it. [s]
        """
        between = (self.facts.columns.pp - 2 - rank) * (self.forward[1] + self.backward[1])
        cycle: Array = forward + backward + between + self._least_last + 2 * (self.sends.total - passed)
        return cycle

    @cached_property
    def _least_last(self) -> Array:
        """Both ways of the shortest chunk of the last rank. [s]"""
        (_, f, f_last), (_, b, b_last) = self.forward, self.backward
        many = self.facts.columns.num_chunks > 1
        least: Array = np.where(many, np.minimum(f, f_last), f_last) + np.where(many, np.minimum(b, b_last), b_last)
        return least

    def _middle(self) -> list[Along]:
        (f, f_mid, f_last), (b, b_mid, b_last), sends = self.forward, self.backward, self.sends
        columns, m = self.facts.columns, self.facts.num_microbatches
        p, v, on = columns.pp, columns.num_chunks, float(self.blocking)
        found = []
        chosen = (busiest_middle(self.facts, sends),) if self.blocking else outermost_middle(self.facts, sends)
        for middle in chosen:
            rank = middle.rank
            forward, backward = f_mid + on * middle.after, b_mid + on * middle.before
            rest, between = sends.total - middle.passed, p - 2 - rank
            warm = warmup(self.pipe, rank) + 1
            found.append(
                Along(
                    rank=rank,
                    busy=np.where(rank > 0, m * v * (forward + backward), NEVER),
                    before=f + (rank - 1) * f_mid + middle.passed,
                    after=self._after(rank, middle.passed, middle.before),
                    returned=between * b_mid + b_last + rest,
                    left=rest - on * middle.after + between * f_mid + f_last,
                    warm_forward=warm * forward,
                    warm_backward=warm * backward,
                    lead=f + on * sends.first - forward,
                    lag=b - backward,
                    own=forward + backward,
                    cycle=None if self.blocking else self._cycle(f_mid, b_mid, rank, middle.passed),
                )
            )
        return found

    def _last(self) -> Along:
        (f, f_mid, f_last), (b, b_mid, b_last), sends = self.forward, self.backward, self.sends
        columns, m = self.facts.columns, self.facts.num_microbatches
        p, v, on = columns.pp, columns.num_chunks, float(self.blocking)
        many = v > 1
        forward, backward = f_mid + on * sends.wrap, b_mid + on * sends.last
        of_head = f_last + b_last + on * sends.last
        own = np.where(many, np.maximum(of_head, forward + backward), of_head)
        warm = (v - 1) * p
        return Along(
            rank=p - 1,
            busy=np.where(p > 1, m * ((v - 1) * (forward + backward) + of_head), NEVER),
            before=f + (p - 2) * f_mid + sends.total,
            after=self._after_last(),
            returned=0.0,
            left=0.0,
            warm_forward=warm * forward + f_last,
            warm_backward=warm * backward + b_last + on * sends.last,
            lead=np.where(many, f + on * sends.first - forward, 0.0),
            lag=np.where(many, b - backward, 0.0),
            own=own,
            ring=None if self.blocking else self._ring(),
        )

    def _ring(self) -> Array:
        """Once around all ranks, from a chunk of the last to the next or the one before, at least.  [s]"""
        (f, f_mid, _), (_, b_mid, b_last) = self.forward, self.backward
        rest = self.facts.columns.pp - 1
        longer = np.maximum(np.minimum(f, f_mid) + rest * f_mid, np.minimum(b_last, b_mid) + rest * b_mid)
        ring: Array = longer + self.sends.total + self.sends.wrap
        return ring

    def _gpipe(self) -> list[Array]:
        """Ends of the kinds of rank under GPipe."""
        (f, f_mid, f_last), (b, b_mid, b_last), sends = self.forward, self.backward, self.sends
        links, p, on = self.facts.links, self.facts.columns.pp, float(self.blocking)

        def longest(far_links: Array, of_middle: Array, of_last: Array) -> Array:
            """Of the middle ranks, the links on one side of which are given, and the last."""
            far, near = far_links > 0, far_links < p - 2
            send = on * np.maximum(np.where(far, sends.far, 0.0), np.where(near, sends.near, 0.0))
            return np.where(p > 2, np.maximum(of_middle + send, of_last), of_last)

        last = b_last + on * sends.last
        forward = np.maximum(f + on * sends.first, longest(links.num_far - links.first, f_mid, f_last))
        backward = longest(links.num_far - links.last, b_mid, last)
        own_send = 0.0 if self.blocking else sends.first  # that of rank 1 does not occupy it
        to_second = (p - 2) * b_mid + b_last + sends.total - own_send
        return [
            gpipe_end(self.pipe, forward, np.maximum(b, backward), self.pipe.back),
            gpipe_end(self.pipe, forward, backward, to_second),
            gpipe_end(self.pipe, forward, last, last),
        ]
