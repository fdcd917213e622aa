"""Seconds of the pipeline sends of many plans at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.block import cut_of
from sim.costs.collectives import Fabric
from sim.costs.stage import send_seconds
from sim.engines.closed_form import ALIKE
from sim.search.prices.facts import Facts
from sim.specs import Scenario

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Sends:
    """What it takes to send a micro-batch once, over rows. [s]

    near, far : to a rank of the same NVLink domain, and of another.
    first, last, wrap : between rank 0 and 1, the last rank and the one before it, the last rank and rank 0.
    total : from rank 0 to the last, link by link.
    """

    near: Array
    far: Array
    first: Array
    last: Array
    wrap: Array
    total: Array


@dataclass(frozen=True, slots=True)
class Middle:
    """A middle rank of every row, and the links it has. [s]

    rank : its number; 0: there is none.
    passed : from rank 0 to it.
    before, after : to the rank before it and to the one after.
    """

    rank: Array
    passed: Array
    before: Array
    after: Array


def send_times(given: Scenario, facts: Facts, fabric: Fabric) -> Sends:
    """What every row sends.

    Parameters
    ----------
    given : Scenario
        As `sim.search.prices.stages.cell_scenario` makes it.
    """
    near, far = (
        np.where(facts.columns.pp > 1, seconds[facts.cell], 0.0)
        for seconds in send_seconds(given, cut_of(given), facts.cells.tensor, fabric)
    )
    return over_links(facts, near, far)


def over_links(facts: Facts, near: Array, far: Array) -> Sends:
    """Sends of so long inside an NVLink domain and to another one. [s]"""
    pp, links = facts.columns.pp, facts.links
    first, last, wrap = (np.where(link, far, near) for link in (links.first, links.last, links.wrap))
    return Sends(near, far, first, last, wrap, _along(links.num_far, pp - 1, near, far))


def _along(num_far: Array, num_links: Array, near: Array, far: Array) -> Array:
    passed: Array = num_far * far + (num_links - num_far) * near
    return passed


def busiest_middle(facts: Facts, sends: Sends) -> Middle:
    """The last of the middle ranks that their sends occupy the longest."""
    links, near, far = facts.links, sends.near, sends.far
    exists = links.kinds > 0
    busy = np.where(exists, np.stack([near + near, near + far, far + far]), -1.0)
    ranks = np.where(busy >= busy.max(axis=0) * (1 - ALIKE), links.kinds, 0)
    kind = ranks.argmax(axis=0)[np.newaxis]
    rank, num_far, before, after = (
        np.take_along_axis(each, kind, axis=0)[0]
        for each in (links.kinds, links.far_before, links.before_is_far, links.after_is_far)
    )
    return Middle(
        rank, _along(num_far, rank, near, far), np.where(before, far, near), np.where(after, far, near)
    )  # fmt: skip


def outermost_middle(facts: Facts, sends: Sends) -> tuple[Middle, Middle]:
    """The first and the last of the middle ranks, without the links after and before them."""
    pp, none = facts.columns.pp, np.zeros(len(facts.columns))
    there = pp > 2
    first = Middle(np.where(there, 1, 0), sends.first, sends.first, none)
    return first, Middle(np.where(there, pp - 2, 0), sends.total - sends.last, none, sends.last)
