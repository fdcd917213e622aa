"""Plans with given fields, looked at some at a time, so that a large search answers without all plans in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.search.answers.among import has_fields
from sim.search.result import SearchResult

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is known of the plans with some fields.

    priced, fit : how many there are, and fit in memory.
    better : of those that fit, how many are better than what they are held against.
    best : places of the best few that fit, best first.
    """

    priced: int
    fit: int
    better: int
    best: Array


def choose(
    result: SearchResult, several: Sequence[Mapping[str, Any]], few: int = 40, than: float = -np.inf
) -> list[Chosen]:
    """The plans with each of several sets of fields, in one look at all.

    Parameters
    ----------
    several : sequence of mappings
        Such as {"tp": 4, "pp": 8}; {} is all plans.
    few : int
        How many of the best to name; of equals the one that needs least memory, as `SearchResult.ranking` does.
    than : float
        Score that others are held against.
    """
    counts = np.zeros((len(several), 3), dtype=int)  # priced, fit, better
    best = [np.empty((3, 0)) for _ in several]  # score, bytes, place
    begin = 0
    for block in result.blocks():
        fits, score = block.memory_bytes <= result.memory_limit_bytes, result.score(block)
        for number, named in enumerate(several):
            which = has_fields(result, block, named)
            here = np.flatnonzero(which & fits)
            counts[number] += np.count_nonzero(which), len(here), np.count_nonzero(score[here] < than)
            if len(here) > few:
                here = here[score[here] <= np.partition(score[here], few - 1)[few - 1]]
            new = np.concatenate([best[number], [score[here], block.memory_bytes[here], begin + here]], axis=1)
            best[number] = new[:, np.lexsort(new[::-1])[:few]]
        begin += len(block)
    places = [found[2].astype(np.int64) for found in best]
    return [
        Chosen(priced, fit, better, found) for (priced, fit, better), found in zip(counts.tolist(), places, strict=True)
    ]
