"""Laws of every registered schedule: complete, bounded in memory, with the published bubble; broken orders are refused."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rows import rows
from strategies import sizes

from sim.engines import Program, run
from sim.errors import ScheduleError
from sim.schedules import Action, Kind, build_order, get_schedule, make_order, schedule_names
from sim.schedules.passes import peak_in_flight, visits_of, weight_versions

# Name -> the most chunks whose activations rank r keeps, of p ranks, v chunks, m micro-batches.
PEAK = {
    "gpipe": lambda r, p, v, m: m,
    "1f1b": lambda r, p, v, m: min(m, p - r),
    "interleaved": lambda r, p, v, m: min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1),
    "zb_interleaved": lambda r, p, v, m: min(m * v, p * v),
    "breadth_first": lambda r, p, v, m: m * v,
    "modular": lambda r, p, v, m: m * v,
    "zb_h1": lambda r, p, v, m: min(m, p),
    "zb_h2": lambda r, p, v, m: min(m, 2 * p - 1),
    "dualpipe": lambda r, p, v, m: p + 1,
    "dualpipe_v": lambda r, p, v, m: 2 * p + 1,
    "seq1f1b": lambda r, p, v, m: min(m, p - r),
    "pipedream": lambda r, p, v, m: min(3 * m, p - r),  # three batches are shown
    "pipedream_2bw": lambda r, p, v, m: p - r,
}
# Name -> no rank keeps more.
PEAK_BOUND = {
    "chimera": lambda p, v, m: min(m, p + 1),
    "hanayo": lambda p, v, m: v * min(m, p),
    "zb_v": lambda p, v, m: min(2 * m, 2 * p),
    "v_half": lambda p, v, m: min(2 * m, p + 3),
    "v_min": lambda p, v, m: min(2 * m, -(-2 * p // 3) + 4),
}
# Name -> idle time of a step whose stages all take t = t_F + t_B a rank, for any t_F and t_B. With fewer micro-batches
# than ranks a looped schedule waits for the first to come round.
BUBBLE = {
    "gpipe": lambda p, v, m, t: (p - 1) * t,
    "1f1b": lambda p, v, m, t: (p - 1) * t,
    "interleaved": lambda p, v, m, t: (p - 1) * t / v,
    "breadth_first": lambda p, v, m, t: ((p - 1) + (v - 1) * max(0, p - m)) * t / v,
    "modular": lambda p, v, m, t: ((p - 1) + (v - 1) * max(0, p - m)) * t / v,
    "seq1f1b": lambda p, v, m, t: (p - 1) * t,
}
# Name -> longest time from a rank's first action to its last, beyond its work, where weight gradients take no longer
# than forwards (f, i, w): the parallelogram of the zero-bubble papers.
SPAN = {
    "zb_h1": lambda p, f, i, w: max(0.0, (p - 1) * (f + i - w)),
    "zb_h2": lambda p, f, i, w: max(0.0, (p - 1) * (f + i - 2 * w)),
}


each_schedule = pytest.mark.parametrize("name", schedule_names())
times = st.floats(0.01, 100)


def played(order, costs_of, forward, inputs, weights, **given):
    """(idle time of the last rank to end, longest span beyond the work) of stages that all take the same."""
    stages = np.ones(order.num_stages)
    costs = costs_of(
        order.num_ranks, forward * stages, (inputs + weights) * stages, weight_grad_s=weights * stages, **given
    )
    program = Program(order, costs)
    timeline = run(program, "dag")
    start, end = np.full(order.num_ranks, np.inf), np.zeros(order.num_ranks)
    np.minimum.at(start, order.rank, timeline.start)
    np.maximum.at(end, order.rank, timeline.end)
    busy = program.busy_per_rank()
    return float(end.max() - busy.max()), float((end - start - busy).max())


def test_every_schedule_states_its_laws_here():
    assert PEAK.keys() | PEAK_BOUND.keys() == set(schedule_names())


@each_schedule
@given(data=st.data())
def test_every_action_once_on_its_own_rank(name, data):
    p, v, m = data.draw(sizes(name))
    order, chosen = build_order(name, p, v, m), get_schedule(name)
    total = 3 * m if chosen.asynchronous else m
    per_copy = p * v
    seen = set()
    for rank, row in enumerate(order.actions):
        for action in row:
            assert order.rank_of_stage[action.stage] == rank
            seen.add(tuple(action))
    assert len(seen) == len(order)
    for stage in range(per_copy * chosen.copies):
        for number in range(stage // per_copy, total, chosen.copies):
            assert (stage, "F", number) in seen
            whole = (stage, "B", number) in seen
            halves = [(stage, half, number) in seen for half in "IW"]
            assert halves == [not whole] * 2
    if chosen.chunks == "many" and name != "hanayo":
        assert order.rank_of_stage.tolist() == [stage % p for stage in range(p * v)]


@each_schedule
@given(data=st.data())
def test_activations_alive(name, data):
    p, v, m = data.draw(sizes(name))
    order = build_order(name, p, v, m)
    peaks = peak_in_flight(order)
    for rank, row in enumerate(order.actions):
        change = {Kind.F: 1, Kind.B: -1, Kind.I: 0, Kind.W: -1, Kind.U: 0}
        alive = np.cumsum([change[action.kind] for action in row])
        assert alive.max() == peaks[rank]
        assert alive[-1] == 0
        if name in PEAK:
            assert alive.max() == PEAK[name](rank, p, v, m)
        else:
            assert alive.max() <= PEAK_BOUND[name](p, v, m)


@pytest.mark.parametrize("name", sorted(BUBBLE))
@given(data=st.data(), forward=times, backward=times)
def test_bubble(name, data, forward, backward, costs_of):
    p, v, m = data.draw(sizes(name))
    order = build_order(name, p, v, m)
    idle, _ = played(order, costs_of, forward / v, backward / v, 0.0)
    assert idle == pytest.approx(BUBBLE[name](p, v, m, forward + backward), rel=1e-9, abs=1e-9 * m * forward)
    if v == 1:  # of the whole step, as in arXiv:2104.04473 section 2.2
        busy = m * (forward + backward)
        assert idle / (busy + idle) == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)


@given(p=st.integers(1, 7), n=st.integers(1, 30), m=st.integers(1, 20), forward=times, backward=times)
def test_bubble_of_a_modular_pipeline_whose_last_round_is_incomplete(p, n, m, forward, backward, costs_of):
    """Each full round takes as long as max(m, p) micro-batches, the last m; the last layer is on rank (n − 1) mod p."""
    n += p
    v = -(-n // p)
    order = build_order("modular", p, v, m, stages=n)
    assert [len(row) for row in order.actions] == [2 * m * len(range(rank, n, p)) for rank in range(p)]
    assert order.ends == (0, (n - 1) % p)
    idle, _ = played(order, costs_of, forward, backward, 0.0)
    step = ((v - 1) * max(m, p) + m + (n - 1) % p) * (forward + backward)
    assert idle + v * m * (forward + backward) == pytest.approx(step, rel=1e-9)
    assert peak_in_flight(order).tolist() == [m * len(range(rank, n, p)) for rank in range(p)]


@given(p=st.integers(1, 6), m=st.integers(1, 8), k=st.integers(1, 5), forward=times, backward=times)
def test_slices_of_sequences_shorten_the_bubble(p, m, k, forward, backward, costs_of):
    order = build_order("seq1f1b", p, 1, m, slices=k)
    assert order.num_microbatches == m * k
    idle, _ = played(order, costs_of, forward / k, backward / k, 0.0)
    assert idle == pytest.approx((p - 1) * (forward + backward) / k, rel=1e-9, abs=1e-9 * m * forward)
    assert peak_in_flight(order)[0] == min(m * k, p + k - 1)


@given(p=st.integers(1, 6), m=st.integers(1, 12), forward=times, backward=times)
def test_stages_that_share_the_head_keep_a_micro_batch_more_and_idle_no_longer(p, m, forward, backward, costs_of):
    """Yeung et al. 2024, arXiv:2411.05288: p + 1 with one barrier."""
    more = build_order("1f1b", p, 1, m, ahead=1)
    assert peak_in_flight(more).tolist() == [min(m, p - rank + 1) for rank in range(p)]
    idle, _ = played(more, costs_of, forward, backward, 0.0)
    assert idle == pytest.approx((p - 1) * (forward + backward), rel=1e-9, abs=1e-9 * m * forward)


@pytest.mark.parametrize("name", sorted(SPAN))
@given(p=st.integers(1, 8), more=st.integers(0, 12), forward=times, inputs=times, share=st.floats(0.0, 1.0))
def test_zero_bubble(name, p, more, forward, inputs, share, costs_of):
    weights = share * forward
    order = build_order(name, p, 1, 2 * p - 1 + more)
    _, span = played(order, costs_of, forward, inputs, weights)
    assert span == pytest.approx(SPAN[name](p, forward, inputs, weights), rel=1e-9, abs=1e-9 * len(order) * 100)


# The theory's numbers of schedules without a formula for unequal times.
@given(p=st.integers(1, 8), more=st.integers(0, 12), t=times)
def test_zb_v_has_no_bubble_where_all_take_equally_long(p, more, t, costs_of):
    _, span = played(build_order("zb_v", p, 2, 2 * p + more), costs_of, t, t, t)
    assert span == pytest.approx(0.0, abs=1e-9 * t * (2 * p + more) * 6)


@pytest.mark.parametrize(("p", "t", "published"), [(4, (10, 12, 8), 16), (8, (10, 15, 5), 135)])
def test_zb_v_places_weight_gradients_by_their_times(p, t, published, costs_of):
    for m in (3 * p, 5 * p):
        order = build_order("zb_v", p, 2, m, times=(*t, 0))
        assert played(order, costs_of, *t)[1] <= published + 1e-9
        assert peak_in_flight(order).max() == 2 * p


def test_v_half_and_v_min_trade_memory_for_bubble(costs_of):
    # Of 1F1B with p = 8 the authors' scheduler leaves 0.405 of the bubble at 0.625 of the memory, and 0.643 at 0.5.
    bubble = 7 * 2 * 3.0
    for name, limit, memory in (("v_half", 0.4525, 0.625), ("v_min", 0.643, 0.5)):
        order = build_order(name, 8, 2, 24)
        assert played(order, costs_of, 1.0, 1.0, 1.0)[1] / bubble <= limit
        assert peak_in_flight(order).max() / 16 == memory


@given(half=st.integers(1, 4), more=st.integers(0, 6), t=times)
def test_dual_pipe(half, more, t, costs_of):
    p, m = 2 * half, 4 * half + 2 * more
    idle, _ = played(build_order("dualpipe", p, 1, m), costs_of, t, t, t)
    assert idle == pytest.approx((half - 1) * (3 + 2 - 3) * t, abs=1e-9 * m * t * 3)
    idle, _ = played(build_order("dualpipe_v", p, 2, 2 * p + more), costs_of, t, t, t)
    assert idle == pytest.approx((p - 1) * (3 + 2 - 3) * t, abs=1e-9 * m * t * 6)


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
@given(t=times)
def test_chimera_with_as_many_microbatches_as_ranks(p, t, costs_of):
    order = build_order("chimera", p, 1, p)
    assert played(order, costs_of, t, t, 0.0)[0] == pytest.approx((p / 2 - 1) * 2 * t, abs=1e-9 * p * t)
    assert played(order, costs_of, t, 2 * t, 0.0)[0] == pytest.approx((p - 2) * 2 * t, abs=1e-9 * p * t)
    alive = peak_in_flight(order)
    assert alive.min() >= p / 2 + 1 or p == 2
    assert alive.max() <= p


@given(p=st.integers(1, 8), waves=st.integers(1, 3), rounds=st.integers(1, 3), t=times)
def test_hanayo(p, waves, rounds, t, costs_of):
    order = build_order("hanayo", p, 2 * waves, rounds * p)
    idle, _ = played(order, costs_of, t / (2 * waves), t / (2 * waves), 0.0)
    assert idle == pytest.approx((p - 1) * 2 * t / (2 * waves), abs=1e-9 * p * rounds * t)


@given(p=st.integers(1, 6), m=st.integers(1, 12), f=times, b=times, u=st.floats(0.0, 10.0))
def test_asynchronous_pipelines_have_no_bubble_and_state_their_versions(p, m, f, b, u, costs_of):
    for name, updates in (("pipedream", m), ("pipedream_2bw", 1)):
        if get_schedule(name).requirement(p, 1, m):
            continue
        costs = costs_of(p, f * np.ones(p), b * np.ones(p), optimizer_s=u * np.ones(p))
        step = run(Program(build_order(name, p, 1, m, fold=True), costs)).step_time_s
        assert step == pytest.approx(m * (f + b) + updates * u, rel=1e-9)
        versions, late = weight_versions(build_order(name, p, 1, m, batches=2 * p + 2))
        if name == "pipedream":
            assert versions.tolist() == [p - rank for rank in range(p)]
            assert late.tolist() == [p - 1 - rank for rank in range(p)]
        else:
            assert set(versions.tolist()) == {2}
            assert set(late.tolist()) == {1}


def test_all_micro_batches_in_a_group_are_breadth_first():
    grouped, breadth = build_order("interleaved", 3, 2, 6, group=10**15), build_order("breadth_first", 3, 2, 6)
    forwards = [[action for action in row if action.kind is Kind.F] for row in grouped.actions]
    assert forwards == [[action for action in row if action.kind is Kind.F] for row in breadth.actions]


def test_a_fold_leaves_the_last_gradients_of_every_stage_behind_it(random_costs):
    """On one rank of a V the gradients of its second stage end before the first's: both reductions count."""
    whole, folded = (build_order("zb_v", 1, 2, 5, fold=fold) for fold in (False, True))
    costs = random_costs(np.random.default_rng(125433), whole, blocks=False)
    exact, found = (run(Program(order, costs, hide_grad_reduce=True)) for order in (whole, folded))
    assert found.exposed_reduce_s == pytest.approx(exact.exposed_reduce_s, rel=1e-9)
    assert found.step_time_s == pytest.approx(exact.step_time_s, rel=1e-9)


# What is left out of a folded order is timed as if it were there.
@each_schedule
@settings(max_examples=8)
@given(data=st.data(), blocks=st.booleans(), more=st.integers(0, 60))
def test_a_folded_order_takes_as_long(name, data, blocks, more, random_costs):
    chosen = get_schedule(name)
    if chosen.asynchronous or chosen.period is None:
        return
    p, v, _ = data.draw(sizes(name, 5))
    period = chosen.period(p, v)
    m = 5 * max(period, p) + more * period
    m += m % chosen.copies
    assume(chosen.requirement(p, v, m) is None)
    whole, folded = build_order(name, p, v, m), build_order(name, p, v, m, fold=True)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    costs = random_costs(rng, whole, blocks=blocks)
    options = {"hide_grad_reduce": True, "hide_gather": True}
    exact, found = (run(Program(order, costs, **options)) for order in (whole, folded))
    assert found.step_time_s == pytest.approx(exact.step_time_s, rel=1e-9)
    np.testing.assert_allclose(found.pipeline_end_s, exact.pipeline_end_s, rtol=1e-9)
    np.testing.assert_allclose(found.exposed_reduce_s, exact.exposed_reduce_s, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.program.busy_per_rank(), exact.program.busy_per_rank(), rtol=1e-9)
    assert folded.weight.sum() == len(whole)
    visits, seen = (int(order.weight[visits_of(order).opens].sum()) for order in (whole, folded))
    assert max(seen, 2 * whole.num_stages) == max(visits, 2 * whole.num_stages)
    np.testing.assert_array_equal(peak_in_flight(folded), peak_in_flight(whole))


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


def backward_of(rows, rank, stage, microbatch):
    return next(kind for kind in (Kind.B, Kind.I) if Action(stage, kind, microbatch) in rows[rank])


def backward_before_its_forward(rows, rank, at):
    stage, _, microbatch = rows[rank][at]
    forward = rows[rank].index(Action(stage, Kind.F, microbatch))
    backward = rows[rank].index(Action(stage, backward_of(rows, rank, stage, microbatch), microbatch))
    rows[rank].insert(forward, rows[rank].pop(backward))
    return "deadlock"


def half_a_backward(rows, rank, at):
    stage, _, microbatch = rows[rank][at]
    whole = backward_of(rows, rank, stage, microbatch) is Kind.B
    rows[rank].append(Action(stage, Kind.W if whole else Kind.B, microbatch))
    return "does not belong to the step"


BREAK = [drop, repeat, move_to_another_rank, backward_before_its_forward, half_a_backward]


@pytest.mark.parametrize("break_order", BREAK, ids=lambda f: f.__name__)
@settings(max_examples=12)  # one validator reads the orders of all schedules
@given(name=st.sampled_from(schedule_names()), data=st.data())
def test_broken_order_is_refused_and_shown(name, break_order, data):
    p, v, m = data.draw(sizes(name, 5).filter(lambda size: size[0] > 1))
    order = build_order(name, p, v, m)
    given = [[action for action in row if action.kind is not Kind.U] for row in order.actions]
    rank = data.draw(st.integers(0, p - 1))
    expected = break_order(given, rank, data.draw(st.integers(0, len(given[rank]) - 1)))
    with pytest.raises(ScheduleError) as caught:
        make_order(name, given, order.num_stages, order.num_microbatches, copies=order.copies)
    message = str(caught.value)
    assert expected in message
    assert all(f"rank {rank} |" in message for rank in range(p))
    assert "→" in message  # where it stands, or beside what is left of its micro-batch


@rows(
    "row",
    [
        ("1f1b", 4, 2, 8, r"one that holds 2 \(.*, zb_v\)"),
        ("dualpipe", 4, 2, 8, r"of each of its 2 copies of the model.* plan.num_chunks to 1, .*dualpipe_v"),
        ("dualpipe", 5, 1, 10, r"two copies of the model's stages.*nearest: 6 or 4; dualpipe_v.* takes odd ones"),
        ("dualpipe", 16, 1, 9, r"plan\.microbatch_size\) be 32"),
        ("interleaved", 1, 1, 8, "plan.pp and plan.num_chunks to 2 or more, or plan.schedule to 1f1b"),
        ("zb_v", 1, 1, 8, "set plan.num_chunks to 2 and plan.pp to 2 or more"),
        ("chimera", 3, 1, 4, "nearest: 4 or 2"),
        ("interleaved", 4, 2, 6, "nearest: 8"),
        ("gpipe", 0, 1, 1, "at least one"),
        ("1f1", 2, 1, 2, "did you mean '1f1b'"),
        ("dualpipe", 4, 1, 6, "at least 8 micro-batches"),
        ("pipedream_2bw", 4, 1, 3, "at least as many micro-batches as ranks"),
        ("hanayo", 4, 3, 4, "must be even; nearest: 4 or 2"),
        ("interleaved", 4, 2, 8, r"at least plan\.pp = 4", {"group": 2}),
        ("modular", 3, 3, 4, "Let the stages be 7 to 9", {"stages": 6}),
        ("breadth_first", 3, 3, 4, "takes no stages; modular would", {"stages": 8}),
        ("pipedream_2bw", 4, 1, 16, "never drains", {"per_flush": 8}),
    ],
)
def test_sizes_a_schedule_cannot_take_come_with_a_remedy(row):
    name, p, v, m, remedy, *options = row
    with pytest.raises(ScheduleError, match=remedy):
        build_order(name, p, v, m, **dict(*options))
