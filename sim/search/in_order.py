"""Step times of many plans that run in one order, all at once: the exact engine's longest path over columns.

What is timed here and what `estimate` says of one plan are the same but for two things, in which this is never more:
a steady state that has not come in what is played, and repetitions that are no multiple of its period.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sim.engines.dag import earliest_starts
from sim.engines.timeline import step_end
from sim.network.placement import hop_crosses_domains
from sim.schedules import Order
from sim.schedules.actions import B, F, I, W
from sim.schedules.fold import ROUNDING
from sim.search import floating
from sim.search.columns import PlanTable
from sim.search.order_facts import OrderFacts
from sim.search.rank_kinds import RankKind, Ranks
from sim.search.split_passes import FIRST, LAST, MIDDLE, Field, Passes

Array = np.ndarray
MOST_PLAYED = 3_000_000
"""Actions times plans that are played at once."""
MOST_ACTIONS = 50_000
"""Up to which length more of an order is played to find its steady state."""


@dataclass(frozen=True, slots=True)
class Ends:
    """When what counts for the end of a step happens, over ranks (and their stages) and plans. [s]

    begin, end : of each rank's first and last action.
    start_last, end_last : of the last gradient action on each of its stages.
    """

    begin: Array
    end: Array
    start_last: Array
    end_last: Array


def period_s(field: Field, ranks: Ranks, facts: OrderFacts, plans: Array) -> Array:
    """Time from batch to batch that an order without a flush cannot go below: what its busiest rank does.  [s]

    As `sim.engines.timeline.finish_step` has it of one plan; no more of a reduction is hidden than in that time.
    """
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


@dataclass(frozen=True, slots=True)
class Columns:
    """What plans that have one order take, over codes or stages, and plans. [s]

    table : of every code of `OrderFacts.code`.
    forward, backward : a send from each stage to the next, and to the one before.
    blocks : whether sends keep the sender.
    times : repetitions that are left out.
    """

    table: Array
    forward: Array
    backward: Array
    blocks: Array
    times: Array

    def take(self, plans: Array) -> Columns:
        """Some of the plans."""
        return Columns(*(getattr(self, name)[..., plans] for name in Columns.__slots__))

    def leaving_out(self, times: int) -> Columns:
        """With another number of repetitions left out."""
        return Columns(self.table, self.forward, self.backward, self.blocks, np.full(len(self.times), times))

    def sends(self, order: Order) -> Array:
        """Of every action. [s]"""
        seconds = np.zeros((len(order), len(self.times)))
        for chosen, each in ((order.kind == F, self.forward), ((order.kind == B) | (order.kind == I), self.backward)):
            seconds[chosen] = each[order.stage[chosen]]
        return seconds

    def seconds(self, facts: OrderFacts) -> tuple[Array, Array]:
        """Of every action how long it occupies its rank, and when its result arrives, as of Program. [s]"""
        order = facts.order
        compute = self.table[facts.code]
        release = compute + self.sends(order)
        occupy = np.where(self.blocks, release, compute)
        if order.pair_needs is not None:  # what both of a pair give is there when both are done
            pairs = np.flatnonzero(order.pair_needs >= 0)
            release[pairs] += compute[pairs + 1]
        return occupy, release

    def block_seconds(self, facts: OrderFacts) -> Array:
        """What the rank with the least to do in a block that is left out is busy for. [s]"""
        order = facts.order
        assert order.fold is not None
        busy = facts.block_counts @ self.table
        here = order.fold.block(0)
        np.add.at(busy, order.rank[here], self.sends(order)[here] * self.blocks)
        return np.asarray(busy.min(axis=0))


def step_times(
    field: Field, ranks: Ranks, facts: OrderFacts, plans: Array, times: Array, visits: Array, thorough: bool = False
) -> tuple[Array, Array]:
    """Of plans that have this order [s]; and of which of them it is exact, and not a time that they cannot go below.

    times : repetitions that each plan's order leaves out.
    visits : how often it turns to a stage.
    thorough : all leave out as much as the order does; play more of it until the steady state is found.
    """
    row = field.row[plans]
    one = field.variant.columns.num_chunks[row] == 1
    # A rank with one chunk visits it anew for every micro-batch: `sim.costs.zero.zero_visits`.
    visits = np.where(one, field.num_microbatches[row], visits)
    passes = field.passes(plans, visits)
    table = codes_table(passes)
    ends, exact = _ends(field, facts, plans, times, passes, table, thorough)
    return finished(field, ranks, facts, plans, table, ends, visits > 1), exact


def codes_table(passes: Passes) -> Array:
    """Seconds of every code of `OrderFacts.code`, over plans; updates take none. [s]"""
    forward, backward, weight = passes.forward, passes.backward, passes.weight
    return np.concatenate([forward, backward, backward - weight, weight, np.zeros_like(forward)])


def sends_by_stage(field: Field, order: Order, plans: Array, passes: Passes) -> tuple[Array, Array]:
    """Seconds of a send from each stage to the next, and to the one before; over plans. [s]"""
    forward, backward = np.zeros((2, order.num_stages, len(plans)))
    if order.num_ranks == 1:
        return forward, backward
    columns, cluster = field.variant.columns, field.scenario.cluster
    row = field.row[plans]
    width = np.minimum(columns.tp[row] * columns.cp[row] * columns.dp[row], cluster.nvlink_domain_gpus)
    widths, which = np.unique(width, return_inverse=True)
    here, there = order.rank_of_stage[:-1], order.rank_of_stage[1:]
    within = (np.arange(1, order.num_stages) % (order.num_stages // order.copies) != 0) & (here != there)
    crosses = np.stack(
        [hop_crosses_domains(here, there, PlanTable(False, False, dp=int(each), pp=order.num_ranks), cluster)  # type: ignore[arg-type]
         for each in widths], axis=1
    )  # fmt: skip
    seconds = np.where(crosses[:, which.ravel()], passes.far, passes.near) * within[:, np.newaxis]
    forward[:-1], backward[1:] = seconds, seconds
    return forward, backward


def _ends(
    field: Field, facts: OrderFacts, plans: Array, times: Array, passes: Passes, table: Array, thorough: bool
) -> tuple[Ends, Array]:
    """Play the order for all plans, those that take the same times once."""
    sent = sends_by_stage(field, facts.order, plans, passes)
    columns = Columns(table, *sent, ~field.overlap_p2p[plans], times)
    same = np.concatenate([table, *sent, columns.blocks[np.newaxis], times[np.newaxis]])
    _, first, column = np.unique(same, axis=1, return_index=True, return_inverse=True)
    batch = max(1, MOST_PLAYED // max(1, len(facts.order)))
    batches = [columns.take(first[begin : begin + batch]) for begin in range(0, len(first), batch)]
    found = [_least(facts, each) if facts.floating else _played(facts, each, thorough) for each in batches]
    parts = (np.concatenate([getattr(each, name) for each, _ in found], axis=-1) for name in Ends.__slots__)
    column = column.ravel()
    return Ends(*(part[..., column] for part in parts)), np.concatenate([exact for _, exact in found])[column]


def _least(facts: OrderFacts, columns: Columns) -> tuple[Ends, Array]:
    """Of an order whose weight gradients float, the earliest that everything can be. As good as it gets: all exact."""
    order = facts.order
    start, done = floating.play(facts.fixed, order, *columns.seconds(facts), columns.table[9:12][facts.kind_of_stage])
    later = np.zeros(len(columns.times))
    if order.fold is not None:
        length, seconds = repeats(order, start)
        rest = np.where(length > 0, columns.times % np.maximum(length, 1), columns.times)
        later = (columns.times - rest) // np.maximum(length, 1) * seconds + rest * columns.block_seconds(facts)
    ends = of_interest(facts, start, start, later)
    return replace(ends, end=done + later), np.ones(len(columns.times), dtype=bool)


def _played(facts: OrderFacts, columns: Columns, thorough: bool) -> tuple[Ends, Array]:
    """As `sim.engines.steady.play_folded`; thorough, where what is played does not become too long, always exact."""
    order = facts.order
    occupy, release = columns.seconds(facts)
    start = earliest_starts(order, occupy, release)
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
            for name in Ends.__slots__:
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


def of_interest(facts: OrderFacts, start: Array, end: Array, later: Array) -> Ends:
    """What the step's end is made of, with what was left out put in before what comes after it."""
    order = facts.order

    def at(values: Array, places: Array) -> Array:
        chosen: Array = values[places]
        if order.fold is not None:
            after = places >= order.fold.cuts[order.rank[places]]
            chosen = chosen + after[..., np.newaxis] * later
        return chosen

    last = facts.last_gradients
    return Ends(
        at(start, order.first[:-1]), at(end, order.first[1:] - 1), at(start, np.maximum(last, 0)),
        at(end, np.maximum(last, 0)),
    )  # fmt: skip


def finished(
    field: Field, ranks: Ranks, facts: OrderFacts, plans: Array, table: Array, ends: Ends, repeated: Array
) -> Array:
    """The step with all that follows the pipeline, as `sim.engines.timeline.finish_step` has it of one plan.  [s]"""
    order, kinds = facts.order, facts.rank_kinds
    each = {kind: ranks.once(kind, plans, repeated) for kind in dict.fromkeys(kinds)}
    reduce, tail, gather, update, params = (
        np.stack([getattr(each[kind], name) for kind in kinds])
        for name in ("reduce", "tail", "gather", "update", "params")
    )
    share = ranks.hidden_share(plans, params.mean(axis=0), reduce.mean(axis=0))
    done = ends.end - ends.begin if field.variant.schedule.staggered else ends.end
    exposed = reduce
    beside = field.overlap_reduce[plans]
    if beside.any() and reduce.any():
        after = _reduced(ranks, facts, field, plans, params, reduce, tail, ends) - ends.end
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
    ranks: Ranks, facts: OrderFacts, field: Field, plans: Array, params: Array, reduce: Array, tail: Array, ends: Ends
) -> Array:
    """When each rank's reductions beside its backwards are done: `sim.engines.timeline.reductions` over plans. [s]"""
    order = facts.order
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
        return np.asarray(np.maximum((ends.start_last + durations).max(axis=1), ends.end + least))
    free = np.full(reduce.shape, -np.inf)
    for turn in range(facts.last_gradients.shape[1]):
        there = facts.last_gradients[:, turn] >= 0
        stage = order.stage[facts.last_gradients[there, turn]]
        duration = reduce[there] * of_stage[facts.kind_of_stage[stage]] / params[there]
        begin = np.maximum(free[there], ends.start_last[there, turn])
        free[there] = np.maximum(begin + duration, ends.end_last[there, turn] + np.minimum(tail[there], duration))
    return free
