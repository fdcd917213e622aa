"""Where groups of ranks lie when the parallel dimensions are laid over the GPUs in any order: lattices of places.

Ranks are numbered with tensor parallelism fastest, then context, data, pipeline, and every kind of group is so many
ranks, so many numbers apart. The *places* of a job are its GPUs in the order its nodes fill; another order of the
dimensions deals the ranks to other places. A group is then a lattice there: so many places apart, so many times, along
one or more dimensions. Plans that cut differently often share a lattice, and with it all that follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import IntArray

RANKS = ("tp", "cp", "dp", "pp")
"""Dimensions of a rank's number, the fastest first."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Groups of one kind that share the places of a job.

    steps : (members, places apart) along each dimension, the nearest first; of groups that no lattice describes
        (size, ranks apart).
    num_gpus : places.
    dealt : of these the order of the dimensions and how many there are of each, else None.
    """

    steps: tuple[tuple[int, int], ...]
    num_gpus: int
    dealt: tuple[str, tuple[int, ...]] | None = None

    def groups(self) -> IntArray:
        """Places of every group, ascending, (groups, members)."""
        if self.dealt is not None:
            ((size, stride),) = self.steps
            places = places_of_ranks(*self.dealt).ravel()
            return np.sort(places[alike(size, stride, self.num_gpus)], axis=1)
        digits, below = [], 1
        for members, apart in self.steps:
            digits += [apart // below, members]
            below = apart * members
        places = np.arange(self.num_gpus).reshape(self.num_gpus // below, *digits[::-1])
        of_members = [axis for axis in range(places.ndim) if axis % 2]
        size = int(np.prod([members for members, _ in self.steps]))
        return np.moveaxis(places, of_members, range(-len(of_members), 0)).reshape(-1, size)


def lattice_of(size: int, stride: int, order: str, degrees: tuple[int, ...]) -> Lattice:
    """Of groups of `size` ranks whose numbers are `stride` apart.

    Parameters
    ----------
    order : str
        The dimensions from the one whose neighbours sit closest, such as "tp-pp-cp-dp".
    degrees : tuple of int
        How many of each there are, in the order of RANKS.
    """
    num_gpus = int(np.prod(degrees))
    count = dict(zip(RANKS, degrees, strict=True))
    apart, below = {}, 1
    for name in order.split("-"):
        apart[name] = below
        below *= count[name]
    steps: list[tuple[int, int]] = []
    passed, left = stride, size  # numbers below the group's, and members to come
    for here, places in _joined([(count[name], apart[name]) for name in RANKS]):
        if passed % here == 0:
            passed //= here
            continue
        if here % passed:
            left = 0
            break
        here, places, passed = here // passed, places * passed, 1
        members = min(here, left)
        if max(here, left) % members:
            left = 0
            break
        steps += [(members, places)] * (members > 1)
        left //= members
    if left != 1:
        return Lattice(((size, stride),), num_gpus, (order, degrees))
    return Lattice(tuple(_joined(sorted(steps, key=lambda step: step[1]))), num_gpus)


def _joined(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Steps of which none goes on where the one before it ends."""
    found: list[tuple[int, int]] = []
    for members, apart in steps:
        if found and found[-1][0] * found[-1][1] == apart:
            found[-1] = (found[-1][0] * members, found[-1][1])
        else:
            found.append((members, apart))
    return found


def places_of_ranks(order: str, degrees: tuple[int, ...]) -> IntArray:
    """Place of every rank, (pp, dp, cp, tp)."""
    names = order.split("-")
    count = dict(zip(RANKS, degrees, strict=True))
    # Slowest first, as NumPy counts; then the axes in the order of the result.
    places = np.arange(int(np.prod(degrees))).reshape([count[name] for name in reversed(names)])
    return places.transpose([names[::-1].index(name) for name in reversed(RANKS)])


def alike(size: int, stride: int, count: int) -> IntArray:
    """Numbers below `count` in groups of `size` that are `stride` apart and follow each other, (groups, size)."""
    return np.arange(count).reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
