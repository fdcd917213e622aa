"""What follows the pipelines of many plans that have one order: reductions, the tied embedding, gathers, updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.engines.timeline import step_end
from sim.search.schedules.order_facts import OrderFacts
from sim.search.schedules.rank_kinds import RankKind, Ranks
from sim.search.schedules.split_passes import FIRST, LAST, MIDDLE

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class RankTimes:
    """When ranks do what counts for the end of a step, over ranks (and their stages) and plans. [s]

    begin, end : of each rank's first and last action.
    start_last, end_last : of the last gradient action on each of its stages.
    """

    begin: Array
    end: Array
    start_last: Array
    end_last: Array


def finish_steps(
    ranks: Ranks, facts: OrderFacts, plans: Array, table: Array, times: RankTimes, repeated: Array
) -> Array:
    """The step with all that follows the pipeline, as `sim.engines.timeline.finish_step` has it of one plan.  [s]"""
    field, order, kinds = ranks.field, facts.order, facts.rank_kinds
    each = {kind: ranks.once(kind, plans, repeated) for kind in dict.fromkeys(kinds)}
    reduce, tail, gather, update, params = (
        np.stack([getattr(each[kind], name) for kind in kinds])
        for name in ("reduce", "tail", "gather", "update", "params")
    )
    share = ranks.hidden_share(plans, params.mean(axis=0), reduce.mean(axis=0))
    done = times.end - times.begin if field.variant.schedule.staggered else times.end
    exposed = reduce
    beside = field.overlap_reduce[plans]
    if beside.any() and reduce.any():
        after = _reduced(ranks, facts, plans, params, reduce, tail, times) - times.end
        exposed = reduce - beside * share * np.clip(reduce - after, 0.0, reduce)
    waits = gather
    if field.overlap_gather[plans].any() and gather.any():
        window = facts.before_last_gather @ table
        waits = gather - field.overlap_gather[plans] * share * np.minimum(gather, window)
    tied: Array = np.zeros(len(plans))
    if order.rank_of_stage[0] != order.rank_of_stage[facts.per_copy - 1]:
        tied = ranks.tied(plans)
    return np.asarray(step_end(done + exposed, tied, update + waits) + field.scenario.stack.step_setup_s)


def _reduced(
    ranks: Ranks,
    facts: OrderFacts,
    plans: Array,
    params: Array,
    reduce: Array,
    tail: Array,
    times: RankTimes,
) -> Array:
    """When each rank's reductions beside its backwards are done: `sim.engines.timeline.reductions` over plans. [s]"""
    field, order = ranks.field, facts.order
    chunks = facts.per_copy / order.num_ranks
    layout = field.variant.columns.layout[field.row[plans]]
    of_stage = np.empty((3, len(plans)))
    for number, kind in ((FIRST, (1, 0)), (MIDDLE, (0, 0)), (LAST, (0, 1))):
        heads = 1 if facts.per_copy == 1 else kind[1]
        held, _ = ranks.held(RankKind(1.0 / chunks, kind[0], heads, False))
        of_stage[number] = held.params[layout]
    if facts.floating:  # nobody knows which of its stages comes last
        stage = order.stage[facts.last_gradients]
        durations = reduce[:, np.newaxis] * of_stage[facts.kind_of_stage[stage]] / params[:, np.newaxis]
        least = np.minimum(tail[:, np.newaxis], durations).min(axis=1)
        return np.asarray(np.maximum((times.start_last + durations).max(axis=1), times.end + least))
    free = np.full(reduce.shape, -np.inf)
    for turn in range(facts.last_gradients.shape[1]):
        there = facts.last_gradients[:, turn] >= 0
        stage = order.stage[facts.last_gradients[there, turn]]
        duration = reduce[there] * of_stage[facts.kind_of_stage[stage]] / params[there]
        begin = np.maximum(free[there], times.start_last[there, turn])
        free[there] = np.maximum(begin + duration, times.end_last[there, turn] + np.minimum(tail[there], duration))
    return free
