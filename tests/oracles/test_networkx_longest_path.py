"""The exact engine's step is the longest path that networkx finds in a graph this file builds from the order itself."""

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from sim.engines import build_program, run
from sim.schedules import Kind, build_order

SIZES = {
    "gpipe": [(1, 1, 3), (2, 1, 1), (3, 1, 5), (4, 1, 4), (5, 1, 2)],
    "1f1b": [(1, 1, 4), (2, 1, 3), (3, 1, 8), (4, 1, 2), (6, 1, 13)],
    "interleaved": [(2, 2, 2), (2, 3, 6), (3, 2, 9), (4, 4, 8), (5, 2, 5)],
}
CASES = [(name, *size) for name, sizes in SIZES.items() for size in sizes]


def step_graph(order, costs):
    """Nodes are moments; an edge's weight is how long after its start its end can be at the earliest. [s]"""
    graph = nx.DiGraph()
    compute = {Kind.F: costs.forward_s, Kind.B: costs.backward_s}
    message = {Kind.F: costs.send_forward, Kind.B: costs.send_backward}
    home = {action.stage: rank for rank, row in enumerate(order.actions) for action in row}

    def awaited(action):
        """Forwards follow the stage before, backwards the stage after; each backward its own forward."""
        stage, kind, microbatch = action
        if kind is Kind.B:
            yield stage, Kind.F, microbatch
        neighbour = stage - 1 if kind is Kind.F else stage + 1
        if 0 <= neighbour < order.num_stages:
            yield neighbour, kind, microbatch

    def add(start, end, seconds):
        if not graph.has_edge(start, end) or graph.edges[start, end]["weight"] < seconds:
            graph.add_edge(start, end, weight=float(seconds))

    def taken(action):
        """How long the rank cannot start its next action."""
        return compute[action.kind][action.stage] + costs.p2p_blocks * message[action.kind][action.stage]

    for rank, row in enumerate(order.actions):
        for before, action in pairwise(row):
            add(tuple(before), tuple(action), taken(before))
        add(tuple(row[-1]), ("done", rank), taken(row[-1]))
        add(("done", rank), "ready", costs.reduce[rank])
        if costs.tied_embedding and rank in (0, order.num_ranks - 1):
            add(("done", rank), "both ends", costs.reduce[rank])
        for action in row:
            for need in awaited(action):
                same_rank = home[need[0]] == rank
                delay = compute[need[1]][need[0]] + (0 if same_rank else message[need[1]][need[0]])
                add(need, tuple(action), delay)
    if costs.tied_embedding:
        add("both ends", "ready", costs.tied_embedding)
    add("ready", "end", (costs.optimizer + costs.gather).max() + costs.step_setup)
    return graph


@pytest.mark.parametrize("blocks", [True, False], ids=["blocking sends", "sends beside compute"])
@pytest.mark.parametrize("sends", [True, False], ids=["sends", "no sends"])
@pytest.mark.parametrize(("name", "p", "v", "m"), CASES)
def test_dag_is_the_longest_path(name, p, v, m, sends, blocks, random_costs):
    rng = np.random.default_rng([p, v, m, sends, blocks])
    order = build_order(name, p, v, m)
    for _ in range(3):
        costs = random_costs(rng, order, sends=sends, blocks=blocks)
        longest = nx.dag_longest_path_length(step_graph(order, costs))
        assert run(build_program(order, costs), "dag").step_time == pytest.approx(longest, rel=1e-12)
