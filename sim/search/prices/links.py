"""Which links between neighbouring pipeline ranks leave an NVLink domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sim.network.placement import hop_crosses_domains
from sim.search.plans.columns import PlanTable
from sim.specs import ClusterSpec

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Links:
    """Of many pipelines, over layouts or rows, which are the last axis.

    first, last, wrap : from rank 0 to 1, from the last but one to the last, and from the last to rank 0, leave.
    num_far : how many of the links between neighbours do.
    kinds : last middle rank both of whose links stay inside, of whose links one leaves, and both do (first axis).
    before_is_far, after_is_far : the link of each of these to the rank before, and to the one after, leaves.
    far_before : links that leave between rank 0 and each of them.
    """

    first: Array
    last: Array
    wrap: Array
    num_far: Array
    kinds: Array
    before_is_far: Array
    after_is_far: Array
    far_before: Array

    def take(self, rows: Array) -> Links:
        """Some of the rows."""
        return Links(*(getattr(self, field.name)[..., rows] for field in fields(self)))


def find_links(widths: Sequence[tuple[int, int]], cluster: ClusterSpec) -> Links:
    """Of pipelines of so many GPUs a rank and so many ranks."""
    # Ranks of a domain or more always send to another one, however wide they are.
    narrowed = [(min(width, cluster.nvlink_domain_gpus), pp) for width, pp in widths]
    known = {each: _links(*each, cluster) for each in set(narrowed)}
    columns = zip(*(known[each] for each in narrowed), strict=True)
    return Links(*(np.stack(column, axis=-1) for column in columns))


def _links(width: int, pp: int, cluster: ClusterSpec) -> tuple[Any, ...]:
    """The fields of Links for ranks of `width` GPUs each."""
    none = np.zeros(3, dtype=np.int64)
    if pp == 1:
        return (False, False, False, 0, none, none > 0, none > 0, none)
    plan: Any = PlanTable(False, False, dp=width, pp=pp)
    rank = np.arange(pp - 1)
    far = np.asarray(hop_crosses_domains(rank, rank + 1, plan, cluster))
    wrap = bool(hop_crosses_domains(pp - 1, 0, plan, cluster))
    before, after = far[:-1], far[1:]  # of the middle ranks
    kinds = none.copy()
    for kind, chosen in enumerate((~before & ~after, before != after, before & after)):
        kinds[kind] = np.flatnonzero(chosen)[-1] + 1 if chosen.any() else 0
    exists = kinds > 0
    passed = np.concatenate([[0], np.cumsum(far)])
    return (
        bool(far[0]),
        bool(far[-1]),
        wrap,
        int(far.sum()),
        kinds,
        exists & far[np.maximum(kinds - 1, 0)],
        exists & far[np.minimum(kinds, pp - 2)],
        passed[kinds],
    )
