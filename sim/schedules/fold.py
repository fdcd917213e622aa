"""The part of an order that repeats, found and left out: what remains stands for any number of micro-batches.

Most orders are periodic: with `period` more micro-batches every rank does the same, and in its steady state one block
of actions more. Where the blocks before a cut have been seen to take equally long, as a max-plus linear system does
after a transient [1]_, so will any further ones; a step of a million micro-batches is then timed from a few hundred,
exactly.

.. [1] Baccelli, Cohen, Olsder, Quadrat 1992, "Synchronization and linearity", theorem 3.112 (cyclicity).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.schedules.actions import PAIRED, F, Row

ROUNDING = 1e-11
"""Share of the time since the step began below which differences are rounding."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A block of actions on every rank that would stand `times` more before its cut.

    period : micro-batches of a block.
    cuts : flat index of each rank's first action after the fold.
    lengths : actions of a block on each rank.
    seen : blocks before the cuts that are in the arrays.
    depth : blocks before its own back to which the needs of a block, and of what follows the cut, reach.
    kept : micro-batches in the arrays.
    rebuild : micro-batches -> the order with so many of them in its arrays.
    endless : a block is a whole batch, and batches follow each other without a flush.
    """

    period: int
    times: int
    cuts: Array
    lengths: Array
    seen: int
    depth: int
    kept: int
    rebuild: Callable[[int], Any]
    endless: bool = False

    def unfold(self) -> Any:
        """The order with everything in its arrays."""
        return self.rebuild(self.kept + self.times * self.period)

    def block(self, back: int) -> Array:
        """Flat indices of the block `back` blocks before the last one seen, rank by rank."""
        begins, before = self.cuts - (back + 1) * self.lengths, np.cumsum(self.lengths) - self.lengths
        return np.asarray(np.arange(self.lengths.sum()) + np.repeat(begins - before, self.lengths))


def find_fold(fewer: Sequence[Row], more: Sequence[Row], period: int) -> tuple[Array, Array, int] | None:
    """(cut in each row of `more`, length of a block, blocks seen before the cuts), or None where nothing repeats.

    Parameters
    ----------
    fewer, more : rows of the same schedule, the latter with `period` more micro-batches
    """
    cuts, lengths = np.zeros(len(more), dtype=np.int64), np.zeros(len(more), dtype=np.int64)
    seen = []
    for rank, (short, long) in enumerate(zip(fewer, more, strict=True)):
        block = len(long) - len(short)
        differs = (short != long[: len(short)]).any(axis=1)
        at = int(differs.argmax()) if differs.any() else len(short)
        later = long[at + block :] - short[at:]
        if block <= 0 or (later[:, :2] != 0).any() or (later[:, 2] != period).any():
            return None
        cuts[rank], lengths[rank] = at + block, block
        seen.append(_repeats(long[: at + block], block, period))
    if any(_ends_before(int(cut), row) for cut, row in zip(cuts, more, strict=True)):
        return cuts - lengths, lengths, min(seen) - 1
    return cuts, lengths, min(seen)


def align(needs: Sequence[Array], rank: Array, cuts: Array, lengths: Array, seen: int) -> tuple[Array, int, int] | None:
    """Move cuts back by whole blocks until no block needs what comes after it.

    Parameters
    ----------
    needs : arrays over actions; more than one where actions have several needs
    cuts : flat indices

    Returns
    -------
    (cuts, blocks seen, depth) or None
        The depth is how many blocks before its own an action of the last block needs, or one after the cut.
    """
    cuts = cuts.copy()
    places = [np.flatnonzero(need >= 0) for need in needs]
    place = np.concatenate(places)
    needed = np.concatenate([need[here] for need, here in zip(needs, places, strict=True)])
    home, there = rank[place], rank[needed]
    for left in range(seen, 0, -1):
        ahead, behind = place - cuts[home], cuts[there] - 1 - needed  # not negative: after the cut; before it
        in_block = (ahead < 0) & (ahead >= -lengths[home])
        early = in_block & (behind < 0)
        if not early.any():
            back = np.maximum(behind, 0) // lengths[there]
            after = (ahead >= 0) & (behind >= 0)
            return cuts, left, int(max(back[in_block].max(initial=0), back[after].max(initial=-1) + 1, 1))
        cuts[np.unique(home[early])] -= lengths[np.unique(home[early])]
    return None


def _ends_before(cut: int, row: Row) -> bool:
    """Whether something of a row is over before the cut: all of it, or the gradients of one of its stages.

    The step ends with what follows the cut, reductions of gradients beside it.
    """
    code, gradients = row[:, 0] * 2 * PAIRED + row[:, 1], row[:, 1] != F
    whole, left = (set(code[begin:][gradients[begin:]].tolist()) for begin in (0, cut))
    return cut == len(row) or not whole <= left


def _repeats(row: Row, block: int, period: int) -> int:
    """How many blocks at the end of a row are each the one before, `period` micro-batches on."""
    step = row[block:] - row[:-block]
    same = (step[:, 0] == 0) & (step[:, 1] == 0) & (step[:, 2] == period)
    tail = len(same) if same.all() else int(same[::-1].argmin())
    return tail // block + 1
