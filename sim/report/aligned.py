"""A text grid on a time axis: a column a unit of time, so that idle slots are seen.

Without updates it is a grid that can be read back.
"""

from __future__ import annotations

import numpy as np

from sim.engines import Program, run
from sim.errors import SpecError
from sim.pricing.stages import StageSeconds
from sim.schedules import Order
from sim.schedules.actions import I, U, W
from sim.work.layers import Stage

MOST_UNITS = 50
"""The longest action, in units: a column each."""


def parse_times(text: str) -> tuple[int, int, int | None]:
    """(forward, backward or input gradient, weight gradient or None) of `1,2` or `1,1,1`. [units]"""
    parts = text.split(",")
    if len(parts) not in (2, 3) or not all(part.strip().isdecimal() for part in parts):
        raise SpecError(
            f"--times {text!r} must be forward,backward or forward,input gradient,weight gradient in whole units, such "
            "as 1,2 or 1,1,1"
        )
    numbers = [int(part) for part in parts]
    if not all(1 <= number <= MOST_UNITS for number in numbers):
        raise SpecError(f"--times {text!r}: an action takes from 1 to {MOST_UNITS} units, a column each")
    return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None


def format_aligned(order: Order, times: tuple[int, int, int | None]) -> str:
    """The order with a column a unit of time: `.` where a rank is idle, blanks where an action goes on.

    Sends take no time, nor do updates, which stand as `|` before the column in which they happen.
    """
    forward, backward, weight = times
    halves = bool(np.isin(order.kind, (I, W)).any())
    if halves and weight is None:
        raise SpecError(
            f"schedule {order.schedule!r} splits the backward in input and weight gradient; give the times of all "
            f"three, such as --times {forward},{max(1, backward // 2)},{max(1, backward - backward // 2)}"
        )
    # Stages all take as long, with nothing sent and nothing to do after the pipeline.
    each, stages = np.ones(order.num_stages), tuple(Stage(n, (1,), False, False) for n in range(order.num_stages))
    units = (forward * each, (backward + (weight or 0)) * each, (weight or 0) * each)
    costs = StageSeconds.of_compute(stages, order.num_ranks, *units)
    played = run(Program(order, costs))
    start, end = np.rint(played.start).astype(int), np.rint(played.end).astype(int)
    length = int(end.max(initial=0))
    words = [[str(action) for action in row] for row in order.actions]
    width = max((len(action) for row in words for action in row), default=1)
    label = len(str(order.num_ranks - 1))
    lines = []
    for rank, texts in enumerate(words):
        here = order.of_rank(rank)
        cells = ["."] * length
        before = [" "] * (length + 1)
        for text, begin, stop, kind in zip(texts, start[here], end[here], order.kind[here], strict=True):
            if kind == U:
                before[begin] = "|"
                continue
            cells[begin:stop] = [text] + [""] * (stop - begin - 1)
        row = "".join(f"{mark}{cell:>{width}}" for mark, cell in zip(before, cells, strict=False))
        lines.append(f"rank {rank:>{label}} |{row}{before[-1].rstrip()}".rstrip())
    busy = np.zeros(order.num_ranks)
    np.add.at(busy, order.rank, end - start)
    idle = ", ".join(f"{length - round(value)}" for value in busy.tolist())
    lines.append(f"# {length} units; idle on each rank: {idle}")
    if (order.kind == U).any():
        lines.append("# | is an update of the weights; batches follow each other without a flush")
    return "\n".join(lines)
