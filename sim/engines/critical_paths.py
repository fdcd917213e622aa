"""The longest paths through a step of GPipe, 1F1B and interleaved 1F1B, put together from sums: no action is visited.

A step takes as long as the longest path through its actions, where each waits for the one before it on its rank and for
what it is sent. Any path is a lower bound, and a few kinds of them are nearly always among the longest: along one rank
from its first action to its last, begun and ended straight from and to rank 0, or after the first micro-batch has gone
down all stages and come back, and before the last one does. Numbers or arrays over plans throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.arrays import Number

NEVER = -np.inf
"""End of a path that does not exist."""


@dataclass(frozen=True, slots=True)
class Pipe:
    """What all ranks of a pipeline share.

    num_microbatches : of a step.
    down, back : one micro-batch forward through all stages, and back. [s]
    """

    num_microbatches: Number
    down: Number
    back: Number


@dataclass(frozen=True, slots=True)
class Counts:
    """How often paths along a rank go where: what the sizes of a pipeline say of 1F1B and interleaved 1F1B.

    rank : its number.
    warm : its forwards up to the first backward; of its backwards as many follow the last forward.
    early : of its forwards those that all ranks do before any backward, so that it follows rank 0 through them.
    returns, turns_twice : 0 where a backward comes before its last forward, and where a forward lies between it and the
        backward that follows the last forward; NEVER elsewhere.
    cycles, per_cycle : how often a micro-batch may go from it to the last rank and back between these, and how many of
        its chunks there and back that takes the place of.
    rings : how often paths may go round all ranks, from one of its chunks to the next.
    """

    rank: Number
    warm: Number
    early: Number
    returns: Number
    turns_twice: Number
    cycles: Number
    per_cycle: Number
    rings: Number


@dataclass(frozen=True, slots=True)
class Along:
    """What paths along a rank are made of. [s]

    counts : of it.
    busy : all its actions, with the sends that occupy it.
    before, after : from the begin of the step to its first action, and from the end of its last to that of rank 0's.
    returned, left : from the last rank back up to it, and from it down to the last rank, on the last chunk.
    warm_forward, warm_backward : its forwards up to the first backward, and its backwards from the last forward on.
    lead, lag : by how much rank 0 is longer on its first chunk, forward and backward.
    own : one of its chunks there and back, at most.
    cycle : a micro-batch down from it to the last rank and back, at least; None where sends occupy the ranks: then
        staying on the busiest rank is never shorter.
    ring : the same of the last rank, from one of its chunks to the next and so through all ranks; None for other ranks.
    """

    counts: Counts
    busy: Number
    before: Number
    after: Number
    returned: Number
    left: Number
    warm_forward: Number
    warm_backward: Number
    lead: Number
    lag: Number
    own: Number
    cycle: Number | None = None
    ring: Number | None = None


@dataclass(frozen=True, slots=True)
class PathEnds:
    """Ends of the critical paths, all at rank 0's last action. [s]

    ranks, straight : of the ranks looked at, their numbers, and the longest path that leaves each at its last action.
    turned : the longest that comes back through all stages, and so through every rank's last action.
    first : the longest that ends along rank 0.
    """

    ranks: Sequence[Number]
    straight: Sequence[Number]
    turned: Number
    first: Number

    def of_first(self) -> Number:
        """When rank 0 ends at the earliest.  [s]"""
        return np.maximum(_longest(self.straight), np.maximum(self.turned, self.first))

    def of(self, rank: Number, after: Number) -> Number:
        """When another rank ends at the earliest, `after` seconds before rank 0 if that waits for it alone.  [s]"""
        behind = zip(self.ranks[1:], self.straight[1:], strict=True)
        paths = [np.where(np.asarray(other) >= rank, path, NEVER) for other, path in behind]
        return _longest([self.turned, *paths]) - after


def count(num_ranks: Number, num_chunks: Number, num_microbatches: Number, rank: Number) -> Counts:
    """Of a rank under 1F1B and interleaved 1F1B."""
    p, v, visits = num_ranks, num_chunks, num_microbatches * num_chunks
    behind, interleaved = p - 1 - rank, np.asarray(v) > 1
    before = np.where(
        interleaved, 2 * behind + (v - 1) * p, behind
    )  # its forwards before that which a backward follows
    twice = (np.asarray(behind) == 0) | (before + 2 <= visits)
    per_cycle = np.where(interleaved, 2 * behind + 1, behind + 1)
    return Counts(
        rank=rank,
        warm=before + 1,
        early=np.minimum(np.where(interleaved, p - 1, before), visits - 1),
        returns=np.where(before < visits, 0.0, NEVER),
        turns_twice=np.where(twice, 0.0, NEVER),
        cycles=np.maximum(visits - 2 - before, 0) // per_cycle,
        per_cycle=per_cycle,
        rings=(num_microbatches // p - 1) * (v - 1),
    )


def ends(pipe: Pipe, ranks: Sequence[Along]) -> PathEnds:
    """The longest paths of 1F1B and interleaved 1F1B along some ranks, rank 0 first and the last at the end."""
    straight, turned, first = [], [], []
    for each in ranks:
        own = each.counts
        # Where rank 0 is longer, the first path follows it through forwards that all ranks do before any backward.
        enter = each.before + own.early * np.maximum(each.lead, 0.0)
        back = pipe.down + (each.returned + own.returns) - each.warm_forward
        leave = pipe.back + (each.left + own.returns) - each.warm_backward
        twice = back + own.turns_twice
        if each.cycle is not None:  # where sends are long, going down and back beats staying on the rank
            twice = twice + own.cycles * np.maximum(each.cycle - own.per_cycle * each.own, 0.0)
        if each.ring is not None:
            twice = twice + own.rings * np.maximum(each.ring - (own.rank + 1) * each.own, 0.0)
        straight.append(each.busy + np.maximum(enter, back) + each.after)
        turned.append(each.busy + leave + np.maximum(enter, twice))
        first.append(straight[-1] + own.early * np.maximum(each.lag, 0.0))
    return PathEnds([each.counts.rank for each in ranks], straight, _longest(turned), _longest(first))


def gpipe_end(pipe: Pipe, longest_forward: Number, longest_backward: Number, back: Number) -> Number:
    """When a rank of GPipe ends at the earliest.  [s]

    Forwards and backwards are two flow shops, one after the other, so for rank 0 the bound is the time.

    Parameters
    ----------
    longest_forward : of all ranks, one micro-batch. [s]
    longest_backward : of the rank and those behind it. [s]
    back : one micro-batch from the last rank back through the rank. [s]
    """
    rest = pipe.num_microbatches - 1
    end: Number = pipe.down + rest * longest_forward + back + rest * longest_backward
    return end


def _longest(paths: Sequence[Number]) -> Number:
    longest = paths[0]
    for path in paths[1:]:
        longest = np.maximum(longest, path)
    return longest
