"""Tasks on streams against networkx' longest path, and the laws of a max-plus linear system."""

from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engines.max_plus import (
    AFTER,
    FOLDED,
    NO_STREAM,
    WHOLE,
    TaskList,
    build_graph,
    play,
    play_plans,
)

rngs = st.integers(0, 2**32).map(np.random.default_rng)


def random_tasks(rng, count=60, ranks=3, streams=2, waits=7):
    """Tasks on streams, and joins, which wait for the begin or the end of any before them; and their seconds."""
    tasks = TaskList()
    for task in range(count):
        stream = int(rng.integers(-1, streams))
        amount = 0 if stream == NO_STREAM else int(rng.integers(1, 20))
        tasks.add(0, [rng.integers(ranks)], stream, amount, place=task)
        for _ in range(int(rng.integers(waits + 1)) if task else 0):
            tasks.wait([task], [rng.integers(task)], int(rng.integers(20)), from_end=bool(rng.integers(2)))
    tasks.wait([0], [-1])
    for (_, said), depth in zip(tasks.added, depths_of(tasks.tasks()), strict=True):
        said["place"] = depth
    return tasks.tasks(), np.concatenate([[0.0], rng.uniform(0.0, 3.0, 19)])


def depths_of(tasks):
    """How many tasks stand in a row before each at most: those that are as deep wait for none of each other."""
    depths, last = [], {}
    for task in range(len(tasks)):
        lane = (int(tasks.rank[task]), int(tasks.stream[task]))
        before = [last[lane]] if lane[1] != NO_STREAM and lane in last else []
        before += tasks.source[tasks.waiter == task].tolist()
        depths.append(max((depths[each] + 1 for each in before), default=0))
        last[lane] = task
    return depths


def longest_paths(tasks, seconds):
    """When each task begins at the earliest, by networkx. [s]"""
    graph, last = nx.DiGraph(), {}
    for task in tasks.sequence.tolist():
        graph.add_edge("begin", task, weight=0.0)
        lane = (int(tasks.rank[task]), int(tasks.stream[task]))
        if lane[1] != NO_STREAM and lane in last:
            graph.add_edge(last[lane], task, weight=float(seconds[tasks.amount[last[lane]]]))
        last[lane] = task
    for task, source, lag, from_end in zip(tasks.waiter, tasks.source, tasks.lag, tasks.from_end, strict=True):
        weight = float(seconds[lag] + from_end * seconds[tasks.amount[source]])
        if graph.has_edge(int(source), int(task)):
            weight = max(weight, graph.edges[int(source), int(task)]["weight"])
        graph.add_edge(int(source), int(task), weight=weight)
    begins = {}
    for task in nx.topological_sort(graph):
        begins[task] = max(
            (begins[source] + edge["weight"] for source, _, edge in graph.in_edges(task, data=True)), default=0
        )
    return np.array([begins[task] for task in range(len(tasks))])


@pytest.mark.parametrize("wide", [0, 10**9], ids=["by levels", "one by one"])
@given(rng=rngs)
def test_begins_are_longest_paths(wide, rng):
    tasks, seconds = random_tasks(rng)
    with mock.patch("sim.engines.max_plus.WIDE", wide):
        graph = build_graph(tasks)
        np.testing.assert_allclose(play(graph, seconds).times[graph.event], longest_paths(tasks, seconds), rtol=1e-12)


@given(rng=rngs)
def test_columns_of_plans_are_plans_one_by_one(rng):
    tasks, _ = random_tasks(rng)
    graph, seconds = build_graph(tasks), np.concatenate([np.zeros((1, 5)), rng.uniform(0.0, 3.0, (19, 5))])
    times = play_plans(graph, seconds)
    for plan in range(5):
        np.testing.assert_allclose(times[:, plan], play(graph, seconds[:, plan]).times, rtol=1e-12)


def test_a_fold_without_a_steady_state_says_so():
    """Two ranks that never meet, one faster: they drift apart for ever."""
    tasks = TaskList()
    for number in range(9):
        stands = {"phase": FOLDED if number < 8 else WHOLE, "block": 7 - number if number < 8 else AFTER}
        tasks.add(0, [0, 1], 0, [1, 2], place=number, **stands)
    end = tasks.add(0, [0], NO_STREAM, place=9)
    tasks.wait(end, [16])
    graph = build_graph(tasks.tasks(), seen=8)
    seconds = np.array([0.0, 1.0, 3.0])
    assert play(graph, seconds, left_out=10) is None
    alike = play(graph, np.array([0.0, 3.0, 3.0]), left_out=10)
    assert alike.times[-1] == 3.0 * 19
