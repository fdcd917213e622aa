"""A step time that no order of a plan's actions can go below, wherever its stages are.

With m micro-batches, v stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), the one with the embedding or the head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after
  a micro-batch has come through p − 1 stages before and been sent p − 1 times; and after its last input gradient the
  same stages have theirs to do. Of two pipelines half as many stages lie before.

Where ranks do not wait for each other between steps (`Schedule.staggered`) only the first holds. The once-a-step
reduction and weight gather count where nothing may hide them.
"""

from __future__ import annotations

import numpy as np

from sim.schedules.registry import is_file
from sim.search.schedules.rank_kinds import RankKind, Ranks
from sim.search.schedules.split_passes import FIRST, LAST, MIDDLE

Array = np.ndarray


def bound_s(ranks: Ranks) -> Array:
    """Of all plans of a field.  [s]"""
    field = ranks.field
    chosen = field.variant.schedule
    plans = np.arange(len(field))
    if is_file(chosen.name) or not len(field):  # its stages may be dealt unevenly
        return np.zeros(len(field))
    row, columns = field.row, field.variant.columns
    pp, chunks, copies = columns.pp[row], columns.num_chunks[row], chosen.copies
    # ZeRO moves least where an order turns to a stage once; and reduces nothing more at the end where it does not.
    visits = np.where(chunks == 1, field.num_microbatches[row], 1)
    passes = field.passes(plans, visits)
    whole = passes.forward + passes.backward
    inputs = passes.backward - passes.weight
    least = whole.min(axis=0)
    each = field.num_microbatches[row] * field.variant.slices / copies
    stages = chunks * copies
    alone = pp * chunks == 1

    once = _OnceAStep(ranks, plans)
    reduce = [np.where(field.overlap_reduce, 0.0, part) for part in once.least("reduce")]
    gather = [np.where(field.overlap_gather & (not chosen.asynchronous), 0.0, part) for part in once.least("gather")]
    update = [part + waits for part, waits in zip(once.least("update"), gather, strict=True)]
    embedding, head = (
        each * (whole[kind] + (stages - 1) * least) + part for kind, part in ((FIRST, reduce[0]), (LAST, reduce[2]))
    )
    if chosen.asynchronous:  # a rank's update stands in its order, and nothing hides the gather
        period = np.maximum(embedding + update[0], np.where(alone, 0.0, head + update[2]))
        return np.asarray(period + field.scenario.stack.step_setup_s)
    pipeline = np.where(alone, embedding, np.maximum(embedding, head))
    if not chosen.staggered:
        before = (pp - 1) // copies
        # Twins a domain or more apart send to another domain, whichever ranks they are.
        wide = (columns.tp * columns.cp * columns.dp)[row] >= field.scenario.cluster.nvlink_domain_gpus
        send = np.where(wide, passes.far, passes.near) * before
        fill, drain = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + send
            for part in (passes.forward, inputs)
        )
        work = each * stages * np.minimum(least, whole[LAST])
        # Weight gradients may all come after the last input gradient.
        inner = np.maximum(work + reduce[1], work - each * stages * passes.weight.max(axis=0) + drain)
        pipeline = np.maximum(pipeline, np.where(before > 0, fill + inner, 0.0))
    updated = np.maximum(update[0], np.where(pp > 2, update[1], 0.0))
    return np.asarray(pipeline + updated + field.scenario.stack.step_setup_s)


def least_memory(ranks: Ranks) -> Array:
    """What the fullest GPU of every plan cannot do with, whatever the order: one micro-batch on one stage.  [bytes]"""
    field = ranks.field
    plans, chosen = np.arange(len(field)), field.variant.schedule
    if is_file(chosen.name) or not len(field):
        return np.zeros(len(field))
    copies, single = float(chosen.copies), field.variant.columns.pp[field.row] == 1

    def needed(kind: RankKind, stage: int) -> Array:
        alive = np.zeros((3, 1), dtype=np.int64)
        alive[stage] = 1
        return ranks.memory(kind, plans, alive, int(stage == LAST))

    both = needed(RankKind(copies, 1, 1, True), FIRST)
    ends = [needed(RankKind(copies, 1, 0, True), FIRST), needed(RankKind(copies, 0, 1, False), LAST)]
    return np.asarray(np.where(single, both, np.maximum(*(np.minimum(each, both) for each in ends))))


class _OnceAStep:
    """Of the rank with the embedding, of one without, and of the rank with the head: the least each can take.

    Where a rank holds several stages that with the embedding may hold the head too, and so may one without.
    """

    def __init__(self, ranks: Ranks, plans: Array) -> None:
        copies, field = float(ranks.copies), ranks.field
        repeated = np.ones(len(plans), dtype=bool)
        kinds = (
            RankKind(copies, 1, 0, True), RankKind(copies, 0, 0, False), RankKind(copies, 0, 1, False),
            RankKind(copies, 1, 1, True),
        )  # fmt: skip
        self._first, self._middle, self._last, self._both = (ranks.once(kind, plans, repeated) for kind in kinds)
        self._single = field.variant.columns.pp[field.row] == 1

    def least(self, name: str) -> tuple[Array, Array, Array]:
        """Seconds of one part for each of the three. [s]"""
        first, middle, last, both = (
            getattr(part, name) for part in (self._first, self._middle, self._last, self._both)
        )
        return (
            np.where(self._single, both, np.minimum(first, both)),
            np.minimum(middle, last),
            np.where(self._single, both, np.minimum(last, both)),
        )
