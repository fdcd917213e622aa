"""Many pipelines without their seconds: what no category changes of the ways through them, looked up once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.engines.ways import Counts, count
from sim.search.plans.columns import SCHEDULES
from sim.search.prices.facts import Facts
from sim.search.prices.sends import Middle, Sends, busiest_middle, outermost_middle

Array = np.ndarray


@dataclass(frozen=True)
class Pipelines:
    """Rows with their sends.

    blocking : sends occupy the rank that sends; elsewhere they go beside compute.
    """

    facts: Facts
    sends: Sends
    blocking: bool

    @cached_property
    def pp(self) -> Array:
        """Ranks; these three as floats, which multiply seconds faster."""
        return self.facts.columns.pp.astype(float)

    @cached_property
    def num_chunks(self) -> Array:
        """Of a rank."""
        return self.facts.columns.num_chunks.astype(float)

    @cached_property
    def num_microbatches(self) -> Array:
        """Of a step."""
        return self.facts.num_microbatches.astype(float)

    @cached_property
    def gpipe(self) -> Array:
        """Which rows are GPipe's."""
        return np.asarray(self.facts.columns.schedule == SCHEDULES.index("gpipe"))

    @cached_property
    def alone(self) -> Array:
        """Which have one rank."""
        return np.asarray(self.facts.columns.pp == 1)

    @cached_property
    def have_middle(self) -> Array:
        """Which have ranks between the first and the last."""
        return np.asarray(self.facts.columns.pp > 2)

    @cached_property
    def interleaved(self) -> Array:
        """Which have several chunks a rank."""
        return np.asarray(self.facts.columns.num_chunks > 1)

    @cached_property
    def links(self) -> Array:
        """All sends of one micro-batch one way. [s]"""
        return np.asarray(self.num_chunks * self.sends.total + (self.num_chunks - 1) * self.sends.wrap)

    @cached_property
    def first(self) -> Counts:
        """Of the first rank."""
        return self._count(np.zeros_like(self.pp))

    @cached_property
    def first_chunks(self) -> Array:
        """Of its warm forwards those on its first chunk, and of as many of its last backwards."""
        warm, visits = self.first.warm, self.pp * self.num_chunks
        return np.asarray(warm // visits * self.pp + np.minimum(warm % visits, self.pp))

    @cached_property
    def middles(self) -> list[tuple[Middle, Counts]]:
        """Of the middle ranks those that may be the slowest: see `sim.engines.closed_form`."""
        chosen = [busiest_middle(self.facts, self.sends)] if self.blocking else outermost_middle(self.facts, self.sends)
        return [(each, self._count(each.rank.astype(float))) for each in chosen]

    @cached_property
    def last(self) -> Counts:
        """Of the last rank."""
        return self._count(self.pp - 1)

    def _count(self, rank: Array) -> Counts:
        return count(self.pp, self.num_chunks, self.num_microbatches, rank)
