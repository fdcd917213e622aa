"""Engines on the graph of tasks give what a plain loop over actions gives, every moment of it."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_step import plain_step
from strategies import orders

from sim.engines import ENGINES, Program, run
from sim.schedules import build_order, get_schedule, schedule_names
from sim.schedules.actions import U

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
