"""A batch in expectation: how many responses run, how far they are, and how many groups are done, cell by cell.

Responses that begin within the same cell of tokens are a cohort: of n that began together n S(age) still run. What runs
on a replica and how long its sequences are sets the time of a step of decoding; what ends makes room for what waits.
Numbers of responses are means and need not be whole, so that a few hundred cells tell what thousands of responses do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from math import sqrt
from statistics import NormalDist

import numpy as np

from sim.arrays import Floats
from sim.rl.rollout import RolloutPool
from sim.rl.samples import Samples

EULER_GAMMA = 0.5772156649015329
LAST = float(np.exp(-EULER_GAMMA))
"""Groups that are not done on average when the last one will be: where lengths fall off exponentially, the largest of n
is at ln n + γ on average, and n exp(−(ln n + γ)) are beyond it (Gumbel)."""
WAVES = 4.0
"""Times that a batch fills the slots beyond which cells grow with them."""
LEAST_CELLS, COARSEST = 32, 8
"""Cells at least; and where a batch fills the slots so often (MANY) that a cell is a small part of it all the same."""
MANY = 64.0


class Replica:
    """One replica of the pool, in expectation.

    now : seconds since it began. [s]
    waiting : responses that may begin and have no slot yet.
    ready : groups that are done, over those of a batch.
    """

    def __init__(self, pool: RolloutPool, samples: Samples) -> None:
        lengths = samples.lengths
        self.share = samples.written / pool.replicas
        self.slots = pool.running(samples, together=True)
        waves = self.share * lengths.mean / (min(self.slots, self.share) * lengths.longest)
        least = int(max(COARSEST, LEAST_CELLS * min(1.0, MANY / waves)))
        cells = max(least, int(len(lengths.survival) / max(1.0, waves * lengths.longest / lengths.mean / WAVES)))
        self.cell = lengths.longest / cells
        edges = lengths.beyond(np.arange(cells + 1, dtype=float) * self.cell)
        middles = (np.arange(cells) + 0.5) * self.cell
        self._cells = cells
        surviving = 0.5 * (edges[:-1] + edges[1:])
        # Newest last, as cohorts are kept.
        self._left = np.ascontiguousarray(edges[1:][::-1])
        self._going = np.ascontiguousarray(np.append(surviving[1:], 0.0)[::-1])
        self._first = float(surviving[0])
        self._surviving = np.ascontiguousarray(surviving[::-1])
        self._tokens = np.ascontiguousarray((surviving * (samples.prompt_tokens + middles))[::-1])
        self._done = np.ascontiguousarray(((1.0 - edges[1:]) ** samples.group)[::-1])
        self._step_s = tabulated(pool, samples, self.slots)
        self._prefill_s = pool.prefill_s(samples) / self.share
        self._begun = np.zeros(16 * cells)
        self._count = cells
        self.now = 0.0
        self.waiting = 0.0
        self.running = 0.0
        self.ready = 0.0
        self._old = 0.0

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing waits."""
        return self.waiting < 1e-9 and self.running < 1e-9

    def advance(self) -> None:
        """Decode one cell of tokens: let begin what there is room for, and every running response grow."""
        if self._count == len(self._begun):
            kept = self._begun[-self._cells :]
            self._begun[: self._cells], self._count = kept.copy(), self._cells
            self._begun[self._cells :] = 0.0
        last, cells = self._count, self._cells
        # A slot that becomes free within the cell is taken within it: the mean number over the cell fills the slots.
        going = float(self._begun[last - cells : last] @ self._going)
        begin = min(self.waiting, max(self.slots - going, 0.0) / self._first)
        self.waiting -= begin
        self._begun[last] = begin
        self._count += 1
        window = self._begun[last + 1 - cells : last + 1]
        self._old += float(self._begun[last - cells])
        running = float(window @ self._surviving)
        context = float(window @ self._tokens) / max(running, 1e-12)
        seconds = self.cell * self._step_s(running, context) + begin * self._prefill_s
        self.now += seconds
        self.running = float(window @ self._left)
        self.ready = (self._old + float(window @ self._done)) / self.share


def tabulated(pool: RolloutPool, samples: Samples, slots: float) -> Callable[[float, float], float]:
    """Seconds of a step of decoding by sequences and their tokens, between the points of a table."""
    most = max(slots, 2.0)
    numbers = np.unique(np.concatenate([[1.0], np.geomspace(1.0, most, 40)]))
    longest = samples.longest_tokens
    contexts = np.linspace(0.0, longest, 33)
    table: Floats = np.asarray(pool.engine.decode_s(numbers[:, None], contexts[None, :]))
    rows: list[list[float]] = table.tolist()
    places: list[float] = numbers.tolist()
    apart, last = longest / 32, len(places) - 2

    def step_s(running: float, context: float) -> float:
        running = min(max(running, 1.0), most)
        row = min(max(bisect_right(places, running) - 1, 0), last)
        up = (running - places[row]) / (places[row + 1] - places[row])
        along = min(max(context / apart, 0.0), 31.999999)
        column = int(along)
        along -= column
        low, high = rows[row], rows[row + 1]
        first = low[column] + along * (low[column + 1] - low[column])
        second = high[column] + along * (high[column + 1] - high[column])
        return first + up * (second - first)

    return step_s


def batch_time(pool: RolloutPool, samples: Samples) -> float:
    """How long the pool takes for one batch, from its first token to its last, all begun with the same weights.  [s]

    The slowest replica sets the pace, with at least one response running: by luck it has more to write than the others,
    as the largest of so many sums of random lengths (the mean of the largest of n normal numbers by Blom 1958).
    """
    pool.require_cache(samples)
    replica = Replica(pool, samples)
    lengths = samples.lengths
    deviation = sqrt(max(lengths.mean_square / lengths.mean**2 - 1.0, 0.0) / replica.share)
    most = NormalDist().inv_cdf((pool.replicas - 0.375) / (pool.replicas + 0.25))
    replica.waiting = replica.share * (1.0 + most * deviation)
    before, at = 0.0, 0.0
    wanted = replica.waiting / replica.share * (1.0 - LAST / samples.written_groups)
    while replica.ready < wanted and not replica.idle:
        before, at = replica.ready, replica.now
        replica.advance()
    return _crossed(wanted, before, at, replica)


def _crossed(wanted: float, before: float, at: float, replica: Replica) -> float:
    """When so many groups were ready, within the last cell.  [s]"""
    gained = replica.ready - before
    part = min(max((wanted - before) / gained, 0.0), 1.0) if gained > 0 else 1.0
    return at + part * (replica.now - at)
