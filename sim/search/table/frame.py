"""Priced plans as a table whose columns and words a reader of the file knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.search.plans.columns import OVERLAPS, RECOMPUTES, SCHEDULES
from sim.search.plans.layouts import LAYOUT
from sim.search.plans.space import Space
from sim.search.prices.units import categories_of
from sim.search.table.priced import Priced

Array = np.ndarray


def arrow_table(part: Space, priced: Priced) -> Any:
    """The plans in words that a reader of the file knows, and their prices."""
    import pyarrow as pa

    columns = part.columns
    rows = np.concatenate([rows for _, rows in categories_of(part)])
    number = priced.category

    def choices(of_category: list[Any]) -> Array:
        each: Array = np.array(of_category)[number]
        return each

    def words(place: Array, names: tuple[str, ...]) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(place.astype(np.int8)), pa.array(names))

    names = (*LAYOUT, "num_chunks", "microbatch_size")
    recomputes = tuple(dict.fromkeys((*RECOMPUTES, *(each.recompute for each in part.categories))))
    categories = part.categories
    return pa.table(
        {
            "num_gpus": columns.num_gpus.astype(np.int32)[rows],
            **{name: getattr(columns, name).astype(np.int32)[rows] for name in names},
            "schedule": words(columns.schedule[rows], SCHEDULES),
            "recompute": words(choices([recomputes.index(each.recompute) for each in categories]), recomputes),
            "sequence_parallel": choices([each.sequence_parallel for each in categories]),
            "zero_stage": choices([each.zero_stage for each in categories]).astype(np.int8),
            **{name: choices([each.overlaps[place] for each in categories]) for place, name in enumerate(OVERLAPS)},
            "category": number,
            "row": priced.row,
            "step_time_s": priced.step_time_s,
            "memory_bytes": priced.memory_bytes,
        }
    )
