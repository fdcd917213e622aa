"""The exact engine: the graph of tasks as a max-plus system, so that the step is its longest path."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.engines.max_plus import Played, play
from sim.engines.program import Program
from sim.engines.tasks import Step, amounts_of, step_of, switches_of
from sim.engines.timeline import Timeline, timeline_of, waits_at_visits
from sim.schedules import Order


def run(program: Program) -> Timeline:
    """Begin every task as soon as its stream is free and what it waits for has happened.

    Exact for deterministic durations: the step time is the longest path through the tasks' waits.
    """
    program, step, amounts, played = play_program(program)
    order, graph = program.order, step.graph
    begin, durations, waited = played.as_played(graph)[graph.event], amounts[graph.tasks.amount], None
    if program.costs.visits is not None:
        moved, repeated = played.times[graph.event], repetitions(order, played.blocks)
        waited = waits_at_visits(order, step, amounts, begin, moved, durations, repeated)
    period = played.seconds / played.blocks if played.blocks else None
    return timeline_of(program, "dag", step, begin, begin + durations, waited, period)


def play_program(program: Program) -> tuple[Program, Step, FloatArray, Played]:
    """Play the tasks of a program, with as many micro-batches as it takes to reach the steady state: (that program, its
    tasks, their amounts, what was played)."""
    while True:
        order = program.order
        if order.fold is None or order.fold.seen > order.fold.depth:  # else too few blocks to see anything repeat
            on = switches_of(program)
            step, amounts = step_of(order, on), amounts_of(program, on)
            left_out = 0 if order.fold is None else order.fold.times
            played = play(step.graph, amounts, program.costs.hidden_share, left_out)
            if played is not None:
                return program, step, amounts, played
        program = program.on(longer(order))


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
