"""Peak memory of many plans at once, by the same functions that say it of one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from sim.schedules.actions import F
from sim.schedules.interleaved import interleaved
from sim.schedules.passes import ALIVE
from sim.search.facts import Facts
from sim.search.price import Held
from sim.search.space import SCHEDULES, dealt_layers
from sim.specs import Scenario
from sim.work.layers import Cut
from sim.work.memory import memory_of, stage_activation_bytes
from sim.work.stages import Stage

Array = np.ndarray
_ROUNDS = 4
"""Rounds of pp micro-batches after which an interleaved order keeps no more than before."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Chunks whose activations first, middle and last rank keep at once, over rows.

    chunks : of the fullest middle rank.
    first, last : corners of (all chunks, of those the one with embedding or head), axes: corner, of the two, row.
    logits : micro-batches whose logits the last rank keeps.
    """

    chunks: Array
    first: Array
    last: Array
    logits: Array


def in_flight(facts: Facts) -> InFlight:
    """From the schedules' orders; of one chunk a rank GPipe keeps all micro-batches and 1F1B pp − rank."""
    columns, m = facts.columns, facts.num_microbatches
    pp, v = columns.pp, columns.num_chunks
    gpipe = columns.schedule == SCHEDULES.index("gpipe")
    own = np.where(gpipe, m, np.minimum(m, pp))
    middle = np.where(gpipe, m, np.minimum(m, pp - 1))
    middle = np.where(v > 1, np.minimum(m * v, 2 * (pp - 2) + (v - 1) * pp + 1), middle)
    last = np.where(gpipe, m, 1)
    corners = [np.stack([np.stack([each, each])] * _CORNERS) for each in (own, last)]
    many = np.flatnonzero(v > 1)
    if len(many):
        sizes = np.stack([pp[many], v[many], np.minimum(m[many] // pp[many], _ROUNDS)], axis=1)
        codes = (sizes[:, 0] * 100_000 + sizes[:, 1]) * 10 + sizes[:, 2]
        _, where, back = np.unique(codes, return_index=True, return_inverse=True)
        tables = [[_corners(*sizes[row].tolist(), end) for row in where] for end in (False, True)]
        for corner, table in zip(corners, tables, strict=True):
            corner[:, :, many] = np.array(table).transpose(1, 2, 0)[:, :, back]
    return InFlight(middle, corners[0], corners[1], corners[1][:, 1].max(axis=0))


_CORNERS = 6


@cache
def _corners(pp: int, chunks: int, rounds: int, last: bool) -> tuple[tuple[int, int], ...]:
    """(chunks kept, of those the outermost) at which a rank's memory can peak, whatever the two weigh.

    The first rank's outermost chunk is its first, with the embedding; the last rank's is its last, with the head.
    """
    rank = pp - 1 if last else 0
    row = np.asarray(interleaved(rank, pp, chunks, rounds * pp))
    stage, kind = row[:, 0], row[:, 1]
    change = ALIVE[kind]
    outer = stage == (pp * chunks - 1 if last else 0)
    points = np.stack([np.cumsum(change), np.cumsum(change * outer)], axis=1)[kind == F]
    # Upper hull of all chunks over the outermost ones; the activations of both weigh something, their difference may
    # be of either sign.
    best: dict[int, int] = {}
    for kept, of_outer in points.tolist():
        best[of_outer] = max(best.get(of_outer, 0), kept)
    hull: list[tuple[int, int]] = []
    for of_outer in sorted(best):
        point = (best[of_outer], of_outer)
        while len(hull) > 1 and _below(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    assert len(hull) <= _CORNERS, hull
    return tuple(hull + [hull[-1]] * (_CORNERS - len(hull)))


def _below(left: tuple[int, int], middle: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether the middle point lies on or below the line from left to right."""
    return (middle[0] - left[0]) * (right[1] - left[1]) <= (right[0] - left[0]) * (middle[1] - left[1])


def memory_bytes(scenario: Scenario, facts: Facts, cut: Cut, held: Held, flying: InFlight) -> Array:
    """Peak memory of the fullest GPU of every row of a category.  [bytes]

    Parameters
    ----------
    scenario : Scenario
        As `Space.table` makes it.
    """
    model, stack, plan = scenario.model, scenario.stack, scenario.plan
    pp = facts.columns.pp
    layers = dealt_layers(scenario) / facts.columns.num_stages
    layer, embedding, head = (
        stage_activation_bytes(Stage(0, count, first, last), model, stack, cut, plan.offloaded_layers)
        for count, first, last in ((1, False, False), (0, True, False), (0, False, True))
    )
    e, h, alone = int(plan.embedding_as_layer), int(plan.head_as_layer), pp == 1
    middle = layers * layer
    single = (layers - e - h) * layer + embedding + head
    first = np.where(alone, single, middle - e * layer + embedding) - middle
    last = np.where(alone, single, middle - h * layer + head) - middle
    peaks = [
        (flying.first[:, 0] * middle + flying.first[:, 1] * first).max(axis=0),
        flying.chunks * middle,
        (flying.last[:, 0] * middle + flying.last[:, 1] * last).max(axis=0),
    ]
    logits = (np.where(alone, flying.logits, 0), 0, flying.logits)
    totals = [
        memory_of(scenario, cut, params, peak, kept).total
        for params, peak, kept in zip(held.ranks, peaks, logits, strict=True)
    ]
    totals[1] = np.where(pp > 2, totals[1], 0.0)
    totals[2] = np.where(alone, 0.0, totals[2])
    fullest: Array = np.stack(totals).max(axis=0)
    return fullest
