"""Steps that overlap, in a row: the step time without noise, slower with it, and never faster with a slower GPU."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders

from sim.engines import Program, run
from sim.engines.noise import ROW, overlapping_steps, steps_in_a_row
from sim.schedules import build_order
from sim.schedules.actions import U
from sim.schedules.registry import schedules

STAGGERED = [each.name for each in schedules() if each.staggered]
ASYNCHRONOUS = [each.name for each in schedules() if each.asynchronous]
rngs = st.integers(0, 2**32).map(np.random.default_rng)


def ones(program, members=2):
    return np.ones((program.order.num_ranks, members))


@given(order=orders(STAGGERED, most_ranks=4), rng=rngs, blocks=st.booleans(), beside=st.booleans())
def test_without_noise_staggered_steps_are_no_longer_than_the_longest_ranks_own(
    order, rng, blocks, beside, random_costs
):
    """Shorter only where ranks of very unequal work fall further apart, step by step, than within one."""
    program = Program(order, random_costs(rng, order, blocks=blocks), hide_grad_reduce=beside)
    steps, exact = overlapping_steps(program, ones(program), 0.0, 3), run(program).step_time_s
    assert (steps <= exact * (1 + 1e-9)).all()
    assert steps[0] >= program.busy_per_rank().max() * (1 - 1e-9)
    assert steps[0] >= 0.9 * exact


@given(order=orders(STAGGERED, most_ranks=4), forward=st.floats(0.5, 2.0), backward=st.floats(0.5, 4.0))
def test_without_noise_staggered_steps_of_equal_ranks_are_the_exact_step(order, forward, backward, costs_of):
    stages = np.ones(order.num_stages)
    program = Program(order, costs_of(order.num_ranks, forward * stages, backward * stages))
    np.testing.assert_allclose(overlapping_steps(program, ones(program), 0.0, 3), run(program).step_time_s, rtol=1e-9)


@given(name=st.sampled_from(ASYNCHRONOUS), p=st.integers(1, 4), more=st.integers(0, 6), rng=rngs, beside=st.booleans())
def test_without_noise_batches_come_at_the_steady_pace(name, p, more, rng, beside, random_costs):
    order = build_order(name, p, 1, p + more, fold=True)
    program = Program(order, random_costs(rng, order), hide_grad_reduce=beside)
    steps = overlapping_steps(program, ones(program), 0.0, ROW)
    # It may take a while until all ranks have fallen into step.
    np.testing.assert_allclose(steps[-1], run(program).step_time_s, rtol=1e-6)


@pytest.mark.parametrize(("name", "chunks"), [("zb_h2", 1), ("zb_v", 2), ("pipedream", 1), ("pipedream_2bw", 1)])
def test_noise_and_slow_gpus_cost_time_and_repeat(name, chunks, random_costs):
    order = build_order(name, 4, chunks, 12, fold=name.startswith("pipedream"))
    program = Program(order, random_costs(np.random.default_rng(1), order))
    still = run(program).step_time_s
    means = [overlapping_steps(program, ones(program), jitter, 40).mean() for jitter in (0.02, 0.1, 0.3)]
    assert [still, *means] == sorted([still, *means])
    slow = 1.3 * ones(program)
    steps = overlapping_steps(program, ones(program), 0.1, 25, seed=3)
    assert overlapping_steps(program, slow, 0.1, 25, seed=3).sum() >= steps.sum()
    assert steps.tobytes() == overlapping_steps(program, ones(program), 0.1, 25, seed=3).tobytes()
    np.testing.assert_array_equal(steps[:21], overlapping_steps(program, ones(program), 0.1, 21, seed=3))
    assert len(set(steps)) == 25


def test_a_row_has_every_action_of_every_step_once():
    for name, chunks in (("zb_v", 2), ("pipedream_2bw", 1)):
        step = build_order(name, 4, chunks, 8, **({"batches": 1} if chunks == 1 else {}))
        row = steps_in_a_row(step, 3)
        assert len(row) == 3 * len(step)
        counts = np.unique(np.stack([row.stage, row.kind, row.microbatch]), axis=1).shape[1]
        assert counts == len(row)
        assert (row.kind == U).sum() == 3 * (step.kind == U).sum()


def test_a_straggler_on_a_rank_that_waits_costs_less_than_its_own_delay(random_costs, costs_of):
    # Rank 0 has half the work: slowed by 1.2 it still waits for the others.
    order = build_order("zb_h2", 4, 1, 12)
    program = Program(order, costs_of(4, [1, 2, 2, 2], [2, 4, 4, 4]))
    slow = ones(program)
    slow[0] = 1.2
    assert overlapping_steps(program, slow, 0.0, 2) == pytest.approx(run(program).step_time_s)
