"""Play an order without seconds: in which sequence can its actions run?"""

from __future__ import annotations

import numpy as np

from sim.arrays import IntArray


def by_levels(needs: IntArray, also: IntArray, first: IntArray) -> tuple[IntArray, IntArray]:
    """Run each rank's actions in order, each when what it needs is done: for all ranks at once, one action each.

    needs, also, first : as needs, pair_needs and first in `Order`.

    Returns the actions that can run, in an order in which they can (all of them unless the order deadlocks), and where
    in it those end that could run at the same moment.
    """
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
