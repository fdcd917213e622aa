"""A step time that no order of a plan's actions can go below, wherever its stages are.

With m micro-batches, v stages a rank of f, i and w seconds (forward, input gradient, weight gradient):

- a rank does all its own work, m v (f + i + w), the one with the embedding or the head that with theirs;
- the p ranks begin with stages that differ, so of one pipeline some rank begins with stage p − 1 or a later one, after a
  micro-batch has come through p − 1 stages before and been sent p − 1 times; and after its last input gradient the same
  stages have theirs to do. Of two pipelines half as many stages lie before, and so on.

Where ranks do not wait for each other between steps (`Schedule.staggered`) only the first holds. The once-a-step
reduction and weight gather count where nothing may hide them.
"""

from __future__ import annotations

import numpy as np

from sim.schedules.registry import is_file
from sim.search.rank_kinds import RankKind, Ranks
from sim.search.split_passes import FIRST, LAST, MIDDLE, Field

Array = np.ndarray


def bound_s(field: Field, ranks: Ranks) -> Array:
    """Of all plans of a field.  [s]"""
    chosen = field.variant.schedule
    plans = np.arange(len(field))
    if is_file(chosen.name):  # its stages may be dealt unevenly
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
    alone = field.alone[row]

    begins = RankKind(float(copies), 1, 0, True)
    middle = RankKind(float(copies), 0, 0, False)
    last = RankKind(float(copies), 0, 1, False)
    repeated = np.ones(len(field), dtype=bool)
    once = [ranks.once(kind, plans, repeated) for kind in (begins, middle, last)]
    reduce = [np.where(field.overlap_reduce, 0.0, part.reduce) for part in once]
    embedding, head = (
        each * (whole[kind] + (stages - 1) * least) + part for kind, part in ((FIRST, reduce[0]), (LAST, reduce[2]))
    )
    if chosen.asynchronous:  # a rank's update stands in its order, and nothing hides the gather
        updates = [part.update + part.gather for part in once]
        period = np.maximum(embedding + updates[0], np.where(alone, 0.0, head + updates[2]))
        return np.asarray(period + field.scenario.stack.step_setup_s)
    pipeline = np.where(alone, embedding, np.maximum(embedding, head))
    if not chosen.staggered:
        before = (pp - 1) // copies
        send = passes.near * before
        fill, drain = (
            part[FIRST] + (before - 1) * np.minimum(part[FIRST], part[MIDDLE]) + send
            for part in (passes.forward, inputs)
        )
        work = each * stages * np.minimum(least, whole[LAST])
        # Weight gradients may all come after the last input gradient.
        inner = np.maximum(work + reduce[1], work - each * stages * passes.weight.max(axis=0) + drain)
        pipeline = np.maximum(pipeline, np.where(before > 0, fill + inner, 0.0))
    gathers = [np.where(field.overlap_gather, 0.0, part.gather) for part in once]
    update = np.maximum(once[0].update + gathers[0], np.where(pp > 2, once[1].update + gathers[1], 0.0))
    return np.asarray(pipeline + update + field.scenario.stack.step_setup_s)
