"""Steps drawn at random: exact without noise, the right distribution with it, monotone in every slow GPU."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import orders

from sim.costs.block import FORWARD
from sim.engines import Program, run
from sim.engines.noise import factors_of, noisy_program, noisy_steps, replica, slowed
from sim.schedules import build_order, get_schedule
from sim.work.operations import Cause

seeds = st.integers(0, 2**32).map(np.random.default_rng)
switch = st.booleans()


def alike(program, members=2, factor=1.0):
    return replica(program, np.full((program.order.num_ranks, members), factor))


def has_a_step(order):
    return not get_schedule(order.schedule).staggered and not get_schedule(order.schedule).asynchronous


@given(order=orders(), rng=seeds, blocks=switch, beside=switch)
def test_without_jitter_every_step_is_the_longest_path(order, rng, blocks, beside, random_costs):
    assume(has_a_step(order))
    program = Program(order, random_costs(rng, order, blocks=blocks), hide_grad_reduce=beside, hide_gather=beside)
    steps = noisy_steps([alike(program)] * 3, 0.0, 2)
    np.testing.assert_allclose(steps, run(program).step_time_s, rtol=1e-12)


@given(order=orders(), rng=seeds, blocks=switch, beside=switch)
def test_a_noisy_step_is_what_the_event_engine_makes_of_it(order, rng, blocks, beside, random_costs):
    assume(has_a_step(order) and order.pair_needs is None)
    program = Program(order, random_costs(rng, order, blocks=blocks), hide_grad_reduce=beside)
    steps = noisy_steps([alike(program)], 0.3, 2, seed=5)
    played = [run(noisy_program(alike(program), 0.3, number, seed=5), "des").step_time_s for number in range(2)]
    np.testing.assert_allclose(steps, played, rtol=1e-9)


@given(
    order=orders(), rng=seeds, factor=st.floats(1, 3), more=st.floats(1, 2), jitter=st.sampled_from([0.0, 0.02, 0.3])
)
def test_a_slower_gpu_never_shortens_any_step(order, rng, factor, more, jitter, random_costs):
    assume(has_a_step(order))
    program = Program(order, random_costs(rng, order))
    rank, member = rng.integers(order.num_ranks), rng.integers(4)
    steps = []
    for slow in (1.0, factor, factor * more):
        factors = np.ones((order.num_ranks, 4))
        factors[rank, member] = slow
        steps.append(noisy_steps([replica(program, factors), alike(program, 4)], jitter, 3))
    assert (steps[0] <= steps[1] * (1 + 1e-12)).all()
    assert (steps[1] <= steps[2] * (1 + 1e-12)).all()


@given(order=orders(), rng=seeds, factor=st.floats(1, 3))
def test_slow_everywhere_is_kernels_times_the_factor(order, rng, factor, random_costs):
    assume(has_a_step(order))
    costs = random_costs(rng, order)
    passes, times = costs.passes.copy(), np.where(np.array(Cause) == Cause.TENSOR_PARALLEL, 1.0, factor)
    passes[FORWARD, Cause.TENSOR_PARALLEL] = rng.uniform(0, 1, order.num_stages)
    costs = replace(costs, passes=passes)
    scaled = replace(costs, passes=passes * times[:, np.newaxis], optimizer_s=costs.optimizer_s * factor)
    steps = noisy_steps([alike(Program(order, costs), 2, factor)], 0.0, 1)
    assert steps[0] == pytest.approx(run(Program(order, scaled)).step_time_s, rel=1e-12)
    same = slowed(costs, order.rank_of_stage, np.full(order.num_ranks, factor))
    np.testing.assert_allclose(same.forward_s, scaled.forward_s)


def test_steps_do_not_depend_on_how_many_are_drawn(random_costs, monkeypatch):
    order = build_order("1f1b", 4, 1, 16)
    program = Program(order, random_costs(np.random.default_rng(1), order))
    many = noisy_steps([alike(program)] * 2, 0.1, 7, seed=3)
    assert many.tobytes() == noisy_steps([alike(program)] * 2, 0.1, 7, seed=3).tobytes()
    np.testing.assert_array_equal(many[:3], noisy_steps([alike(program)] * 2, 0.1, 3, seed=3))
    monkeypatch.setattr("sim.engines.noise.AT_ONCE", 1)
    np.testing.assert_array_equal(many, noisy_steps([alike(program)] * 2, 0.1, 7, seed=3))
    assert len(set(many)) == 7
    assert not np.isin(many, noisy_steps([alike(program)] * 2, 0.1, 7, seed=4)).any()


@pytest.mark.parametrize("slow", [(1, 1, 1, 1), (1, 0.9, 0.9, 0.9), (1, 1, 0.95, 0.8)])
def test_the_slowest_of_a_group_is_drawn_exactly(slow):
    # Against the largest of as many draws, taken one by one; 0.05 is far more than the slower members differ by.
    order = build_order("1f1b", 4, 1, 4000)
    drawn = factors_of(order, np.tile(slow, (4, 1)), 0.05, (0, 0, 0))
    sigma = np.sqrt(np.log(1 + 0.05**2))
    singly = np.random.default_rng(1).lognormal(-(sigma**2) / 2, sigma, (len(order), 4))
    expected = (singly * np.array(slow)).max(axis=1)
    shares = np.linspace(0.02, 0.98, 25)
    np.testing.assert_allclose(np.quantile(drawn, shares), np.quantile(expected, shares), rtol=0.003)


def test_one_gpu_has_mean_one_and_the_deviation_asked_for():
    order = build_order("1f1b", 4, 1, 8000)
    factor = factors_of(order, np.ones((4, 1)), 0.2, (0, 0, 0))
    assert factor.mean() == pytest.approx(1.0, abs=0.004)
    assert factor.std() == pytest.approx(0.2, rel=0.03)
