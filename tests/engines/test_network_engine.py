"""Traffic on shared links: as the longest path where nothing is shared, as the flow simulation where much is; and what moves once
a visit."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from flows import finish_times
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders

from flopcast_validation.job.cores import Processes
from sim.breakdown import break_down
from sim.engines import Program, network, run
from sim.engines.wire import Flows, Wire, shared_links
from sim.schedules import build_order, get_schedule, schedule_names
from sim.schedules.actions import U
from sim.traffic.streams import Stream, Traffic

seeds = st.integers(0, 2**32).map(np.random.default_rng)
switch = st.booleans()
FLUSHED = [name for name in schedule_names() if not get_schedule(name).asynchronous]
"""Others are refused on shared links."""


def stream(seconds, links, occupies=1.0, entitled=1.0, before=0.0, after=0.0):
    links = np.asarray(links, dtype=int)
    loads = np.broadcast_to(np.asarray(occupies, dtype=float), links.shape)
    return Stream(before, seconds, after, links, loads, loads * seconds, entitled)


def traffic_of(order, costs, link_of_stream, num_links=1, health=1.0):
    """A stream for every send and reduction, of the seconds that the costs say, on the link that the function says."""
    streams, tables = [], {name: np.full(order.num_stages, -1) for name in ("forward", "backward")}
    home = order.rank_of_stage
    for s in range(order.num_stages):
        for name, seconds, other in (
            ("forward", costs.send_forward_s[s], s + 1),
            ("backward", costs.send_backward_s[s], s - 1),
        ):
            if seconds > 0 and 0 <= other < order.num_stages and home[other] != home[s]:
                parts = (0.1 * seconds, 0.7 * seconds, 0.2 * seconds)
                tables[name][s] = len(streams)
                streams.append(stream(parts[1], link_of_stream(len(streams)), before=parts[0], after=parts[2]))
    reduce = np.full(order.num_ranks, -1)
    for rank in np.flatnonzero(costs.reduce_s > 0):
        reduce[rank] = len(streams)
        streams.append(stream(costs.reduce_s[rank], link_of_stream(len(streams))))
    gather = np.full(order.num_ranks, -1)
    if (order.kind == U).any():
        for rank in np.flatnonzero(costs.gather_s > 0):
            gather[rank] = len(streams)
            streams.append(stream(costs.gather_s[rank], link_of_stream(len(streams))))
    full = np.full(num_links if link_of_stream(1) == [0] else len(streams) + 1, float(health))
    return Traffic(None, full, tuple(streams), tables["forward"], tables["backward"], reduce, gather)


@given(order=orders(FLUSHED), rng=seeds, blocks=switch, beside=switch)
def test_with_links_of_their_own_messages_take_what_the_longest_path_says(order, rng, blocks, beside, random_costs):
    costs = random_costs(rng, order, blocks=blocks)
    if not blocks:  # short enough that no message waits for the one before it
        costs = replace(costs, send_forward_s=costs.send_forward_s / 10, send_backward_s=costs.send_backward_s / 10)
    program = Program(order, costs, hide_grad_reduce=beside)
    shared = network.run(program, traffic_of(order, costs, lambda number: [number]))
    plain = run(program)
    assert shared.timeline.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)
    np.testing.assert_allclose(shared.timeline.start, plain.start, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shared.timeline.exposed_reduce_s, plain.exposed_reduce_s, rtol=1e-9, atol=1e-9)
    assert shared.meetings == 0


@given(order=orders(FLUSHED), rng=seeds, blocks=switch, beside=switch, health=st.floats(0.05, 1))
def test_contention_never_shortens(order, rng, blocks, beside, health, random_costs):
    costs = random_costs(rng, order, blocks=blocks)
    program = Program(order, costs, hide_grad_reduce=beside)
    alone, shared = run(program), network.run(program, traffic_of(order, costs, lambda _: [0], health=health)).timeline
    assert (shared.end >= alone.end * (1 - 1e-9)).all()
    if not get_schedule(order.schedule).staggered:  # there each rank's step begins with its first action, late or not
        assert shared.step_time_s >= alone.step_time_s * (1 - 1e-9)


def wire(streams, health):
    environment = simpy.Environment()
    return environment, Wire.over(environment, Traffic(None, np.asarray(health), tuple(streams), *np.zeros((4, 0))))


def ends_of(streams, health, starts):
    environment, over = wire(streams, health)
    ends = np.zeros(len(streams))

    def sender(number):
        yield environment.timeout(starts[number])
        yield over.move(number, streams[number].transfer_s)
        ends[number] = environment.now

    for number in range(len(streams)):
        environment.process(sender(number))
    environment.run()
    return ends


def test_a_slow_link_and_messages_that_queue():
    environment, over = wire([stream(2.0, [0])], [0.5])
    ends = []

    def sender():
        first, second = over.move(0, 2.0), over.move(0, 2.0)
        for event in (first, second):
            yield event
            ends.append(environment.now)

    environment.process(sender())
    environment.run()
    np.testing.assert_allclose(ends, [4.0, 8.0])


@given(rng=seeds, count=st.integers(1, 7), links=st.integers(1, 5))
def test_the_wire_is_the_flow_simulation(rng, count, links):
    health = rng.choice([0.3, 0.5, 1.0], links)
    streams = [
        stream(
            rng.integers(1, 5),
            np.flatnonzero(rng.random(links) < 0.6),
            rng.choice([0.25, 0.5, 1.0, 1.5]),
            rng.choice([0.5, 1.0, 2.0]),
        )
        for _ in range(count)
    ]
    starts = rng.integers(0, 6, count) * 0.5
    # Beside the links each flow has one of its own, so that it is never faster than alone.
    flow, link, load, share = [], [], [], []
    for number, each in enumerate(streams):
        for where, part in [*zip(each.link, each.occupies, strict=True), (links + number, 1.0)]:
            flow.append(number)
            link.append(where)
            load.append(part)
        share.append(each.entitled)
    flows = Flows(count, *map(np.array, (flow, link, load, share)))
    seconds = np.array([each.transfer_s for each in streams])
    expected = finish_times(np.concatenate([health, np.ones(count)]), flows, starts, seconds)
    np.testing.assert_allclose(ends_of(streams, health, starts), expected, rtol=1e-6)


def test_a_stream_whose_own_flows_meet_is_slow_alone_and_asks_no_more_than_that():
    alone, loads = shared_links([stream(1.0, [0, 1], [2.0, 0.5]), stream(1.0, [1], 0.9)], np.ones(2))
    assert alone.tolist() == [0.5, 1.0]
    assert loads.tolist() == [[0.25, 0.9]]
    # Two fill a link that a third of the same kind is fitted to fill to a half: the fit's loss is not counted again.
    np.testing.assert_allclose(ends_of([stream(2.0, [0], 0.5)] * 2, [1.0], [0.0, 0.0]), [2.0, 2.0])
    np.testing.assert_allclose(ends_of([stream(2.0, [0], 0.5)] * 4, [1.0], [0.0] * 4), [4.0] * 4)


@pytest.mark.parametrize("name", ["1f1b", "chimera", "dualpipe", "dualpipe_v"])
@pytest.mark.parametrize(("blocks", "beside"), [(True, False), (False, True)])
def test_a_fold_hides_no_contention_nor_copies_and_pairs(name, blocks, beside, random_costs):
    """In step times; where no message meets another they are those of the longest path."""
    size = (name, 4, 2 if name == "dualpipe_v" else 1)
    folded = build_order(*size, 24, fold=True)
    assert folded.fold is not None
    whole = build_order(*size, 24)
    costs = random_costs(np.random.default_rng(5), whole, blocks=blocks)
    programs = [Program(order, costs, hide_grad_reduce=beside) for order in (whole, folded)]
    for links, health in ((lambda number: [number], 1.0), (lambda _: [0], 0.3)):
        traffic = traffic_of(whole, costs, links, health=health)
        long, short = (network.run(program, traffic).timeline for program in programs)
        alone = run(programs[1]).step_time_s
        if health == 1.0:
            assert short.step_time_s == pytest.approx(alone, rel=1e-9)
        else:
            assert short.step_time_s > alone * 1.01
        assert short.step_time_s == pytest.approx(long.step_time_s, rel=1e-9)


CHUNKED = [name for name in schedule_names() if get_schedule(name).interleaves]


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
