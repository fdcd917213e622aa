"""What ranks with several chunks move once a visit: when it happens, in every engine alike, and what it costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders
from test_network_engine import traffic_of

from flopcast_validation.job.cores import Processes
from sim.breakdown import break_down
from sim.engines import Program, network, run
from sim.schedules import get_schedule, schedule_names
from sim.traffic.streams import Stream

CHUNKED = [name for name in schedule_names() if get_schedule(name).interleaves]
seeds = st.integers(0, 2**32).map(np.random.default_rng)
switch = st.booleans()


@given(order=orders(CHUNKED), rng=seeds, sends=switch, blocks=switch)
def test_ranks_with_cores_of_their_own_take_as_long(order, rng, sends, blocks, random_costs):
    """Engines are held against a plain loop in tests/oracles."""
    program = Program(order, random_costs(rng, order, sends=sends, blocks=blocks, visits=True))
    dag = run(program)
    assert Processes(program, None).run().step_time_s == pytest.approx(dag.step_time_s, rel=1e-9)
    breakdown = break_down(dag)
    assert breakdown.total == pytest.approx(dag.step_time_s, rel=1e-9)
    assert min(breakdown.seconds.values()) >= 0


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
