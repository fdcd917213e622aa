"""Step times of many plans that run in one order, all at once: the exact engine's longest path over columns.

What is timed here and what `estimate` says of one plan are the same but for two things, in which this is never more:
a steady state that has not come in what is played, and repetitions that are no multiple of its period.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.engines.dag import earliest_starts
from sim.schedules import Order
from sim.schedules.actions import W
from sim.schedules.fold import ROUNDING
from sim.search.schedules import floating
from sim.search.schedules.action_seconds import ActionSeconds, codes_table, sends_by_stage
from sim.search.schedules.order_facts import OrderFacts
from sim.search.schedules.rank_kinds import Ranks
from sim.search.schedules.split_passes import FIRST, LAST, MIDDLE, Field, SplitPasses
from sim.search.schedules.step_finish import RankTimes, finish_steps

Array = np.ndarray
MOST_PLAYED = 3_000_000
"""Actions times plans that are played at once."""
MOST_ACTIONS = 50_000
"""Up to which length more of an order is played to find its steady state."""


def period_s(ranks: Ranks, facts: OrderFacts, plans: Array) -> Array:
    """Time from batch to batch that an order without a flush cannot go below: what its busiest rank does.  [s]

    As `sim.engines.timeline.finish_step` has it of one plan; no more of a reduction is hidden than in that time.
    """
    field = ranks.field
    row = field.row[plans]
    passes = field.passes(plans, field.num_microbatches[row])  # these hold one chunk a rank
    each = field.num_microbatches[row]
    busy = each * (passes.forward + passes.backward)
    periods, exposed = [], []
    of_kind = {kind: ranks.once(kind, plans, each > 1) for kind in dict.fromkeys(facts.rank_kinds)}
    params, reduce = (
        np.mean([getattr(of_kind[kind], name) for kind in facts.rank_kinds], axis=0) for name in ("params", "reduce")
    )
    share = ranks.hidden_share(plans, params, reduce)
    beside = field.overlap_reduce[plans]
    for kind, part in of_kind.items():
        stage = FIRST if kind.firsts else LAST if kind.lasts else MIDDLE
        update = part.update + part.gather + np.where(beside, 0.0, part.reduce)
        periods.append(busy[stage] + facts.updates * update)
        exposed.append(np.where(beside, facts.updates * part.reduce, 0.0))
    period = np.max(periods, axis=0)
    rest = np.max([each - share * np.minimum(each, period) for each in exposed], axis=0)
    return np.asarray(period + rest + field.scenario.stack.step_setup_s)


def step_times(
    ranks: Ranks, facts: OrderFacts, plans: Array, times: Array, thorough: bool = False
) -> tuple[Array, Array]:
    """Of plans that have this order [s]; and of which of them it is exact, and not a time that they cannot go below.

    times : repetitions that each plan's order leaves out.
    thorough : all leave out as much as the order does; play more of it until the steady state is found.
    """
    field = ranks.field
    row = field.row[plans]
    one = field.variant.columns.num_chunks[row] == 1
    # A rank with one chunk visits it anew for every micro-batch: `sim.costs.zero.zero_visits`.
    visits = np.where(one, field.num_microbatches[row], facts.visits(times))
    passes = field.passes(plans, visits)
    table = codes_table(passes)
    ends, exact = _ends(field, facts, plans, times, passes, table, thorough)
    return finish_steps(ranks, facts, plans, table, ends, visits > 1), exact


def _ends(
    field: Field, facts: OrderFacts, plans: Array, times: Array, passes: SplitPasses, table: Array, thorough: bool
) -> tuple[RankTimes, Array]:
    """Play the order for all plans, those that take the same times once."""
    sent = sends_by_stage(field, facts.order, plans, passes)
    columns = ActionSeconds(table, *sent, ~field.overlap_p2p[plans], times)
    same = np.concatenate([table, *sent, columns.blocks[np.newaxis], times[np.newaxis]])
    _, first, column = np.unique(same, axis=1, return_index=True, return_inverse=True)
    batch = max(1, MOST_PLAYED // max(1, len(facts.order)))
    batches = [columns.take(first[begin : begin + batch]) for begin in range(0, len(first), batch)]
    found = [_least(facts, each) if facts.floating else _played(facts, each, thorough) for each in batches]
    parts = (np.concatenate([getattr(each, name) for each, _ in found], axis=-1) for name in RankTimes.__slots__)
    column = column.ravel()
    return RankTimes(*(part[..., column] for part in parts)), np.concatenate([exact for _, exact in found])[column]


def _least(facts: OrderFacts, columns: ActionSeconds) -> tuple[RankTimes, Array]:
    """Of an order whose weight gradients float, the earliest that everything can be; playing more would say no more."""
    order = facts.order
    start, done = floating.play(facts.fixed, order, *columns.seconds(facts), columns.table[9:12][facts.kind_of_stage])
    later = np.zeros(len(columns.times))
    if order.fold is not None:
        length, seconds = repeats(order, start)
        rest = np.where(length > 0, columns.times % np.maximum(length, 1), columns.times)
        later = (columns.times - rest) // np.maximum(length, 1) * seconds + rest * columns.block_seconds(facts)
    ends = of_interest(facts, start, start, later)
    return replace(ends, end=done + later), np.ones(len(columns.times), dtype=bool)


def _played(facts: OrderFacts, columns: ActionSeconds, thorough: bool) -> tuple[RankTimes, Array]:
    """As `sim.engines.steady.play_folded`; thorough, where what is played does not become too long, always exact."""
    order = facts.order
    occupy, release = columns.seconds(facts)
    start = earliest_starts(facts.in_levels, occupy, release)
    end = start + occupy
    exact = np.ones(len(columns.times), dtype=bool)
    if order.fold is None:
        return of_interest(facts, start, end, np.zeros(len(exact))), exact
    length, seconds = repeats(order, start)
    rest = np.where(length > 0, columns.times % np.maximum(length, 1), columns.times)
    later = (columns.times - rest) // np.maximum(length, 1) * seconds + rest * columns.block_seconds(facts)
    ends = of_interest(facts, start, end, later)
    exact = rest == 0
    if thorough:
        for number in np.unique(rest[~exact]).tolist():
            here = np.flatnonzero((rest == number) & ~exact)
            unsettled = length[here[0]] == 0
            kept = 2 * order.fold.kept if unsettled else order.fold.kept + number * order.fold.period
            if 2 * kept * facts.actions_a_microbatch > MOST_ACTIONS:
                continue
            longer = OrderFacts(order.fold.rebuild(kept), facts.floating)
            left = 0 if longer.order.fold is None else longer.order.fold.times
            more, exact[here] = _played(longer, columns.take(here).leaving_out(left), thorough)
            for name in RankTimes.__slots__:
                getattr(ends, name)[..., here] = getattr(more, name)
    return ends, exact


def repeats(order: Order, start: Array) -> tuple[Array, Array]:
    """As `Fold.steady` of every column: (blocks, seconds) after which starts repeat; 0 where they do not yet.

    Weight gradients follow from what is before them and are not looked at.
    """
    fold, columns = order.fold, start.shape[1]
    assert fold is not None
    length, seconds = np.zeros(columns, dtype=np.int64), np.zeros(columns)
    if fold.seen <= fold.depth:
        return length, seconds
    moves = [fold.block(back) for back in range(fold.seen)]
    starts = np.stack([start[each[order.kind[each] != W]] for each in moves])
    tolerance = ROUNDING * np.abs(starts).max(axis=(0, 1))
    for blocks in range(1, fold.seen - fold.depth + 1):
        later = starts[: fold.depth] - starts[blocks : blocks + fold.depth]
        here = (later.max(axis=(0, 1)) - later.min(axis=(0, 1)) <= tolerance) & (length == 0)
        length[here], seconds[here] = blocks, later.mean(axis=(0, 1))[here]
        if length.all():
            break
    return length, seconds


def of_interest(facts: OrderFacts, start: Array, end: Array, later: Array) -> RankTimes:
    """What the step's end is made of, with what was left out put in before what comes after it."""
    order = facts.order

    def at(values: Array, places: Array) -> Array:
        chosen: Array = values[places]
        if order.fold is not None:
            after = places >= order.fold.cuts[order.rank[places]]
            chosen = chosen + after[..., np.newaxis] * later
        return chosen

    last = facts.last_gradients
    return RankTimes(
        at(start, order.first[:-1]), at(end, order.first[1:] - 1), at(start, np.maximum(last, 0)),
        at(end, np.maximum(last, 0)),
    )  # fmt: skip
