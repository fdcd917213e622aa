"""Running a folded order: play what is in its arrays until the steady state repeats, and add what was left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.engines.program import Program

Array = np.ndarray
Play = Callable[[Program], tuple[Array, Array]]


def play_folded(program: Program, play: Play) -> tuple[Program, Array, Array, float | None]:
    """Start and end of every action of a step, repetitions that were left out counted in.

    Parameters
    ----------
    play : Program -> (start, end)
        Times all actions in the program's arrays. [s]

    Returns
    -------
    program : Program
        With as many micro-batches in its arrays as it took to reach the steady state.
    start, end : arrays over its actions
        [s]
    period_s : float or None
        Of an order without end, the time from batch to batch in the steady state. [s]
    """
    while True:
        start, end = play(program)
        order, fold = program.order, program.order.fold
        if fold is None:
            return program, start, end, None
        found = fold.steady(start)
        if found is None:
            program = program.on(fold.rebuild(2 * fold.kept))
            continue
        blocks, seconds = found
        if fold.endless:
            return program, start, end, seconds / blocks
        if fold.times % blocks:
            program = program.on(fold.rebuild(fold.kept + fold.times % blocks * fold.period))
            continue
        later = fold.times // blocks * seconds * (np.arange(len(order)) >= fold.cuts[order.rank])
        return program, start + later, end + later, None
