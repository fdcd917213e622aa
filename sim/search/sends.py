"""Seconds of the pipeline sends of many plans at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.costs.block import cut_of
from sim.costs.collectives import Fabric
from sim.costs.stage import send_seconds
from sim.search.facts import Facts
from sim.specs import Scenario

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Sends:
    """Of one micro-batch over all chunks, by rank; and of one backward send. Arrays over rows. [s]

    first, worst_middle, last : what the rank's own sends take.
    total : of all ranks.
    back_near, back_far, back_wrap, back_last : to the rank before inside a domain, to one in another, from the first to
        the last rank, and from the last to the one before it.
    """

    first: Array
    worst_middle: Array
    last: Array
    total: Array
    back_near: Array
    back_far: Array
    back_wrap: Array
    back_last: Array


def send_times(given: Scenario, facts: Facts, fabric: Fabric) -> Sends:
    """What every row sends.

    Parameters
    ----------
    given : Scenario
        As `sim.search.stages.cell_scenario` makes it.
    """
    columns, links = facts.columns, facts.crossings
    near, far = (
        np.where(columns.pp > 1, seconds[facts.cell], 0.0)
        for seconds in send_seconds(given, cut_of(given), facts.cells.tensor, fabric)
    )
    to_second, to_last, wrap = (np.where(link, far, near) for link in (links.first, links.last, links.wrap))
    v = columns.num_chunks
    pairs = ((links.near_near, near + near), (links.mixed, near + far), (links.far_far, far + far))
    middle = np.stack([np.where(exists, seconds, 0.0) for exists, seconds in pairs]).max(axis=0)
    inner = links.inner_far * far + (columns.pp - 1 - links.inner_far) * near
    around = (v - 1) * wrap
    return Sends(
        first=v * to_second + around,
        worst_middle=v * middle,
        last=v * to_last + around,
        total=2 * (v * inner + around),
        back_near=near,
        back_far=far,
        back_wrap=wrap,
        back_last=to_last,
    )
