"""Laws of every registered schedule: complete, bounded in memory, with the published bubble; broken orders are refused."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.engines import build_program, run
from sim.errors import ScheduleError
from sim.schedules import Action, Kind, build_order, get_schedule, make_order, schedule_names

# Name -> the most chunks whose activations rank r keeps, of p ranks, v chunks, m micro-batches.
PEAK = {
    "gpipe": lambda r, p, v, m: m,
    "1f1b": lambda r, p, v, m: min(m, p - r),
    "interleaved": lambda r, p, v, m: min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1),
    "breadth_first": lambda r, p, v, m: m * v,
    "zb_h1": lambda r, p, v, m: min(m, p),
    "zb_h2": lambda r, p, v, m: min(m, 2 * p - 1),
}
# Name -> idle time of a step whose stages all take t = t_F + t_B a rank. With fewer micro-batches than ranks a looped
# schedule waits for the first to come round.
BUBBLE = {
    "gpipe": lambda p, v, m, t: (p - 1) * t,
    "1f1b": lambda p, v, m, t: (p - 1) * t,
    "interleaved": lambda p, v, m, t: (p - 1) * t / v,
    "breadth_first": lambda p, v, m, t: ((p - 1) + (v - 1) * max(0, p - m)) * t / v,
}
# Name -> idle time where forward, input gradient and weight gradient all take t, with micro-batches enough.
ZERO_BUBBLE = {
    "zb_h1": lambda p, t: (p - 1) * t,
    "zb_h2": lambda p, t: 0.0,
}


@st.composite
def sizes(draw, name):
    """(p, v, m) that the schedule takes."""
    chosen = get_schedule(name)
    p = draw(st.integers(1, 7))
    v = draw(st.integers(1, 4)) if chosen.interleaves else 1
    m = draw(st.integers(1, 20) | st.integers(1, 4).map(lambda rounds: rounds * p))
    assume(chosen.requirement(p, v, m) is None)
    return p, v, m


each_schedule = pytest.mark.parametrize("name", schedule_names())


def test_every_schedule_states_its_laws_here():
    assert PEAK.keys() == BUBBLE.keys() | ZERO_BUBBLE.keys() == set(schedule_names())


@each_schedule
@given(data=st.data())
def test_every_action_once_on_its_own_rank(name, data):
    p, v, m = data.draw(sizes(name))
    rows = build_order(name, p, v, m).actions
    for rank, row in enumerate(rows):
        kinds = {action.kind for action in row}
        assert kinds in ({Kind.F, Kind.B}, {Kind.F, Kind.I, Kind.W})
        here = {
            (stage, kind, microbatch) for stage in range(rank, p * v, p) for kind in kinds for microbatch in range(m)
        }
        assert len(row) == len(here)
        assert {tuple(action) for action in row} == here


@each_schedule
@given(data=st.data())
def test_activations_alive(name, data):
    p, v, m = data.draw(sizes(name))
    for rank, row in enumerate(build_order(name, p, v, m).actions):
        change = {Kind.F: 1, Kind.B: -1, Kind.I: 0, Kind.W: -1}
        alive = np.cumsum([change[action.kind] for action in row])
        assert alive.max() == PEAK[name](rank, p, v, m)
        assert alive[-1] == 0


@pytest.mark.parametrize("name", sorted(BUBBLE))
@given(data=st.data(), forward=st.floats(0.01, 100), backward=st.floats(0.01, 100))
def test_bubble(name, data, forward, backward, costs_of):
    p, v, m = data.draw(sizes(name))
    costs = costs_of(p, np.full(p * v, forward / v), np.full(p * v, backward / v))
    step = run(build_program(build_order(name, p, v, m), costs), "dag").step_time
    busy = m * (forward + backward)
    assert step == pytest.approx(busy + BUBBLE[name](p, v, m, forward + backward), rel=1e-9)
    if v == 1:  # of the whole step, as in arXiv:2104.04473 section 2.2
        assert 1 - busy / step == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)


@pytest.mark.parametrize("name", sorted(ZERO_BUBBLE))
@given(p=st.integers(1, 8), more=st.integers(0, 12), t=st.floats(0.01, 100))
def test_zero_bubble(name, p, more, t, costs_of):
    m = 2 * p - 1 + more
    costs = costs_of(p, np.full(p, t), np.full(p, 2 * t), weight_grad=np.full(p, t))
    step = run(build_program(build_order(name, p, 1, m), costs), "dag").step_time
    assert step == pytest.approx(3 * m * t + ZERO_BUBBLE[name](p, t), rel=1e-9)


@each_schedule
@given(data=st.data())
def test_needs_and_topological_order_agree(name, data):
    order = build_order(name, *data.draw(sizes(name)))
    place = np.empty(len(order), dtype=int)
    place[order.topological] = np.arange(len(order))
    for before in (order.previous, order.needs):
        later = np.flatnonzero(before >= 0)
        assert (place[before[later]] < place[later]).all()


# Broken orders. Each takes the rows and a random place in them, and returns what the message must say.
def drop(rows, rank, at):
    lost = rows[rank].pop(at)
    return f"{lost} is never done"


def repeat(rows, rank, at):
    rows[rank].append(rows[rank][at])
    return f"{rows[rank][at]} is done more than once"


def move_to_another_rank(rows, rank, at):
    rows[(rank + 1) % len(rows)].append(rows[rank].pop(at))
    return "holds that stage"


def splits(rows):
    return any(action.kind is Kind.I for row in rows for action in row)


def backward_before_its_forward(rows, rank, at):
    stage, _, microbatch = rows[rank][at]
    forward = rows[rank].index(Action(stage, Kind.F, microbatch))
    kind = Kind.I if splits(rows) else Kind.B
    backward = rows[rank].index(Action(stage, kind, microbatch))
    rows[rank].insert(forward, rows[rank].pop(backward))
    return "deadlock"


def microbatch_too_many(rows, rank, at):
    stage, kind, _ = rows[rank][at]
    rows[rank].append(Action(stage, kind, 1000))
    return f"{stage}{kind}1000 does not belong to the step"


def half_a_backward(rows, rank, at):
    stage, _, microbatch = rows[rank][at]
    rows[rank].append(Action(stage, Kind.B if splits(rows) else Kind.W, microbatch))
    return "does not belong to the step"


def negative_microbatch(rows, rank, at):
    rows[rank].append(Action(rows[rank][at].stage, Kind.F, -1))
    return "does not belong to the step"


def negative_stage(rows, rank, at):
    rows[-1].append(Action(-1, Kind.F, rows[rank][at].microbatch))
    return "does not belong to the step"


BREAK = [
    drop, repeat, move_to_another_rank, backward_before_its_forward, microbatch_too_many, half_a_backward,
    negative_microbatch, negative_stage,
]  # fmt: skip


@pytest.mark.parametrize("break_order", BREAK, ids=lambda f: f.__name__)
@each_schedule
@given(data=st.data())
def test_broken_order_is_refused_and_shown(name, break_order, data):
    p, v, m = data.draw(sizes(name).filter(lambda size: size[0] > 1))
    rows = [list(row) for row in build_order(name, p, v, m).actions]
    rank = data.draw(st.integers(0, p - 1))
    expected = break_order(rows, rank, data.draw(st.integers(0, len(rows[rank]) - 1)))
    with pytest.raises(ScheduleError) as caught:
        make_order(name, rows, p * v, m)
    message = str(caught.value)
    assert expected in message
    assert all(f"rank {rank} |" in message for rank in range(p))
    # A missing action has no place to point at; anything else is marked where it stands.
    assert ("→" in message) == (break_order is not drop)


def test_the_mark_stands_before_the_offending_action():
    rows = [[Action(0, Kind.F, 0), Action(0, Kind.B, 0)], [Action(1, Kind.B, 0), Action(1, Kind.F, 0)]]
    with pytest.raises(ScheduleError, match=r"(?s)rank 0 waits for 1B0 before 0B0.*rank 0 \|  0F0 →0B0\nrank 1 \|"):
        make_order("mine", rows, 2, 1)


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "remedy"),
    [
        ("1f1b", 4, 2, 8, "'interleaved'"),
        ("interleaved", 4, 2, 6, "nearest: 8"),
        ("interleaved", 4, 1, 8, "num_chunks"),
        ("interleaved", 1, 2, 8, "plan.pp"),
        ("gpipe", 0, 1, 1, "at least one"),
        ("1f1", 2, 1, 2, "did you mean '1f1b'"),
    ],
)
def test_sizes_a_schedule_cannot_take_come_with_a_remedy(name, p, v, m, remedy):
    with pytest.raises(ScheduleError, match=remedy):
        build_order(name, p, v, m)
