"""Which flows are on which link, and which links could hold any of them back."""

from __future__ import annotations

import numpy as np

from sim.network.flows import FloatArray, IntArray

SLACK = 1e-9
"""Relative difference that rounding may make between levels, and between a link's capacity and what is asked of it."""


class Contention:
    """Flows by link.

    A flow's limit is the rate its narrowest link allows it alone. A link is contended when the limits of its flows add
    up to more than its capacity; one that is not never holds a flow back more than the flow's limit does.
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.capacity = capacity
        self._flows: dict[int, dict[int, None]] = {}  # a dict for its order: results must not depend on hashes
        self._limits: dict[int, float] = {}  # the limits of its flows, added up
        self._claims: dict[int, float] = {}  # what its flows put on it for each unit of level

    def flows_on(self, link: int) -> list[int]:
        """Flows that use a link, in the order they came."""
        return list(self._flows.get(link, ()))

    def is_contended(self, link: int) -> bool:
        """Whether the flows on a link could together ask for more than it carries."""
        return self._limits[link] > float(self.capacity[link]) * (1 + SLACK)

    def limit(self, links: IntArray, loads: FloatArray) -> float:
        """Rate of a flow that has its links to itself. [bytes/s]"""
        return float((self.capacity[links] / loads).min()) if links.size else np.inf

    def join(self, flow: int, links: IntArray, loads: FloatArray, share: float) -> None:
        """Enter a flow on its links."""
        limit = self.limit(links, loads)
        for link, load in zip(links.tolist(), loads.tolist(), strict=True):
            self._flows.setdefault(link, {})[flow] = None
            self._limits[link] = self._limits.get(link, 0.0) + load * limit
            self._claims[link] = self._claims.get(link, 0.0) + load * share

    def leave(self, flow: int, links: IntArray, loads: FloatArray, share: float) -> tuple[dict[int, None], list[int]]:
        """Take a flow off its links: the flows it contended with, and the links that are now empty."""
        limit = self.limit(links, loads)
        rivals: dict[int, None] = {}
        empty = []
        for link, load in zip(links.tolist(), loads.tolist(), strict=True):
            if self.is_contended(link):
                rivals.update(self._flows[link])
            del self._flows[link][flow]
            if self._flows[link]:
                self._limits[link] -= load * limit
                self._claims[link] -= load * share
            else:
                # What rounding has added up to goes with the last flow.
                del self._flows[link], self._limits[link], self._claims[link]
                empty.append(link)
        rivals.pop(flow, None)
        return rivals, empty

    def least_level(self, links: IntArray) -> float:
        """A level that a flow on these links reaches at least: that of a link which all its flows fill alike."""
        if not links.size:
            return np.inf
        return float((self.capacity[links] / np.array([self._claims[link] for link in links.tolist()])).min())
