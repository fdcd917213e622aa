"""Max-min rates against a linear programme, and flows that come and go against the definition."""

import numpy as np
from flows import flows_on
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.wire import Flows, max_min_rates


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


@settings(max_examples=10)
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


def test_no_limit_and_no_capacity():
    flows = flows_on(np.array([[-1, -1], [0, -1], [1, -1], [0, 1]]))
    assert max_min_rates(flows, np.array([np.inf, 0.0])).tolist() == [np.inf, np.inf, 0.0, 0.0]
