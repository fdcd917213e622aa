"""Engines on the graph of tasks give what a plain loop over actions gives, every moment of it.

The loop shares nothing with the engines but the order: streams are a number a rank, until when each is taken, and what
follows the pipeline is arithmetic. It knows no folds.
"""

from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders

from sim.engines import ENGINES, Program, run
from sim.schedules import build_order, get_schedule, schedule_names
from sim.schedules.actions import B, F, I, U, W
from sim.schedules.passes import visits_of


@dataclass
class PlainStep:
    """Moments of actions and ranks, and what of each rank's reduction and gather lengthens the step. [s]"""

    start: np.ndarray
    end: np.ndarray
    pipeline_end_s: np.ndarray
    exposed_reduce_s: np.ndarray
    exposed_gather_s: np.ndarray
    waited_s: np.ndarray
    step_time_s: float


def plain_step(order, costs, hide_reduce=False, hide_gather=False):
    """Play a whole order."""
    compute, sent, slowed = _seconds(order, costs, hide_reduce)
    count, ranks, visits, found = len(order), order.num_ranks, costs.visits, visits_of(order)
    start, end, ready = np.zeros(count), np.zeros(count), np.zeros(count)
    rank_free, stream_free, waited = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    pair = np.full(count, -1) if order.pair_needs is None else order.pair_needs
    first, last = set(order.first[:-1].tolist()), set((order.first[1:] - 1).tolist())
    arrives = np.zeros(count)
    asks = np.stack([found.turns, found.then])

    def moves(action):
        """(gather, what of it the first pass hides, reduction) of a visit that an action opens."""
        back, stage = int(order.kind[action] != F), order.stage[action]
        early = visits.early[{F: 0, B: 1, I: 2, W: 2}[order.kind[action]], stage]
        return visits.gather[back, stage], early, back * visits.reduce[stage]

    def ask(action, now):
        gather, early, reduce = moves(action)
        if (gather > 0 or reduce > 0) and (visits.ahead or gather == 0):
            rank = order.rank[action]
            stream_free[rank] = max(stream_free[rank], now) + gather
            ready[action] = stream_free[rank] - early

    if visits is not None:
        for action in sorted(first):
            ask(action, 0.0)
    for action in order.topological.tolist():
        rank, idle = order.rank[action], rank_free[order.rank[action]]
        begin = idle
        for need in (order.needs[action], pair[action]):
            if need >= 0 and order.rank[need] != rank:
                begin = max(begin, arrives[need])
        if visits is not None and found.opens[action]:
            gather, _, _ = moves(action)
            if gather > 0 and not visits.ahead:
                stream_free[rank] = max(stream_free[rank], idle) + gather
                ready[action] = stream_free[rank]
            waited[rank] += max(ready[action] - begin, 0.0)
            begin = max(begin, ready[action])
            for opens in asks[:, action].tolist():
                if opens >= 0:
                    ask(opens, begin)
        start[action] = begin
        arrives[action] = begin + compute[action] + sent[action]
        if pair[action] >= 0:  # what both of a pair give is there when both are done
            arrives[action] += compute[action + 1]
        end[action] = begin + compute[action] + costs.p2p_blocks * sent[action] + slowed[action]
        rank_free[rank] = end[action]
        if visits is not None and found.closes[action] and visits.reduce[order.stage[action]] > 0:
            reduce, tail = visits.reduce[order.stage[action]], visits.tail[order.stage[action]]
            if visits.beside:
                stream_free[rank] = max(max(stream_free[rank], begin) + reduce, end[action] + tail)
            else:
                stream_free[rank] = rank_free[rank] = max(stream_free[rank], end[action]) + reduce
                waited[rank] += (action not in last) * (rank_free[rank] - end[action])
    ended = np.array([end[order.of_rank(rank)].max() for rank in range(ranks)])
    done = np.maximum(ended, stream_free)
    waited += done - ended
    if (order.kind == U).any():
        nothing = np.zeros(ranks)
        return PlainStep(start, end, done, nothing, nothing, waited, float(end.max()) + costs.step_setup_s)
    begun = np.zeros(ranks)
    if get_schedule(order.schedule).staggered:
        begun = start[order.first[:-1]].copy()
        if visits is not None:
            begun -= [gather - early for gather, early, _ in map(moves, order.first[:-1].tolist())]
    reduce, gather = costs.reduce_s, costs.gather_s
    if hide_reduce:
        hidden = np.clip(reduce - (_reduced(order, costs, start, end) - done), 0.0, reduce)
        reduce = reduce - costs.hidden_share * hidden
    if hide_gather:
        gather = gather - costs.hidden_share * np.minimum(gather, _window(order, compute))
    ready_at = done - begun + reduce
    tied = ready_at[list(order.ends)].max() + costs.tied_embedding_s if costs.tied_embedding_s else 0.0
    step = max(ready_at.max(), tied) + (costs.optimizer_s + gather).max() + costs.step_setup_s
    return PlainStep(start, end, done - begun, reduce, gather, waited, float(step))


def _seconds(order, costs, hide_reduce):
    """Compute and send of every action, and by what compute is slowed behind it. [s]"""
    update = costs.optimizer_s + costs.gather_s + (0.0 if hide_reduce else costs.reduce_s)
    passes = {F: costs.forward_s, B: costs.backward_s, I: costs.input_grad_s, W: costs.weight_grad_s,
              U: update[order.rank_of_stage]}  # fmt: skip
    sends = {F: costs.send_forward_s, B: costs.send_backward_s, I: costs.send_backward_s}
    compute = np.array([passes[kind][stage] for kind, stage in zip(order.kind, order.stage, strict=True)])
    sent = np.array([sends[kind][stage] if kind in sends else 0.0
                     for kind, stage in zip(order.kind, order.stage, strict=True)])  # fmt: skip
    slowed, found, visits = np.zeros(len(order)), visits_of(order), costs.visits
    for action in range(len(order)) if visits is not None else ():
        rank, stage = order.rank[action], order.stage[action]
        if found.closes[action] and action + 1 < order.first[rank + 1]:
            slowed[action] += visits.reduce_slows[stage]
        if found.opens[action] and action > order.first[rank]:
            slowed[action - 1] += visits.gather_slows[int(order.kind[action] != F), stage]
    return compute, sent, slowed


def _reduced(order, costs, start, end):
    """When each rank's reductions beside its last backwards are done. [s]"""
    done = np.full(order.num_ranks, -np.inf)
    for rank in range(order.num_ranks):
        here = range(*order.of_rank(rank).indices(len(order)))
        last = {order.stage[action]: action for action in here if order.kind[action] not in (F, U)}
        for stage, action in sorted(last.items(), key=lambda each: each[1]):
            seconds = costs.reduce_s[rank] * costs.reduce_share[stage]
            tail = min(costs.reduce_tail_s[rank], seconds)
            done[rank] = max(max(done[rank], start[action]) + seconds, end[action] + tail)
    return done


def _window(order, compute):
    """Forward seconds of each rank before it needs the last of its gathered weights. [s]"""
    window = np.zeros(order.num_ranks)
    for rank in range(order.num_ranks):
        here = order.of_rank(rank)
        _, first = np.unique(order.stage[here], return_index=True)
        window[rank] = compute[here][: first.max() + 1].sum()
    return window


seeds = st.integers(0, 2**32).map(np.random.default_rng)
switch = st.booleans()


def random_program(order, rng, random_costs, *, sends=True, blocks=True, hide=(False, False)):
    """A program with what its ranks move at visits, where they have several chunks."""
    several = get_schedule(order.schedule).interleaves
    costs = random_costs(rng, order, sends=sends, blocks=blocks, visits=several)
    return Program(order, costs, *hide)


def assert_same(timeline, plain):
    order = timeline.program.order
    given = {"rtol": 1e-9, "atol": 1e-9 * plain.step_time_s}
    np.testing.assert_allclose(timeline.start, plain.start, **given)
    np.testing.assert_allclose(timeline.end, plain.end, **given)
    assert timeline.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)
    if not (order.kind == U).any():
        for name in ("pipeline_end_s", "exposed_reduce_s", "exposed_gather_s"):
            np.testing.assert_allclose(getattr(timeline, name), getattr(plain, name), **given)
        if timeline.waited_s is not None:
            np.testing.assert_allclose(timeline.waited_s, plain.waited_s, **given)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@given(order=orders(), rng=seeds, sends=switch, blocks=switch, hide=st.tuples(switch, switch), wide=switch)
def test_a_step_is_what_a_plain_loop_makes_of_it(engine, order, rng, sends, blocks, hide, wide, random_costs):
    """Whether the exact engine plays events level by level, as arrays, or one by one."""
    if get_schedule(order.schedule).asynchronous:
        hide = (False, False)  # what a reduction then has until the next update but one is a formula
    program = random_program(order, rng, random_costs, sends=sends, blocks=blocks, hide=hide)
    with mock.patch("sim.engines.max_plus.WIDE", 0 if wide else 10**9):
        assert_same(run(program, engine), plain_step(order, program.costs, *hide))


@pytest.mark.parametrize("name", schedule_names())
@given(rng=seeds, blocks=switch, more=st.integers(0, 3))
def test_a_folded_step_is_the_whole_one(name, rng, blocks, more, random_costs):
    chosen = get_schedule(name)
    chunks = 1 if chosen.chunks == "one" else 2 if chosen.chunks == "many" else chosen.chunks
    count = 4 * (20 + more)
    folded = build_order(name, 4, chunks, count, fold=True)
    if folded.fold is None or folded.fold.endless:
        return
    program = random_program(folded, rng, random_costs, blocks=blocks, hide=(True, False))
    whole = plain_step(folded.fold.unfold(), program.costs, True)
    for engine in ("dag", "des"):
        timeline = run(program, engine)
        assert timeline.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
        np.testing.assert_allclose(timeline.pipeline_end_s, whole.pipeline_end_s, rtol=1e-9)
        if timeline.waited_s is not None:
            np.testing.assert_allclose(timeline.waited_s, whole.waited_s, rtol=1e-6, atol=1e-6 * whole.step_time_s)
