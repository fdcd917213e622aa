"""The exact engine's step is the longest path that networkx finds in a graph this file builds from the order itself."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from sim.engines import Program, run
from sim.schedules import Kind, build_order, get_schedule, schedule_names

SIZES = {
    "gpipe": [(1, 1, 3), (2, 1, 1), (3, 1, 5), (4, 1, 4), (5, 1, 2)],
    "1f1b": [(1, 1, 4), (2, 1, 3), (3, 1, 8), (4, 1, 2), (6, 1, 13)],
    "interleaved": [(2, 2, 2), (2, 3, 6), (3, 2, 9), (4, 4, 8), (5, 2, 5)], "zb_interleaved": [(2, 2, 4), (3, 3, 6)],
    "breadth_first": [(1, 4, 3), (3, 2, 5), (4, 2, 3)], "modular": [(3, 3, 4)], "zb_h1": [(3, 1, 5), (4, 1, 9)],
    "zb_h2": [(4, 1, 9)], "zb_v": [(2, 2, 3), (4, 2, 10)], "v_half": [(3, 2, 7)], "v_min": [(4, 2, 9)],
    "chimera": [(4, 1, 4), (6, 1, 8)], "hanayo": [(3, 4, 4), (4, 2, 8)],
    "dualpipe": [(2, 1, 4), (4, 1, 12), (6, 1, 14)], "dualpipe_v": [(1, 2, 3), (3, 2, 8)], "seq1f1b": [(4, 1, 6)],
    "pipedream": [(3, 1, 4)], "pipedream_2bw": [(3, 1, 5), (4, 1, 4)],
}  # fmt: skip
UNEVEN = [("modular", 3, 3, 4, 7), ("modular", 4, 2, 5, 6), ("modular", 5, 3, 2, 14)]
"""With so many stages, fewer than ranks times chunks."""
CASES = [(name, *size) for name, sizes in SIZES.items() for size in sizes]


def step_graph(order, costs):
    """Nodes are moments; an edge's weight is how long after its start its end can be at the earliest. [s]"""
    graph = nx.DiGraph()
    home = {action.stage: rank for rank, row in enumerate(order.actions) for action in row}
    done = {tuple(action) for row in order.actions for action in row}
    updates = costs.reduce_s + costs.optimizer_s + costs.gather_s
    compute = {
        Kind.F: costs.forward_s, Kind.B: costs.backward_s, Kind.I: costs.backward_s - costs.weight_grad_s,
        Kind.W: costs.weight_grad_s, Kind.U: [updates[home[stage]] for stage in range(order.num_stages)],
    }  # fmt: skip
    nothing = np.zeros(order.num_stages)
    message = {Kind.F: costs.send_forward_s, Kind.B: costs.send_backward_s, Kind.I: costs.send_backward_s}
    message |= {Kind.W: nothing, Kind.U: nothing}
    per_copy = order.num_stages // order.copies

    def awaited(action):
        """Forwards follow the stage before, backwards the stage after; each backward its own forward."""
        stage, kind, microbatch = action
        if kind is Kind.W:
            yield stage, Kind.I, microbatch
        if kind in (Kind.B, Kind.I):
            yield stage, Kind.F, microbatch
        if kind is Kind.F and stage % per_copy:
            yield stage - 1, Kind.F, microbatch
        if kind in (Kind.B, Kind.I) and (stage + 1) % per_copy:
            yield from ((stage + 1, whole, microbatch) for whole in "BI" if (stage + 1, whole, microbatch) in done)

    def add(start, end, seconds):
        if not graph.has_edge(start, end) or graph.edges[start, end]["weight"] < seconds:
            graph.add_edge(start, end, weight=float(seconds))

    def taken(action):
        """How long the rank cannot start its next action."""
        return compute[action.kind][action.stage] + costs.p2p_blocks * message[action.kind][action.stage]

    paired = {}  # begins together with -> what

    def add_needs(row, rank):
        for action in row:
            for need in awaited(action):
                there = home[need[0]] != rank
                delay = compute[need[1]][need[0]] + (message[need[1]][need[0]] if there else 0)
                if there and need in paired:  # there when both of the pair are done
                    second = paired[need]
                    delay += compute[second.kind][second.stage]
                add(need, tuple(action), delay)
                first = next((first for first, second in paired.items() if second == action), None)
                if there and first is not None:  # the first of a pair waits for what the second needs
                    add(need, first, delay)

    for rank, row in enumerate(order.actions):
        for place, (before, action) in enumerate(pairwise(row)):
            add(tuple(before), tuple(action), taken(before))
            if order.pair_needs is not None and order.pair_needs[order.first[rank] + place] >= 0:
                paired[tuple(before)] = action
        add(tuple(row[-1]), ("done", rank), taken(row[-1]))
    for rank, row in enumerate(order.actions):
        if any(action.kind is Kind.U for action in row):  # its updates are in the order
            add(("done", rank), "end", costs.step_setup_s)
            add_needs(row, rank)
            continue
        add(("done", rank), "ready", costs.reduce_s[rank])
        if costs.tied_embedding_s and rank in order.ends:
            add(("done", rank), "both ends", costs.reduce_s[rank])
        add_needs(row, rank)
    if costs.tied_embedding_s:
        add("both ends", "ready", costs.tied_embedding_s)
    if "ready" in graph:
        add("ready", "end", (costs.optimizer_s + costs.gather_s).max() + costs.step_setup_s)
    return graph


@pytest.mark.parametrize("blocks", [True, False], ids=["blocking sends", "sends beside compute"])
@pytest.mark.parametrize("sends", [True, False], ids=["sends", "no sends"])
@pytest.mark.parametrize(("name", "p", "v", "m", "stages"), [*((*case, None) for case in CASES), *UNEVEN])
def test_dag_is_the_longest_path(name, p, v, m, stages, sends, blocks, random_costs):
    rng = np.random.default_rng([p, v, m, sends, blocks])
    order = build_order(name, p, v, m, stages=stages)
    for _ in range(3):
        costs = random_costs(rng, order, sends=sends, blocks=blocks)
        longest = nx.dag_longest_path_length(step_graph(order, costs))
        timeline = run(Program(order, costs), "dag")
        if get_schedule(name).staggered:  # a step is as long as the longest rank's own
            costs = replace(
                costs, reduce_s=0 * costs.reduce_s, tied_embedding_s=0.0, step_setup_s=0.0,
                optimizer_s=0 * costs.reduce_s,
            )  # fmt: skip
            costs = replace(costs, gather_s=0 * costs.reduce_s)
            timeline, longest = (
                run(Program(order, costs), "dag"),
                nx.dag_longest_path_length(step_graph(order, costs)),
            )
            assert timeline.end.max() == pytest.approx(longest, rel=1e-12)
        else:
            assert timeline.step_time_s == pytest.approx(longest, rel=1e-12)


def test_every_schedule_is_compared():
    assert SIZES.keys() == set(schedule_names())
