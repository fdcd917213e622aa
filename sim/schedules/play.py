"""Play an order without seconds: in which sequence can its actions run?"""

from __future__ import annotations

import numpy as np

from sim.arrays import IntArray

WIDE = 12
"""Ranks from which doing all that can run at the same moment at once beats a loop over single actions."""


def play(needs: IntArray, pair_needs: IntArray | None, first: IntArray) -> tuple[IntArray, IntArray | None]:
    """Run each rank's actions in order, each when what it needs is done.

    needs, pair_needs, first : as in `Order`.

    Returns:
    sequence : the actions that can run, in an order in which they can; all of them unless the order deadlocks.
    levels : array or None. Where in it the actions end that could run at the same moment; None where there are too few
        of them.
    """
    also = np.full(len(needs), -1) if pair_needs is None else pair_needs
    if len(first) > WIDE:
        return by_levels(needs, also, first)
    return _by_ranks(needs, also, first), None


def by_levels(needs: IntArray, also: IntArray, first: IntArray) -> tuple[IntArray, IntArray]:
    """Do as `play` does, for all ranks at once: one action each, if what it needs is done."""
    position, end = first[:-1].copy(), first[1:]
    done = np.zeros(len(needs) + 2, dtype=bool)
    done[-1] = True  # what needs nothing needs number −1
    needs = np.append(needs, len(needs))  # beyond the last rank's end: never done
    pairs = bool((also >= 0).any())
    also = np.append(also, -1)
    found: list[IntArray] = []
    while True:
        ready = done[needs[position]] & (position < end)
        if pairs:
            ready &= done[also[position]]
        go = position[ready]
        if not len(go):
            break
        done[go] = True
        found.append(go)
        position += ready
    levels = np.cumsum([len(level) for level in found])
    return (np.concatenate(found) if found else np.empty(0, dtype=np.int64)), levels


def _by_ranks(needs: IntArray, also: IntArray, first: IntArray) -> IntArray:
    """Run each rank until it waits, and go on where something became ready."""
    need, pair, position, end = needs.tolist(), also.tolist(), first[:-1].tolist(), first[1:].tolist()
    done = bytearray(len(need))
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(position)))[::-1]
    sequence: list[int] = []
    while ready:
        rank = ready.pop()
        at, last = position[rank], end[rank]
        while at < last:
            blocker = need[at]
            if blocker < 0 or done[blocker]:
                blocker = pair[at]
            if blocker >= 0 and not done[blocker]:
                waiting.setdefault(blocker, []).append(rank)
                break
            done[at] = 1
            sequence.append(at)
            if at in waiting:
                ready.extend(waiting.pop(at))
            at += 1
        position[rank] = at
    return np.array(sequence, dtype=np.int64)
