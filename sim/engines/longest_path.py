"""The exact engine: the graph of tasks as a max-plus system, so that the step is its longest path."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sim.arrays import IntArray
from sim.engines.max_plus import play
from sim.engines.program import Program
from sim.engines.tasks import amounts_of, step_of, switches_of
from sim.engines.timeline import Timeline, timeline_of, waits_at_visits
from sim.schedules import Order


def run(program: Program) -> Timeline:
    """Begin every task as soon as its stream is free and what it waits for has happened.

    Exact for deterministic durations: the step time is the longest path through the tasks' waits. A folded order is
    played with as many micro-batches as it takes to reach the steady state.
    """
    played = None
    while played is None:
        order, on = program.order, switches_of(program)
        step, amounts = step_of(order, on), amounts_of(program, on)
        left_out = 0 if order.fold is None else order.fold.times
        played = play(step.graph, amounts, program.costs.hidden_share, left_out)
        program = program if played is not None else program.on(longer(order))
    graph, waited = step.graph, None
    begin, durations = played.as_played(graph)[graph.event], amounts[graph.tasks.amount]
    if program.costs.visits is not None:
        moved, repeated = played.times[graph.event], repetitions(order, played.blocks)
        waited = waits_at_visits(order, step, amounts, begin, moved, durations, repeated)
    period = played.seconds / played.blocks if played.blocks else None
    return timeline_of(program, "dag", step, begin, begin + durations, waited, period)


@lru_cache(maxsize=256)
def longer(order: Order) -> Order:
    """The folded order with twice as many micro-batches in its arrays; kept, so that its graph is found again."""
    assert order.fold is not None
    found: Order = order.fold.rebuild(2 * order.fold.kept)
    return found


def repetitions(order: Order, blocks: int) -> IntArray:
    """How many actions of the step each action stands for, where `blocks` of a fold are a period.

    Repetitions are counted at the blocks of the last period, which they are like in turn; `Order.weight` counts all at
    the last block.
    """
    fold = order.fold
    if fold is None or not fold.times:
        return order.weight
    repeated = np.ones(len(order), dtype=np.int64)
    for back in range(blocks):
        repeated[fold.block(back)] += (fold.times + back) // blocks
    return repeated
