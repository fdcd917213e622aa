"""What ranks with several chunks move once a visit: when it happens, in every engine alike, and what it costs."""

from dataclasses import replace

import numpy as np
import pytest
from counts import visits_per_stage
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders
from test_network_engine import traffic_of

from flopcast_validation.job.cores import Processes
from sim.breakdown import break_down
from sim.engines import Program, network, run
from sim.estimate import estimate
from sim.pricing.zero import VisitSeconds
from sim.schedules import build_order, get_schedule, schedule_names
from sim.schedules.passes import visits_of
from sim.specs import build_scenario
from sim.traffic.streams import Stream

CHUNKED = [name for name in schedule_names() if get_schedule(name).interleaves]
seeds = st.integers(0, 2**32).map(np.random.default_rng)
switch = st.booleans()


def moving(gather, reduce, *, early=0.0, tail=0.0, ahead=True, beside=True, slows=0.0):
    """The same at every visit to each of some stages."""
    each = np.ones(np.shape(reduce))
    both = np.stack([each, each])
    return VisitSeconds(
        gather=gather * both,
        early=early * np.stack([each, each, each]),
        reduce=np.asarray(reduce, dtype=float),
        tail=tail * each,
        gather_slows=slows * both,
        reduce_slows=0.0 * each,
        ahead=np.array(ahead),
        beside=np.array(beside),
    )


def step(order, costs, visits=None, engine="dag"):
    return run(Program(order, replace(costs, visits=visits)), engine)


# Where visits are


def test_visits_of_a_breadth_first_order():
    """Of two chunks, one visit there and one back; gradients are complete with the last micro-batch."""
    order = build_order("breadth_first", 2, 2, 3)
    visits = visits_of(order)
    texts = [str(action) for row in order.actions for action in row]
    assert [texts[place] for place in np.flatnonzero(visits.opens)[:4]] == ["0F0", "2F0", "2B2", "0B2"]
    assert [texts[place] for place in np.flatnonzero(visits.closes)[:2]] == ["2B0", "0B0"]
    assert visits_per_stage(order) == 1.0


@given(order=orders(CHUNKED), rng=seeds, sends=switch, blocks=switch)
def test_ranks_with_cores_of_their_own_take_as_long(order, rng, sends, blocks, random_costs):
    """Engines are held against a plain loop in tests/oracles."""
    program = Program(order, random_costs(rng, order, sends=sends, blocks=blocks, visits=True))
    dag = run(program)
    assert Processes(program, None).run().step_time_s == pytest.approx(dag.step_time_s, rel=1e-9)
    breakdown = break_down(dag)
    assert breakdown.total == pytest.approx(dag.step_time_s, rel=1e-9)
    assert min(breakdown.seconds.values()) >= 0


# When it happens


def test_one_rank_gathers_the_next_chunk_while_it_computes(costs_of):
    """Two chunks of 2 s there and 3 s back, four micro-batches, 1.5 s a gather: all but the first of them is hidden."""
    order, costs = build_order("breadth_first", 1, 2, 4), costs_of(1, [2.0, 2.0], [3.0, 3.0])
    compute = 4 * 2 * (2 + 3)
    assert step(order, costs, moving(1.5, [0.0, 0.0])).step_time_s == pytest.approx(compute + 1.5)
    # Its blocks come one after the other: the first pass hides all but the first of them.
    assert step(order, costs, moving(1.5, [0.0, 0.0], early=1.0)).step_time_s == pytest.approx(compute + 0.5)
    # Without overlap it waits for every one of the four visits, and for both reductions.
    waits = moving(1.5, [2.0, 2.0], ahead=False, beside=False)
    assert step(order, costs, waits).step_time_s == pytest.approx(compute + 4 * 1.5 + 2 * 2.0)
    # Beside the backward only what is left of the last reduction counts, and what others take from compute.
    beside = moving(1.5, [2.0, 2.0], tail=0.25, slows=0.1)
    assert step(order, costs, beside).step_time_s == pytest.approx(compute + 1.5 + 0.25 + 3 * 0.1)


def test_a_network_that_is_too_slow_sets_the_pace(costs_of):
    """A gather of 10 s beside a visit of 2 s: the next is asked for when this one begins."""
    order, costs = build_order("breadth_first", 1, 3, 1), costs_of(1, [2.0] * 3, [2.0] * 3)
    assert step(order, costs, moving(10.0, [0.0] * 3)).step_time_s == pytest.approx(6 * 10.0 + 2.0)


def test_weights_arrive_while_a_rank_waits_for_the_pipeline(costs_of):
    """Eight ranks, 6 s a gather: the first waits for its first chunk, and the last, which turns back after a forward of
    1 s, for 5 s more. The last waits for 7 s before its first micro-batch comes, and so does every rank in the round of
    the pipeline: all other gathers are hidden."""
    order, costs = build_order("breadth_first", 8, 2, 1), costs_of(8, np.ones(16), 2 * np.ones(16))
    alone, timeline = step(order, costs), step(order, costs, moving(6.0, np.zeros(16)))
    assert timeline.step_time_s == pytest.approx(alone.step_time_s + 6.0 + 5.0)
    assert timeline.waited_s == pytest.approx([6.0] + [0.0] * 6 + [5.0])
    seconds = break_down(timeline).seconds
    assert seconds["data_parallel_comm"] == pytest.approx(11.0 / 8)
    assert seconds["pipeline_bubble"] == pytest.approx(alone.step_time_s + 11.0 * 7 / 8 - 2 * 3)


@given(order=orders(CHUNKED), rng=seeds, sends=switch, blocks=switch)
def test_streams_over_wires_of_their_own_take_as_long(order, rng, sends, blocks, random_costs):
    costs = random_costs(rng, order, sends=sends, blocks=blocks, visits=True)
    nothing = np.zeros(order.num_ranks)
    costs = replace(costs, reduce_s=nothing, reduce_tail_s=nothing, gather_s=nothing)
    if not blocks:  # short enough that no message waits for the one before it
        costs = replace(costs, send_forward_s=costs.send_forward_s / 10, send_backward_s=costs.send_backward_s / 10)
    sent = traffic_of(order, costs, lambda number: [number])
    own = len(sent.streams) + np.arange(order.num_ranks)
    moved = tuple(Stream(0.0, 1.0, 0.0, np.array([place]), np.ones(1), np.ones(1), 1.0) for place in own.tolist())
    health = np.ones(len(sent.streams) + order.num_ranks)
    traffic = replace(sent, health=health, streams=sent.streams + moved, visits=own)
    program = Program(order, costs)
    dag, shared = run(program), network.run(program, traffic).timeline
    assert shared.step_time_s == pytest.approx(dag.step_time_s, rel=1e-9)
    np.testing.assert_allclose(shared.start, dag.start, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shared.waited_s.sum(), dag.waited_s.sum(), rtol=1e-9, atol=1e-9)


# What it is for


def large(batch, zero_stage=3, schedule="breadth_first", num_chunks=3):
    """39 billion parameters on 16 pipeline ranks of B200, three layers a rank: Lamy-Poirier's order with ZeRO."""
    plan = {"tp": 1, "pp": 16, "dp": 8, "schedule": schedule, "num_chunks": num_chunks, "zero_stage": zero_stage}
    training = {"global_batch_size": 8 * batch, "sequence_length": 2048, "precision": "bf16"}
    stack = {"preset": "megatron-core", "overlap_param_gather": True, "overlap_grad_reduce": True, "overlap_p2p": True,
             "fused_gradient_accumulation": False}  # fmt: skip
    return build_scenario(
        {"model": "gpt-39.1b", "cluster": "superpod-b200", "plan": plan, "training": training, "stack": stack}
    )


def test_few_micro_batches_take_no_longer_than_many():
    """A share of each gather for every micro-batch once made one of them take 0.93 s and four 0.80 s."""
    times = [estimate(large(batch)).step_time_s for batch in (1, 2, 4, 8, 16, 32, 64)]
    assert (np.diff(times) > 0).all()
    for batch, seconds in zip((1, 8, 64), (times[0], times[3], times[6]), strict=True):
        assert seconds == pytest.approx(estimate(large(batch, zero_stage=1)).step_time_s, rel=0.02)
