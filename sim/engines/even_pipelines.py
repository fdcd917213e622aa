"""The closed form over plans: when the ranks of many pipelines end, whose layers are dealt evenly.

Such a pipeline has three kinds of rank: the first (embedding), the last (head), and those in the middle, of which the
first, rank 1, ends last and so is the one to wait for. What `sim.engines.closed_form` sums over the stages of one
pipeline is then a product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.arrays import KindPlanFloats, Number, PlanFloats, PlanInts
from sim.engines.critical_paths import NEVER, Along, Pipe, ends, gpipe_end
from sim.engines.pipeline_links import Pipelines


@dataclass(frozen=True, slots=True)
class RankEnds:
    """Ends of the first rank, rank 1 and the last (first axis), over plans. [s]

    ended : when each has ended its last action; never where there is none, or where rank 1 is the last.
    turned_after : from then until the last micro-batch has passed each on its way back at the earliest, so never above
        zero; never for GPipe.
    """

    ended: KindPlanFloats
    turned_after: KindPlanFloats

    def take(self, choices: Any) -> RankEnds:
        """Those of some choices, on the axis behind that of ranks."""
        return RankEnds(self.ended[:, choices], self.turned_after[:, choices])


@dataclass(frozen=True)
class EvenPipelines:
    """Many pipelines with the seconds of their stages: first, middle and last, and a longer middle one if any. [s]"""

    pipelines: Pipelines
    forward: KindPlanFloats
    backward: KindPlanFloats

    @cached_property
    def pipe(self) -> Pipe:
        """What all ranks share."""
        pipes = self.pipelines
        between, longer = pipes.pp * pipes.num_chunks - 2, self._longer(1, pipes.pp - 2)
        down, back = (
            np.where(pipes.alone, first, first + between * middle + longer * more + last + pipes.sent)
            for (first, middle, last, *_), more in zip((self.forward, self.backward), self._more, strict=True)
        )
        return Pipe(pipes.num_microbatches, down, back)

    @cached_property
    def _more(self) -> tuple[Number, Number]:
        """By how much a longer middle stage takes longer, forward and backward. [s]"""
        if not self.pipelines.uneven:
            return 0.0, 0.0
        return self.forward[3] - self.forward[1], self.backward[3] - self.backward[1]

    def _longer(self, first: Number, last: Number) -> Number:
        """How many of these ranks are longer middle ones."""
        if not self.pipelines.uneven:
            return 0.0
        return np.maximum(np.minimum(last, self.pipelines.longer) - np.maximum(first, 1) + 1.0, 0.0)

    @cached_property
    def second(self) -> tuple[PlanFloats, PlanFloats]:
        """Forward and backward of rank 1's stages, but where it is the last. [s]"""
        longer, (more_f, more_b) = self._longer(1, 1), self._more
        return self.forward[1] + longer * more_f, self.backward[1] + longer * more_b

    def find_ends(self) -> RankEnds:
        """When all kinds of rank end."""
        pipes, sends = self.pipelines, self.pipelines.sends
        gpipe, alone = pipes.gpipe, pipes.alone
        found = ends(self.pipe, [self._first(), *self._middle(), self._last()])
        first = np.where(alone, pipes.num_microbatches * (self.forward[0] + self.backward[0]), found.of_first())
        in_flow = self._gpipe()
        ended, turned = [np.where(gpipe, in_flow[0], first)], [np.where(gpipe, NEVER, found.turned - first)]
        others = (
            (1.0, self._after(1, sends.first, sends.first), pipes.have_middle),
            (pipes.last.rank, self._after_last, ~alone),
        )
        for (rank, later, there), flow in zip(others, in_flow[1:], strict=True):
            end = found.of(rank, later)
            ended.append(np.where(there, np.where(gpipe, flow, end), NEVER))
            turned.append(np.where(there & ~gpipe, found.turned - later - end, NEVER))
        return RankEnds(np.stack(ended), np.stack(turned))

    def _after(self, rank: PlanFloats | int, passed: PlanFloats, before: PlanFloats) -> PlanFloats:
        """From the end of a rank to that of rank 0. [s]

        Parameters
        ----------
        passed, before : links from rank 0 to it, and the last of them. [s]
        """
        links = passed - before if self.pipelines.blocking else passed
        longer = self._longer(1, rank - 1) * self._more[1]
        after: PlanFloats = links + (rank - 1) * self.backward[1] + longer + self.backward[0]
        return after

    @cached_property
    def _after_last(self) -> PlanFloats:
        sends = self.pipelines.sends
        return self._after(self.pipelines.pp - 1, sends.total, sends.last)

    def _first(self) -> Along:
        (f, f_mid, f_last, *_), (b, b_mid, b_last, *_) = self.forward, self.backward
        pipes, sends, blocking = self.pipelines, self.pipelines.sends, self.pipelines.blocking
        p, v, many, counts = pipes.pp, pipes.num_chunks, pipes.interleaved, pipes.first
        to_second, around = blocking * sends.first, blocking * sends.wrap
        warm, of_first = counts.warm, pipes.first_chunks
        least_forward, least_backward = (
            np.where(many, np.minimum(end, middle), end) for end, middle in ((f, f_mid), (b, b_mid))
        )
        both, both_mid = f + b, f_mid + b_mid + around
        longer_f, longer_b = (self._longer(1, p - 2) * more for more in self._more)
        return Along(
            counts=counts,
            busy=pipes.num_microbatches * (both + (v - 1) * both_mid + v * to_second),
            before=0.0,
            after=0.0,
            returned=(p - 2) * b_mid + longer_b + b_last + sends.total,
            left=sends.total - to_second + (p - 2) * f_mid + longer_f + f_last,
            warm_forward=of_first * f + (warm - of_first) * f_mid + warm * to_second,
            warm_backward=of_first * b + (warm - of_first) * (b_mid + around),
            lead=0.0,
            lag=0.0,
            own=np.where(many, np.maximum(both, both_mid), both) + to_second,
            cycle=None if blocking else self._cycle(least_forward, least_backward, 0, 0.0),
        )

    def _cycle(
        self, forward: PlanFloats, backward: PlanFloats, rank: PlanFloats | int, passed: PlanFloats | float
    ) -> PlanFloats:
        """Down from a rank to the last and back, at least, where sends run beside compute.  [s]

        Parameters
        ----------
        forward, backward : its own. [s]
        passed : links from rank 0 to it. [s]
        """
        between = (self.pipelines.pp - 2 - rank) * (self.forward[1] + self.backward[1])
        between = between + self._longer(rank + 1, self.pipelines.pp - 2) * sum(self._more)
        cycle: PlanFloats = forward + backward + between + self._least_last + 2 * (self.pipelines.sends.total - passed)
        return cycle

    @cached_property
    def _least_last(self) -> PlanFloats:
        """There and back of the shortest chunk of the last rank. [s]"""
        (_, f, f_last, *_), (_, b, b_last, *_) = self.forward, self.backward
        many = self.pipelines.interleaved
        least: PlanFloats = np.where(many, np.minimum(f, f_last), f_last) + np.where(
            many, np.minimum(b, b_last), b_last
        )
        return least

    def _middle(self) -> list[Along]:
        (f, f_mid, f_last, *_), (b, b_mid, b_last, *_) = self.forward, self.backward
        pipes, sends, blocking = self.pipelines, self.pipelines.sends, self.pipelines.blocking
        visits = pipes.num_microbatches * pipes.num_chunks
        found = []
        for middle, counts in pipes.middles:
            rank = counts.rank
            own_f, own_b = (
                each + self._longer(rank, rank) * more for each, more in zip((f_mid, b_mid), self._more, strict=True)
            )
            forward, backward = own_f + blocking * middle.after, own_b + blocking * middle.before
            rest, between = sends.total - middle.passed, pipes.pp - 2 - rank
            before_f = f + (rank - 1) * f_mid + self._longer(1, rank - 1) * self._more[0]
            between_f, between_b = (
                between * each + self._longer(rank + 1, pipes.pp - 2) * more
                for each, more in zip((f_mid, b_mid), self._more, strict=True)
            )
            found.append(
                Along(
                    counts=counts,
                    busy=np.where(pipes.have_middle, visits * (forward + backward), NEVER),
                    before=before_f + middle.passed,
                    after=self._after(rank, middle.passed, middle.before),
                    returned=between_b + b_last + rest,
                    left=rest - blocking * middle.after + between_f + f_last,
                    warm_forward=counts.warm * forward,
                    warm_backward=counts.warm * backward,
                    lead=f + blocking * sends.first - forward,
                    lag=b - backward,
                    own=forward + backward,
                    cycle=None if blocking else self._cycle(own_f, own_b, rank, middle.passed),
                )
            )
        return found

    def _last(self) -> Along:
        (f, f_mid, f_last, *_), (b, b_mid, b_last, *_) = self.forward, self.backward
        pipes, sends, blocking = self.pipelines, self.pipelines.sends, self.pipelines.blocking
        p, v, many, counts = pipes.pp, pipes.num_chunks, pipes.interleaved, pipes.last
        to_before = blocking * sends.last
        forward, backward = f_mid + blocking * sends.wrap, b_mid + to_before
        both, of_head = forward + backward, f_last + b_last + to_before
        warm = counts.warm - 1
        return Along(
            counts=counts,
            busy=np.where(pipes.alone, NEVER, pipes.num_microbatches * ((v - 1) * both + of_head)),
            before=f + (p - 2) * f_mid + self._longer(1, p - 2) * self._more[0] + sends.total,
            after=self._after_last,
            returned=0.0,
            left=0.0,
            warm_forward=warm * forward + f_last,
            warm_backward=warm * backward + b_last + to_before,
            lead=np.where(many, f + blocking * sends.first - forward, 0.0),
            lag=np.where(many, b - backward, 0.0),
            own=np.where(many, np.maximum(of_head, both), of_head),
            ring=None if blocking else self._ring(),
        )

    def _ring(self) -> PlanFloats:
        """Once around all ranks, from a chunk of the last to the next or the one before, at least.  [s]"""
        (f, f_mid, *_), (_, b_mid, b_last, *_) = self.forward, self.backward
        rest, sends = self.pipelines.pp - 1, self.pipelines.sends
        longer = np.maximum(np.minimum(f, f_mid) + rest * f_mid, np.minimum(b_last, b_mid) + rest * b_mid)
        ring: PlanFloats = longer + sends.total + sends.wrap
        return ring

    def _gpipe(self) -> list[PlanFloats]:
        """Ends of the kinds of rank under GPipe."""
        (f, f_mid, f_last, *_), (b, b_mid, b_last, *_) = self.forward, self.backward
        pipes, sends, blocking = self.pipelines, self.pipelines.sends, self.pipelines.blocking
        links, p = pipes.links, pipes.pp

        def longest(far_links: PlanInts, of_middle: PlanFloats, of_last: PlanFloats) -> PlanFloats:
            """Of the middle ranks, the links on one side of which are given, and the last."""
            far, near = far_links > 0, far_links < p - 2
            send = blocking * np.maximum(np.where(far, sends.far, 0.0), np.where(near, sends.near, 0.0))
            return np.where(pipes.have_middle, np.maximum(of_middle + send, of_last), of_last)

        last = b_last + blocking * sends.last
        forward = np.maximum(f + blocking * sends.first, longest(links.num_far - links.first, f_mid, f_last))
        backward = longest(links.num_far - links.last, b_mid, last)
        if pipes.uneven:
            after, before = (np.where(far, sends.far, sends.near) for far in (links.marked_after, links.marked_before))
            some = pipes.longer > 0
            forward = np.maximum(forward, np.where(some, self.forward[3] + blocking * after, 0.0))
            backward = np.maximum(backward, np.where(some, self.backward[3] + blocking * before, 0.0))
        own_send = 0.0 if blocking else sends.first  # that of rank 1 does not occupy it
        to_second = (p - 2) * b_mid + self._longer(1, p - 2) * self._more[1] + b_last + sends.total - own_send
        return [
            gpipe_end(self.pipe, forward, np.maximum(b, backward), self.pipe.back),
            gpipe_end(self.pipe, forward, backward, to_second),
            gpipe_end(self.pipe, forward, last, last),
        ]
