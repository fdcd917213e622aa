"""A training step as one graph of tasks: everything that takes time is a task on a stream of a rank.

Passes (forward, backward, its halves, updates within an order) are on a rank's compute stream. What it gathers and
reduces at visits of its chunks is on its data stream, and gradients that its last backwards overlap are on another.
What follows the pipeline (reductions, the tied embedding's sum, the update, the weight gather, the host's set-up) comes
once a step. Sends are the lags between passes of two ranks.

Who waits for whom depends on the order and a few yes-or-no facts, `Switches`: that structure is built once, by NumPy,
and kept. Seconds are an array of amounts that belong to classes of actions, with plans as a second axis if there are
many; so the seconds of hundreds of plans stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from sim.arrays import FloatArray, IntArray, any_of, distinct
from sim.engines.max_plus import (
    AFTER,
    BEFORE,
    BLEND,
    END,
    FOLDED,
    MAX,
    MINUS,
    NO_STREAM,
    TOGETHER,
    WHOLE,
    Graph,
    TaskList,
    build_graph,
)
from sim.engines.program import Classes, Program, classes_of
from sim.pricing.zero import VisitSeconds
from sim.schedules import Order
from sim.schedules.actions import KINDS, F, U
from sim.schedules.passes import last_gradients, visits_of
from sim.schedules.registry import is_staggered

GATHER, REDUCE, BUCKET, TIED, UPDATE, REGATHER, SETUP, JOIN = range(len(KINDS), len(KINDS) + 8)
"""What tasks are, besides the kinds of actions. A reduction is its body, which may run beside the backward that gives
its gradients, and its last bucket, which may not. REGATHER gathers the weights that were updated."""
COMPUTE, DATA, GRADIENTS, ONCE = range(4)
"""Streams of a rank: its passes; what it moves at visits; gradients that are reduced once a step, beside its last
backwards or after them; and what else follows the pipeline."""
_EARLY_PASS = np.array([0, 1, 2, 2, 0])
"""Which pass of `VisitSeconds.early` each kind of action is; only the first three open visits."""


class Switches(NamedTuple):
    """Facts that decide which tasks there are and what they wait for; plans that agree on them share a graph.

    each : every action has seconds of its own, as in steps that are drawn at random.
    overlap_reduce : gradients are reduced beside the last backwards.
    tied : the ranks of the first and the last stage sum the gradient of a tied embedding.
    visits : something is moved at visits.
    ahead : weights of the next visit are gathered while a rank computes; else it waits for them.
    beside : gradients of visits are reduced while the rank goes on.
    gathers : whether forward visits gather weights, and backward visits.
    reduces : whether visits reduce gradients.
    between : ranks sum gradients, or gather weights, between two flushes of a step.
    """

    each: bool = False
    overlap_reduce: bool = False
    tied: bool = False
    visits: bool = False
    ahead: bool = False
    beside: bool = False
    gathers: tuple[bool, bool] = (False, False)
    reduces: bool = False
    between: bool = False


def switches_of(program: Program) -> Switches:
    """The facts that decide the structure; of many plans, those of all together."""
    costs = program.costs
    overlap, visits = any_of(program.hide_grad_reduce) and any_of(costs.reduce_s), costs.visits
    tied, between = any_of(costs.tied_embedding_s), any_of(program.between_flushes_s)
    once = Switches(program.drawn_s is not None, overlap, tied, between=between)
    if visits is None:
        return once
    return once._replace(
        visits=True,
        ahead=bool(np.all(visits.ahead)),
        beside=bool(np.all(visits.beside)),
        gathers=(bool((visits.gather[0] > 0).any()), bool((visits.gather[1] > 0).any())),
        reduces=bool((visits.reduce > 0).any()),
    )


@lru_cache(maxsize=256)
def places_of(order: Order, on: Switches) -> dict[str, slice]:
    """Where each kind of amount stands in the array of seconds."""
    n, p, s = len(classes_of(order, on.visits, on.each).action), order.num_ranks, order.num_stages
    sizes = {"none": 1, "pass": n, "message": n, "last body": s, "last bucket": s, "reduce": p, "first wait": p,
             "tied": 1, "between": p, "update": p, "regather": p, "setup": 1}  # fmt: skip
    if on.visits:
        sizes |= dict.fromkeys(("gather", "early", "late", "body", "bucket", "closes"), n)
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The graph of a step, and which of its tasks are what; the first are the order's actions. Arrays of task numbers.

    done : (ranks). The join when a rank's last pass, and all that it moves at visits, is done.
    ready : (ranks). The join when its gradients are summed; since : (ranks), the same since its own step began, where
        ranks do not wait for each other between steps.
    update, regather : (ranks); None where updates stand in the order.
    step : the join when all ranks have updated.
    bodies, buckets : the two parts of reductions that run beside backwards, and of those at visits.
    """

    graph: Graph
    done: IntArray
    ready: IntArray
    since: IntArray | None
    update: IntArray | None
    regather: IntArray | None
    step: int
    bodies: IntArray
    buckets: IntArray


@lru_cache(maxsize=128)
def step_of(order: Order, on: Switches) -> Step:
    """Tasks of a step and what they wait for."""
    lanes, ranks, last = _Lanes(order, on), np.arange(order.num_ranks), order.first[1:] - 1
    lanes.passes()
    if on.visits:
        lanes.gathers()
    if on.reduces:
        lanes.reductions()
    if on.between:
        lanes.between_flushes()
    done = lanes.join(ranks, 0, END)
    lanes.wait(done, last)
    if on.visits:
        moving, end = lanes.last_on(DATA)
        lanes.wait(done[moving], end)
    ready, since, update, regather = done, None, None, None
    if (order.kind == U).any():
        step = lanes.join([0], 0, TOGETHER)
        lanes.wait(step, last)
    else:
        ready = lanes.once_reduced(done)
        if is_staggered(order.schedule):  # ranks do not wait for each other between steps: each counts from its begin
            since = lanes.join(ranks, 10, END, rule=MINUS)
            lanes.wait(since, ready)
            lanes.wait(since, order.first[:-1], lanes.amount("first wait", ranks), from_end=False)
        update, regather, step = lanes.once_updated(ready if since is None else since)
    fold = (0, 1) if order.fold is None else (order.fold.seen, order.fold.depth)
    parts = np.concatenate(lanes.bodies), np.concatenate(lanes.buckets)
    return Step(build_graph(lanes.tasks(), *fold), done, ready, since, update, regather, int(step[0]), *parts)


class _Lanes(TaskList):
    """The tasks of a step, stream by stream; bodies and buckets of reductions are listed as they are added."""

    def __init__(self, order: Order, on: Switches) -> None:
        super().__init__()
        self.order, self.on, self.at = order, on, places_of(order, on)
        self.of = classes_of(order, on.visits, on.each).of
        action, fold, block = np.arange(len(order)), order.fold, np.full(len(order), AFTER)
        place = np.empty_like(action)
        place[order.topological] = np.searchsorted(order.levels, action, side="right")
        if fold is not None:  # how many blocks an action stands before the last one that was seen
            back = (fold.cuts[order.rank] - 1 - action) // fold.lengths[order.rank]
            block = np.where(back < 0, AFTER, np.where(back < fold.seen, back, BEFORE))
        self.stands = {"place": place, "phase": np.where(block == AFTER, WHOLE, FOLDED), "block": block}
        self.bodies, self.buckets = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]

    def amount(self, name: str, number: Any = 0) -> Any:
        """The place of an amount of a rank or stage."""
        return self.at[name].start + number

    def of_action(self, name: str, action: IntArray) -> IntArray:
        """The places of the amounts of actions."""
        return np.asarray(self.at[name].start + self.of[action])

    def join(self, rank: Any, place: int, phase: int, rule: int = MAX) -> IntArray:
        """Add joins."""
        return self.add(JOIN, rank, NO_STREAM, place=place, phase=phase, rule=rule)

    def beside(self, what: Any, stream: int, amount: IntArray, action: IntArray, when: IntArray, slot: int) -> IntArray:
        """Add tasks for some actions, which are asked for at others."""
        stands = {name: each[when] for name, each in self.stands.items()}
        return self.add(what, self.order.rank[when], stream, amount, action=action, slot=slot, **stands)

    def passes(self) -> None:
        """Add the order's actions; where a need is met on another rank, a message lies between."""
        order, action = self.order, np.arange(len(self.order))
        self.beside(order.kind, COMPUTE, self.of_action("pass", action), action, action, 1)
        for needs in (order.needs, order.pair_needs):
            if needs is not None:
                there = order.abroad(needs)
                self.wait(action, there, self.of_action("message", there))

    def between_flushes(self) -> None:
        """Add what a rank moves between two flushes, when the one is done and before the other begins."""
        first, previous = self.order.begins_flush, self.order.previous[self.order.begins_flush]
        moved = self.beside(REDUCE, GRADIENTS, self.amount("between", self.order.rank[first]), previous, first, 0)
        self.wait(moved, previous)
        self.wait(first, moved)
        self.bodies.append(moved)
        self.buckets.append(moved)

    def gathers(self) -> None:
        """Add weight gathers, one after the other on the rank's data stream.

        A gather is asked for when the visit before opens: the next the same way and, before a rank's first backward,
        that one. That bounds the buffers. Without overlap it begins when its rank has nothing else to do, and the rank
        waits. PyTorch's FSDP asks for weights before it hands in gradients (torch.distributed.fsdp.BackwardPrefetch).
        """
        order, on, visits, first = self.order, self.on, visits_of(self.order), self.order.first[:-1]
        forward = order.kind == F
        gathers = np.where(forward, *on.gathers)
        moves = visits.opens & (gathers | (on.reduces & ~forward))
        late = moves & gathers & (not on.ahead)
        first = first[moves[first] & ~late[first]]  # asked for when the step begins
        here = {"place": self.stands["place"][first], "phase": self.stands["phase"][first], "block": BEFORE}
        ahead = self.add(GATHER, order.rank[first], DATA, self.of_action("gather", first), action=first, **here)
        self.wait(first, ahead, self.of_action("early", first))
        for turn, opens in enumerate((visits.turns, visits.then)):
            asker = np.flatnonzero(np.where(opens >= 0, moves[opens] & ~late[opens], False))
            opens = opens[asker]
            ahead = self.beside(GATHER, DATA, self.of_action("gather", opens), opens, asker, 2 + turn)
            self.wait(ahead, asker, from_end=False)
            self.wait(opens, ahead, self.of_action("early", opens))
        opens = np.flatnonzero(late)
        now = self.beside(GATHER, DATA, self.of_action("gather", opens), opens, opens, 0)
        self.wait(now, order.previous[opens])
        self.wait(opens, now, self.of_action("late", opens))

    def reductions(self) -> None:
        """Add gradient reductions of visits, which begin with the pass that gives the last gradients of each."""
        closes = np.flatnonzero(visits_of(self.order).closes)
        lag = self.of_action("closes", closes)
        # After all that is asked for.
        body = self.beside(REDUCE, DATA, self.of_action("body", closes), closes, closes, 4)
        bucket = self.beside(BUCKET, DATA, self.of_action("bucket", closes), closes, closes, 5)
        self.wait(body, closes, from_end=False)
        self.wait(bucket, closes, lag)
        if not self.on.beside:
            goes_on = ~np.isin(closes, self.order.first[1:] - 1)
            self.wait(closes[goes_on] + 1, bucket[goes_on], lag[goes_on])
        self.bodies.append(body)
        self.buckets.append(bucket)

    def once_reduced(self, done: IntArray) -> IntArray:
        """Add each rank's gradient reductions; return the joins when its gradients are summed."""
        order, ranks = self.order, np.arange(self.order.num_ranks)
        if not self.on.overlap_reduce:
            reduce = self.add(REDUCE, ranks, GRADIENTS, self.amount("reduce", ranks), place=1, phase=END)
            self.wait(reduce, done)
            ready = self.join(ranks, 9, END)
            self.wait(ready, reduce)
            return ready
        reduced = self.join(ranks, 8, END)
        self.wait(reduced, done)
        for turn, last in enumerate(last_gradients(order).T):
            rank = np.flatnonzero(last >= 0)
            action, stage = last[rank], order.stage[last[rank]]
            given = {"action": action, "place": 1, "phase": END}
            body = self.add(REDUCE, rank, GRADIENTS, self.amount("last body", stage), slot=2 * turn, **given)
            bucket = self.add(BUCKET, rank, GRADIENTS, self.amount("last bucket", stage), slot=2 * turn + 1, **given)
            self.wait(body, action, from_end=False)
            self.wait(bucket, action)
            self.wait(reduced[rank], bucket)
            self.bodies.append(body)
            self.buckets.append(bucket)
        # Of a reduction beside compute the share h is free, and the rest is as if it came after: a blend of both ends.
        ready = self.join(ranks, 9, END, rule=BLEND)
        self.wait(ready, reduced)
        self.wait(ready, done, self.amount("reduce", ranks))
        return ready

    def once_updated(self, ready: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Add what all ranks do together; return the updates, the weight gathers, and the join after them.

        The ranks of the first and the last stage sum the tied embedding's gradient once both have their own. All update
        once the last is ready, because the gradient norm and the overflow check need every gradient.
        """

        def together(what: int, ranks: IntArray, amount: Any, place: int) -> IntArray:
            return self.add(what, ranks, ONCE, amount, place=place, phase=TOGETHER)

        ranks, barrier = np.arange(self.order.num_ranks), self.join([0], 2, TOGETHER)
        self.wait(barrier, ready)
        if self.on.tied:
            ends, both = distinct(self.order.ends), self.join([0], 0, TOGETHER)
            self.wait(both, ready[ends])
            tied = together(TIED, ends, self.amount("tied"), 1)
            self.wait(tied, both)
            self.wait(barrier, tied)
        update = together(UPDATE, ranks, self.amount("update", ranks), 3)
        self.wait(update, barrier)
        regather, step = together(REGATHER, ranks, self.amount("regather", ranks), 4), self.join([0], 5, TOGETHER)
        self.wait(step, regather)
        self.wait(together(SETUP, ranks, self.amount("setup"), 6), step)
        return update, regather, step


def amounts_of(program: Program, on: Switches) -> FloatArray:
    """Seconds of all tasks and lags of a step, (amounts) or (amounts, plans).  [s]"""
    order, costs, at, classes = program.order, program.costs, places_of(program.order, on), program.classes
    _, occupy, release = program.class_seconds()
    found = np.zeros((at[list(at)[-1]].stop, *occupy.shape[1:]))

    def put(name: str, values: Any) -> None:
        values, here = np.asarray(values), found[at[name]]
        here[...] = values[:, np.newaxis] if values.ndim < here.ndim and values.shape == here.shape[:1] else values

    put("pass", occupy)
    put("message", release - occupy)
    put("reduce", costs.reduce_s)
    put("tied", costs.tied_embedding_s)
    put("between", program.between_flushes_s)
    put("update", costs.optimizer_s)
    put("regather", program.gather_s())
    put("setup", costs.step_setup_s)
    if on.overlap_reduce:
        last = costs.reduce_s[order.rank_of_stage] * costs.reduce_share
        bucket = np.minimum(costs.reduce_tail_s[order.rank_of_stage], last)
        put("last body", last - bucket)
        put("last bucket", bucket)
    if costs.visits is not None:
        for name, values in amounts_at_visits(order, classes, costs.visits).items():
            put(name, values)
        first = classes.of[order.first[:-1]]
        put("first wait", -np.maximum(found[at["gather"]] + found[at["early"]], 0.0)[first])
    return found


def amounts_at_visits(order: Order, classes: Classes, visits: VisitSeconds) -> dict[str, FloatArray]:
    """What visits move, by class of actions. What moves nothing keeps nobody waiting.  [s]"""
    found, which = visits_of(order), classes.action
    kind, stage, axes = classes.kind, classes.stage, [1] * (visits.reduce.ndim - 1)
    back = (kind != F).astype(np.int64)
    opens, closes = (each[which].reshape(-1, *axes) for each in (found.opens, found.closes))
    gather, reduce = visits.gather[back, stage] * opens, visits.reduce[stage]
    queues = (gather > 0) | (reduce * (opens & (back > 0).reshape(-1, *axes)) > 0)
    early = visits.early[_EARLY_PASS[kind], stage] * opens
    reduce = reduce * closes
    bucket = np.where(visits.beside, visits.tail[stage] * closes, reduce)
    return {
        "gather": gather,
        "early": np.where(queues, -early, -np.inf),
        "late": np.where(gather > 0, 0.0, -np.inf),
        "body": reduce - bucket,
        "bucket": bucket,
        "closes": np.where(reduce > 0, 0.0, -np.inf),
    }
