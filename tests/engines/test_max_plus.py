"""Tasks on streams against networkx' longest path, and the laws of a max-plus linear system."""

from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.engines.max_plus import (
    AFTER,
    BEFORE,
    BLEND,
    END,
    FOLDED,
    MINUS,
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


def periodic(rng, blocks, seen=None, ranks=3, each=4):
    """A block of tasks so many times, then a few more: those of a block wait for any before them, alike in every block.

    With `seen` the first block is before the fold, and so many are before its cut.
    """
    tasks, wide = TaskList(), ranks * each
    ranks_of, sources = rng.integers(ranks, size=wide), rng.integers(1, 2 * wide, size=(2, wide))
    amounts, lags = rng.integers(1, 20, size=wide), rng.integers(20, size=(2, wide))
    ends = rng.integers(2, size=2).astype(bool)
    for number in range(blocks + 1):
        folded, back = seen is not None and number < blocks, blocks - 1 - number
        block = AFTER if not folded else back if back < seen else BEFORE
        at = number * wide + np.arange(wide)
        tasks.add(0, ranks_of, 0, amounts, place=at, phase=FOLDED if folded else WHOLE, block=block)
        for source, lag, end in zip(sources, lags, ends, strict=True):
            tasks.wait(at, at - source, lag, from_end=bool(end))
    return build_graph(tasks.tasks(), 0 if seen is None else seen)


@given(rng=rngs, left_out=st.integers(0, 40))
def test_a_fold_is_the_whole(rng, left_out):
    """However many blocks are left out, also where they are no whole number of periods."""
    state = rng.bit_generator.state
    folded = periodic(rng, 60, seen=58)
    rng.bit_generator.state = state
    whole = periodic(rng, 60 + left_out)
    seconds = np.append(0.0, np.random.default_rng(1).uniform(0.5, 2.0, 19))
    times = play(whole, seconds).times
    found = play(folded, seconds, left_out=left_out)
    assume(found is not None)  # ranks that do not wait for each other drift apart
    np.testing.assert_allclose(found.times[-12:], times[-12:], rtol=1e-9)
    assert (found.as_played(folded) == play(folded, seconds).as_played(folded))[: folded.phases[WHOLE]].all()


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


@pytest.mark.parametrize("plans", [0, 3])
def test_a_blend_and_a_difference_of_two_moments(plans):
    tasks = TaskList()
    tasks.add(0, [0, 1], 0, [1, 2])
    for place, rule in enumerate((BLEND, MINUS)):
        end = tasks.add(0, [0], NO_STREAM, place=place, rule=rule, phase=END)
        tasks.wait(end, [1])
        tasks.wait(end, [0])
    graph, seconds = build_graph(tasks.tasks()), np.array([0.0, 2.0, 10.0])
    if plans:
        seconds = np.tile(seconds[:, np.newaxis], plans)
    played = play_plans(graph, seconds, np.full(plans, 0.25)) if plans else play(graph, seconds, 0.25).times
    ends = played[graph.event[2:]]
    assert ends[0] == pytest.approx(0.25 * 10 + 0.75 * 2)
    assert ends[1] == pytest.approx(10 - 2)
