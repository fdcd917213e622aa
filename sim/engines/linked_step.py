"""Steps played event by event on shared links: repetitions put in, and the end of the step from its actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sim.arrays import ActionPlanFloats, Array, Ints, Number, PlanFloats, RankPlanFloats, StagePlanFloats
from sim.engines import longest_path
from sim.engines.max_plus import ROUNDING
from sim.engines.program import Program, gather_window
from sim.engines.step_end import end_of_step
from sim.engines.tasks import Switches, step_of
from sim.engines.timeline import StepTimes, Timeline, without_flush_of
from sim.schedules import Order
from sim.schedules.actions import U, W
from sim.schedules.fold import Fold
from sim.schedules.passes import last_gradients
from sim.schedules.registry import is_staggered


@dataclass(frozen=True, slots=True)
class Played:
    """When everything happened before the step's end; arrays over actions. [s]

    start, end : of every action.
    until : after it, when its rank's stream is done with all it was asked for; None: there are no streams.
    waited : how long that stream alone kept it waiting, or its rank after it.
    """

    start: Array
    end: Array
    until: Array | None = None
    waited: Array | None = None

    def later(self, seconds: Array, fold: Fold, blocks: int) -> Played:
        """With every action so much later, as repetitions that are left out come before it; `blocks` of them are a
        period, and the last one stands for them all."""
        if self.until is None or self.waited is None:
            return Played(self.start + seconds, self.end + seconds)
        waited, last = self.waited.copy(), fold.block(0)
        mean = np.mean([waited[fold.block(back)] for back in range(blocks)], axis=0)
        waited[last] = (waited[last] + fold.times * mean) / (1 + fold.times)
        return Played(self.start + seconds, self.end + seconds, self.until + seconds, waited)

    def done(self, order: Order) -> Array:
        """When each rank, and all that it moves, is done. [s]"""
        done = np.zeros(order.num_ranks)
        np.maximum.at(done, order.rank, self.end)
        if self.until is not None:
            np.maximum.at(done, order.rank, self.until)
        return done


Play = Callable[[Program], Played]


def play_folded(program: Program, play: Play, most_actions: int | None = None) -> tuple[Program, Played, float | None]:
    """When everything happens in a step, repetitions that were left out counted in.

    Parameters
    ----------
    play : Program -> Played
        Times all actions in the program's arrays.
    most_actions : int, optional
        For plays that need not reach a steady state: of an order without end that has not in so many, what a batch
        takes longer than in the longest path, on average over the later half of them.

    Returns
    -------
    program : Program
        With as many micro-batches in its arrays as it took to reach the steady state.
    played : Played
    period_s : float or None
        Of an order without end, the time from batch to batch in the steady state. [s]
    """
    further = 0 if program.costs.visits is None else program.costs.visits.prefetched - 1
    while True:
        played = play(program)
        order, fold = program.order, program.order.fold
        if fold is None:
            return program, played, None
        until = None if played.until is None else played.until[:, np.newaxis]
        (blocks,), (seconds,) = steady_state(order, played.start[:, np.newaxis], until, further)
        if not blocks and fold.endless and most_actions is not None and len(order) > most_actions:
            whole = longest_path.run(program.on(replace(order, fold=None))).start
            assert whole is not None
            late, half = played.start - whole, fold.seen // 2
            more = float((late[fold.block(0)] - late[fold.block(half)]).mean()) / half
            _, _, _, alone = longest_path.play_program(program)
            return program, played, alone.seconds / alone.blocks + more
        if not blocks:
            program = program.on(fold.rebuild(2 * fold.kept))
            continue
        if fold.endless:
            return program, played, float(seconds / blocks)
        if fold.times % blocks:
            program = program.on(fold.rebuild(fold.kept + fold.times % blocks * fold.period))
            continue
        later = fold.times // blocks * seconds * (np.arange(len(order)) >= fold.cuts[order.rank])
        return program, played.later(later, fold, int(blocks)), None


@lru_cache(maxsize=64)
def _blocks_seen(order: Order) -> Ints:
    """Flat indices of the blocks of a folded order but for weight gradients, (blocks back, actions)."""
    fold = order.fold
    assert fold is not None
    blocks = [fold.block(back) for back in range(fold.seen)]
    return np.stack([block[order.kind[block] != W] for block in blocks])


def steady_state(
    order: Order, start: ActionPlanFloats, until: ActionPlanFloats | None = None, further: int = 0
) -> tuple[Ints, PlanFloats]:
    """(blocks, seconds) after which the starts of a folded order repeat, of every plan; 0 where they do not yet.

    All that comes later depends on the last `depth` blocks alone, and on what the ranks' streams have still to move
    (`until`); where these begin as those `blocks` before them did, only later, so will all others. Weight gradients
    follow from what is before them and are not looked at. Where streams are asked for weights `further` than one visit
    ahead, so many more blocks may matter.
    """
    fold, plans = order.fold, start.shape[1]
    assert fold is not None
    length, seconds = np.zeros(plans, dtype=np.int64), np.zeros(plans)
    depth = fold.depth + further
    if fold.seen <= depth:
        return length, seconds
    starts = start[_blocks_seen(order)]
    if until is not None:
        starts = np.concatenate([starts, until[_blocks_seen(order)]], axis=1)
    tolerance = ROUNDING * np.abs(starts).max(axis=(0, 1))
    for blocks in range(1, fold.seen - depth + 1):
        later = starts[:depth] - starts[blocks : blocks + depth]
        here = (later.max(axis=(0, 1)) - later.min(axis=(0, 1)) <= tolerance) & (length == 0)
        length[here], seconds[here] = blocks, later.mean(axis=(0, 1))[here]
        if length.all():
            break
    return length, seconds


def finish_step(program: Program, played: Played, period_s: float | None = None) -> Timeline:
    """What follows the pipeline: gradient reduction, tied embedding, update, weight gather.

    Parameters
    ----------
    period_s : float, optional
        Of an order without flush, from batch to batch. [s]
    """
    costs, order = program.costs, program.order
    times = StepTimes(step_of(order, Switches()), played.start, played.end)
    if period_s is None and (order.kind == U).any():
        period_s = float(played.end.max())  # so many batches as the order holds
    if period_s is not None:
        return without_flush_of(program, "network", times, period_s)
    absolute = played.done(order)
    pipeline_end = absolute - step_begin(program, played.start)
    updated, exposed, gather = end_of_step(
        pipeline_end,
        costs.reduce_s,
        costs.gather_s,
        costs.optimizer_s,
        tied_embedding=costs.tied_embedding_s,
        hidden_share=costs.hidden_share,
        overlap_reduce=program.hide_grad_reduce,
        overlap_gather=program.hide_gather,
        ends=order.ends,
        reduced_after=lambda: reduction_end(program, played.start, played.end) - absolute,
        gather_window=lambda: gather_window(order, program.seconds()),
    )
    step_time, waited = float(updated) + costs.step_setup_s, waits(order, played)
    return Timeline(program, "network", step_time, pipeline_end, exposed, gather, waited, times)


def waits(order: Order, played: Played) -> Array | None:
    """How long each rank waits for what it moves at visits, in the pipeline and behind it.  [s]"""
    if played.waited is None:
        return None
    ended = np.zeros(order.num_ranks)
    np.maximum.at(ended, order.rank, played.end)
    waited = np.bincount(order.rank, played.waited * order.weight, order.num_ranks)
    return np.asarray(waited + played.done(order) - ended)


def step_begin(program: Program, start: Array) -> Array:
    """When each rank's step begins: with all others at 0, or, where none waits for the others, its first action. [s]"""
    begin = np.zeros(program.order.num_ranks)
    if is_staggered(program.order.schedule):
        begin[:] = np.inf
        np.minimum.at(begin, program.order.rank, start)
        if program.costs.visits is not None:
            first, visits = program.order.first[:-1], program.costs.visits
            stage = program.order.stage[first]
            begin -= visits.gather[0, stage] - visits.early[0, stage]
    return begin


def reductions(program: Program, start: Array, end: Array) -> tuple[Array, Array]:
    """Begin and end of each stage's gradient reduction where it runs beside the backwards of its rank. [s]"""
    order, costs = program.order, program.costs
    last = last_gradients(order)
    there = last >= 0
    begins, ends = reduction_times(
        order, last, start[last], end[last], costs.reduce_s, costs.reduce_share, costs.reduce_tail_s
    )
    found = np.zeros((2, order.num_stages))
    found[:, order.stage[last[there]]] = begins[there], ends[there]
    return found[0], found[1]


def reduction_end(program: Program, start: Array, end: Array) -> Array:
    """When each rank's gradient reductions are done where they run beside its backwards. [s]"""
    done = np.full(program.order.num_ranks, -np.inf)
    np.maximum.at(done, program.order.rank_of_stage, reductions(program, start, end)[1])
    return done


def reduction_times(
    order: Order,
    last: Ints,
    start: Number,
    end: Number,
    reduce: RankPlanFloats,
    share: StagePlanFloats,
    tail: RankPlanFloats,
) -> tuple[Number, Number]:
    """Begin and end of gradient reductions that backwards overlap; (ranks, stages of a rank, plans).  [s]

    Gradients of a stage become final layer by layer during the last backward on it, and its reduction follows at the
    network's pace: it may begin when that backward does and the rank's reductions before it are done, and ends at least
    one bucket after that backward.

    Parameters
    ----------
    last : array (ranks, stages of a rank)
        As of `sim.schedules.passes.last_gradients`.
    start, end : arrays (ranks, stages of a rank, plans)
        Of these actions. [s]
    reduce, tail : arrays (ranks, plans)
        All of a rank's reductions, and the last bucket. [s]
    share : array (stages, plans)
        Of its rank's gradients, those of each stage.
    """
    begins, ends = np.empty_like(start), np.empty_like(end)
    free = np.full(start[:, 0].shape, -np.inf)
    for turn in range(last.shape[1]):
        there = (last[:, turn] >= 0).reshape(-1, *[1] * (free.ndim - 1))
        duration = reduce * share[order.stage[last[:, turn]]]
        begins[:, turn] = np.maximum(free, start[:, turn])
        done = np.maximum(begins[:, turn] + duration, end[:, turn] + np.minimum(tail, duration))
        free = ends[:, turn] = np.where(there, done, free)
    return begins, ends
