"""Max-min rates against a linear programme, and flows that come and go against the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import FlopcastError, SpecError
from sim.network.flow_network import FlowNetwork
from sim.network.flow_run import simulate_flows
from sim.network.flows import Flows, flows_on, max_min_rates
from sim.network.routing import route


def matrix(flows, num_links):
    """Bytes on every link (row) for a byte of every flow (column)."""
    result = np.zeros((num_links, flows.num_flows))
    np.add.at(result, (flows.link, flows.flow), flows.load)
    return result


def lexicographic_maximum(flows, capacity):
    """Max-min rates by linear programmes: raise the least rate, freeze the flows that cannot exceed it, repeat."""
    from scipy.optimize import linprog

    use, n = matrix(flows, len(capacity)), flows.num_flows
    frozen: dict[int, float] = {}
    while len(frozen) < n:
        bounds = [(frozen.get(f, 0.0), frozen.get(f)) for f in range(n)] + [(0, None)]
        rises = np.array(
            [[-(f == g) for g in range(n)] + [flows.share[f]] for f in range(n) if f not in frozen], dtype=float
        )
        constraints = np.vstack([np.hstack([use, np.zeros((len(capacity), 1))]), rises])
        limits = np.concatenate([capacity, np.zeros(len(rises))])
        best = linprog([0.0] * n + [-1.0], constraints, limits, bounds=bounds)
        level = best.x[-1]
        floor = [(frozen.get(f, level * flows.share[f] * (1 - 1e-9)), frozen.get(f)) for f in range(n)]
        for f in set(range(n)) - set(frozen):
            alone = linprog([-(f == g) for g in range(n)], use, capacity, bounds=floor)
            if alone.x[f] <= level * flows.share[f] * (1 + 1e-6):
                frozen[f] = level * flows.share[f]
    return np.array([frozen[f] for f in range(n)])


@st.composite
def networks(draw, max_flows=6, max_links=5):
    """(flows, capacity): every flow on one link at least; loads and shares of all sorts."""
    num_links = draw(st.integers(1, max_links))
    num_flows = draw(st.integers(1, max_flows))
    paths = [draw(st.sets(st.integers(0, num_links - 1), min_size=1)) for _ in range(num_flows)]
    numbers = st.sampled_from([0.5, 1.0, 1.0, 1.0, 2.0, 3.0])
    flow = np.repeat(np.arange(num_flows), [len(path) for path in paths])
    link = np.array([link for path in paths for link in sorted(path)])
    load = np.array([draw(numbers) for _ in flow])
    share = np.array([draw(numbers) for _ in paths])
    capacity = np.array([draw(st.sampled_from([1.0, 2.0, 5.0, 7.0, 10.0])) for _ in range(num_links)])
    return Flows(num_flows, flow, link, load, share), capacity


def test_the_sheets_example():
    flows = flows_on(np.array([[0, -1], [0, 1], [1, -1], [1, -1]]))
    np.testing.assert_allclose(max_min_rates(flows, np.array([10.0, 6.0])), [8, 2, 2, 2])


@settings(max_examples=30)
@given(network=networks())
def test_rates_are_the_linear_programmes(network):
    flows, capacity = network
    np.testing.assert_allclose(max_min_rates(flows, capacity), lexicographic_maximum(flows, capacity), rtol=1e-6)


@given(network=networks(30, 12))
def test_no_link_is_overfull_and_every_flow_is_held_back_by_a_full_link_on_which_none_is_faster(network):
    flows, capacity = network
    rates = max_min_rates(flows, capacity)
    use = matrix(flows, len(capacity))
    load = use @ rates
    assert (load <= capacity * (1 + 1e-9)).all()
    level = rates / flows.share
    for flow in range(flows.num_flows):
        full = (use[:, flow] > 0) & (load >= capacity * (1 - 1e-9))
        assert any(level[flow] >= level[use[link] > 0].max() * (1 - 1e-9) for link in np.flatnonzero(full))


@given(network=networks(), times=st.integers(2, 5))
def test_a_flow_that_stands_for_many_is_many(network, times):
    flows, capacity = network
    folded = Flows(flows.num_flows, flows.flow, flows.link, flows.load * times, flows.share)
    unfolded = flows
    for _ in range(times - 1):
        unfolded = unfolded + flows
    one = max_min_rates(folded, capacity)
    np.testing.assert_allclose(np.tile(one, times), max_min_rates(unfolded, capacity), rtol=1e-9)


def test_no_limit_and_no_capacity():
    flows = flows_on(np.array([[-1, -1], [0, -1], [1, -1], [0, 1]]))
    assert max_min_rates(flows, np.array([np.inf, 0.0])).tolist() == [np.inf, np.inf, 0.0, 0.0]


def by_definition(capacity, flows, starts, sizes):
    """Finish times with all rates computed anew at every event."""
    left, finish, now = sizes.astype(float), np.full(len(sizes), np.nan), 0.0
    while np.isnan(finish).any():
        on = (starts <= now) & np.isnan(finish)
        keep = on[flows.flow]
        renumber = np.cumsum(on) - 1
        running = Flows(int(on.sum()), renumber[flows.flow[keep]], flows.link[keep], flows.load[keep], flows.share[on])
        rates = np.zeros(len(sizes))
        rates[on] = max_min_rates(running, capacity)
        ends = np.divide(left, rates, out=np.full(len(sizes), np.inf), where=rates > 0)
        ends[on & (left <= 0)] = 0.0
        arrivals = starts[starts > now]
        step = min(ends[on].min(initial=np.inf), arrivals.min(initial=np.inf) - now)
        left = left - rates * step
        now += step
        done = on & (ends <= step * (1 + 1e-12))
        finish[done] = now
    return finish


@settings(max_examples=40)
@given(network=networks(12, 6), data=st.data())
def test_flows_end_when_the_definition_says(network, data):
    flows, capacity = network
    draw = lambda numbers: np.array([data.draw(st.sampled_from(numbers)) for _ in range(flows.num_flows)])  # noqa: E731
    starts, sizes = draw([0.0, 0.0, 0.5, 1.0, 2.25]), draw([0.0, 1.0, 3.0, 10.0])
    run = simulate_flows(capacity, flows, starts, sizes, link_class=np.arange(len(capacity)))
    np.testing.assert_allclose(run.finish_s, by_definition(capacity, flows, starts, sizes), rtol=1e-7, atol=1e-7)
    # What was sent has arrived, link by link, and no link ever carried more than it can.
    carried = matrix(flows, len(capacity)) @ sizes
    np.testing.assert_allclose(run.link_bytes, carried, rtol=1e-9)
    if len(run.times_s) > 1:
        np.testing.assert_allclose(np.diff(run.times_s) @ run.class_bytes_per_s, carried, rtol=1e-6, atol=1e-6)
        assert (run.class_bytes_per_s <= capacity * (1 + 1e-6)).all()
        assert (run.utilisation(capacity) <= 1 + 1e-6).all()


@pytest.mark.parametrize("many", [2, 10_000])
def test_events_of_a_large_machine_are_those_of_the_definition(machine, monkeypatch, many):
    # However far it searches for the flows an event reaches before it computes all rates anew.
    monkeypatch.setattr("sim.network.flow_network._MANY", many)
    topology = machine("llama3-h100-roce")
    rng = np.random.default_rng(5)
    gpus = rng.permutation(topology.num_gpus)[:120]
    flows = flows_on(route(topology, gpus, np.roll(gpus, 1), "ecmp"))
    # More than enough flows on three racks' cables to reach each other; sizes and starts all differ.
    near = np.arange(200) % 48
    flows = flows + flows_on(route(topology, near, (near * 7 + 5) % 48, "ecmp"))
    starts, sizes = rng.uniform(0, 0.01, flows.num_flows), rng.uniform(1e8, 1e9, flows.num_flows)
    run = simulate_flows(topology.capacity, flows, starts, sizes)
    np.testing.assert_allclose(run.finish_s, by_definition(topology.capacity, flows, starts, sizes), rtol=1e-6)


@pytest.mark.parametrize("many", [0, 1000])
@settings(max_examples=40)
@given(data=st.data())
def test_whatever_comes_and_goes_rates_are_those_of_the_flows_under_way(many, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.network.flow_network._MANY", many)
        capacity = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.0, 5.0, 7.0]), min_size=3, max_size=8)))
        net, running = FlowNetwork(capacity), {}
        for _ in range(data.draw(st.integers(1, 14))):
            what = data.draw(st.sampled_from(["add", "add", "stop", "change", "wait"]))
            if what == "add":
                paths = data.draw(
                    st.lists(st.sets(st.integers(0, len(capacity) - 1), min_size=1), min_size=1, max_size=3)
                )
                for path in paths:
                    share = data.draw(st.sampled_from([0.5, 1.0, 2.0]))
                    flow = flows_on(np.array([sorted(path)]), share=share)
                    running[int(net.add(flow, data.draw(st.sampled_from([1.0, 3.0, 20.0])))[0])] = flow
            elif what == "stop" and running:
                number = data.draw(st.sampled_from(sorted(running)))
                net.remove(np.array([number]))
                del running[number]
            elif what == "change":
                link = data.draw(st.integers(0, len(capacity) - 1))
                capacity[link] = data.draw(st.sampled_from([0.0, 1.0, 4.0]))
                net.set_capacity(link, capacity[link])
            elif what == "wait" and np.isfinite(net.next_completion()):
                for number in net.advance(net.next_completion()).tolist():
                    del running[number]
            if running and data.draw(st.booleans()):
                numbers = sorted(running)
                together = running[numbers[0]]
                for number in numbers[1:]:
                    together = together + running[number]
                np.testing.assert_allclose(
                    net.rates(np.array(numbers)), max_min_rates(together, capacity), rtol=1e-8, atol=1e-9
                )
        assert net.num_flows == len(running)


def test_an_engine_adds_stops_and_slows_flows_as_it_goes():
    net = FlowNetwork(np.array([10.0, 6.0]))
    one = net.add(flows_on(np.array([[0]])), 100.0)
    assert net.next_completion() == pytest.approx(10.0)
    assert net.advance(4.0).tolist() == []
    two = net.add(flows_on(np.array([[0, 1], [1, -1]])), [30.0, 300.0])
    np.testing.assert_allclose(net.rates(np.concatenate([one, two])), [7, 3, 3])
    assert net.next_completion() == pytest.approx(4 + 60 / 7)
    net.advance(5.0)
    np.testing.assert_allclose(net.left(one), 53.0)
    net.set_capacity(1, 2.0)
    np.testing.assert_allclose(net.rates(np.concatenate([one, two])), [9, 1, 1])
    np.testing.assert_allclose(net.remove(two[1:]), 297.0)
    np.testing.assert_allclose(net.rates(np.concatenate([one, two[:1]])), [8, 2])
    with pytest.raises(FlopcastError, match="stop there first"):
        net.advance(100.0)
    assert net.advance(net.next_completion()).tolist() == one.tolist()
    assert net.now == pytest.approx(5 + 53 / 8)
    assert net.num_flows == 1
    net.advance(net.next_completion())
    np.testing.assert_allclose(net.link_bytes, [130.0, 33.0])
    assert net.next_completion() == np.inf


def test_a_lost_link_is_named():
    with pytest.raises(FlopcastError, match="flow 1 never ends"):
        simulate_flows(np.array([1.0, 0.0]), flows_on(np.array([[0], [1]])), 0.0, 5.0)
    with pytest.raises(SpecError, match="cannot be negative"):
        FlowNetwork(np.array([1.0])).add(flows_on(np.array([[0]])), -1.0)


def test_flows_alike_end_together_and_a_run_repeats_byte_for_byte(machine):
    topology = machine("superpod-a100")
    gpus = np.arange(topology.num_gpus)
    flows = flows_on(route(topology, gpus, (gpus + 168) % topology.num_gpus, "ecmp", seed=4))
    runs = [simulate_flows(topology.capacity, flows, 0.0, 1e9 / 3) for _ in range(2)]
    assert runs[0].finish_s.tobytes() == runs[1].finish_s.tobytes()
    assert runs[0].link_bytes.tobytes() == runs[1].link_bytes.tobytes()
    assert len(np.unique(runs[0].finish_s)) < 20
    even = simulate_flows(
        topology.capacity, flows_on(route(topology, gpus, (gpus + 168) % topology.num_gpus)), 0.0, 1e9
    )
    assert (even.finish_s == 1e9 / 25e9).all()
