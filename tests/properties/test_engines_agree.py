"""Engines give published pipeline times, no overlap lengthens a step, and the parts of a breakdown are the step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders

from sim.breakdown import CAUSES, break_down
from sim.engines import ENGINES, Program, run
from sim.schedules import build_order, get_schedule, schedule_names

seeds = st.integers(0, 2**32).map(np.random.default_rng)
switch = st.booleans()


def program_of(order, costs, hide_grad_reduce=False, hide_gather=False):
    return Program(order, costs, hide_grad_reduce=hide_grad_reduce, hide_gather=hide_gather)


def step(order, costs, engine="dag"):
    return run(Program(order, costs), engine).step_time_s


@pytest.mark.parametrize("engine", ["dag", "des"])
@pytest.mark.parametrize(
    ("name", "steady"),
    [
        ("1f1b", 1 + 2 + 2 * 0.1 * 3 / 4),
        ("gpipe", 1 + 2),
    ],  # t_F + t_B + 2 t_c (p − 1)/p: a round trip every p micro-batches
)
def test_delay_of_sends_beside_compute(name, steady, engine, costs_of):
    costs = costs_of(
        4, np.ones(4), np.full(4, 2.0), send_forward_s=[0.1] * 3 + [0.0], send_backward_s=[0.0] + [0.1] * 3,
        p2p_blocks=False,
    )  # fmt: skip
    few, many = (step(build_order(name, 4, 1, m), costs, engine) for m in (40, 80))
    assert (many - few) / 40 == pytest.approx(steady)
    if name == "gpipe":  # only fill and drain pay
        assert few == pytest.approx(40 * 3 + 3 * (1 + 2 + 2 * 0.1))


@given(order=orders(), rng=seeds, sends=switch)
def test_sends_beside_compute_never_lengthen_a_step(order, rng, sends, random_costs):
    state = rng.bit_generator.state
    steps = []
    for blocks in (True, False):
        rng.bit_generator.state = state
        steps.append(step(order, random_costs(rng, order, sends=sends, blocks=blocks)))
    assert steps[1] <= steps[0] * (1 + 1e-9)


FLUSHED = [name for name in schedule_names() if not get_schedule(name).asynchronous]


@given(order=orders(FLUSHED), rng=seeds, engine=st.sampled_from(sorted(ENGINES)))
def test_hiding_reductions_and_gathers_never_lengthens_a_step(order, rng, engine, random_costs):
    costs = random_costs(rng, order)
    plain = run(program_of(order, costs), engine)
    for hide in ((True, False), (False, True), (True, True)):
        hidden = run(program_of(order, costs, *hide), engine)
        assert hidden.step_time_s <= plain.step_time_s * (1 + 1e-9)
        assert (hidden.exposed_reduce_s >= costs.reduce_tail_s - 1e-12).all()
        assert (hidden.exposed_reduce_s <= costs.reduce_s + 1e-12).all()


def test_breakdown_names_the_right_causes(costs_of):
    # Three ranks, four micro-batches, t_F = 1, t_B = 2; a quarter of the backward is recomputation, half of the other
    # matrix multiplies' time is at peak.
    order = build_order("1f1b", 3, 1, 4)
    even = {"optimizer_s": [0.5] * 3, "reduce_s": [1.5] * 3, "reduce_tail_s": [0.25] * 3, "gather_s": [0.75] * 3}
    seconds = break_down(run(Program(order, costs_of(3, [1] * 3, [2] * 3, **even)))).seconds
    expected = {
        "flop_at_peak": 4 * 0.5 * (1 + 1.5), "matmul_inefficiency": 4 * 0.5 * (1 + 1.5), "recompute": 4 * 0.5,
        "pipeline_bubble": 2 * (1 + 2), "data_parallel_comm": 1.5 + 0.75, "optimizer": 0.5,
    }  # fmt: skip
    assert seconds == pytest.approx({**dict.fromkeys(CAUSES, 0.0), **expected})
    # One slower rank keeps the others waiting; sends that block count apart.
    slow = break_down(run(Program(order, costs_of(3, [1, 1, 1], [2, 2, 5])))).seconds
    assert slow["stage_imbalance"] == pytest.approx(4 * (6 - (3 + 3 + 6) / 3))
    sends = {"send_forward_s": [0.2, 0.4, 0.0], "send_backward_s": [0.0, 0.2, 0.4]}
    blocking = break_down(run(Program(order, costs_of(3, [1] * 3, [2] * 3, **sends)))).seconds
    assert blocking["pipeline_comm"] == pytest.approx(4 * (0.2 + 0.4 + 0.2 + 0.4) / 3)
    beside = break_down(run(Program(order, costs_of(3, [1] * 3, [2] * 3, p2p_blocks=False, **sends)))).seconds
    assert beside["pipeline_comm"] == 0
