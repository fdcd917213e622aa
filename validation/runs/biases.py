"""Along which axis of a plan we mislead ourselves: errors within sweeps of layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, log2

import numpy as np

from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.sweeps import FEWEST, members_of, plan_of
from sim.specs import ParallelPlan

AXES: dict[str, Callable[[ParallelPlan], float]] = {
    "tp": lambda plan: log2(plan.tp),
    "pp": lambda plan: log2(plan.pp),
    "micro-batch": lambda plan: log2(plan.microbatch_size),
    "chunks": lambda plan: log2(plan.num_chunks),
    "recompute": lambda plan: float(plan.recompute != "none"),
    "sequence parallel": lambda plan: float(plan.sequence_parallel),
}
"""Along which a bias is looked for: doublings of numbers, on against off of choices. dp follows from tp and pp."""


def biases(items: Sequence[Scored], least: int = 10) -> dict[str, tuple[float, float, int]]:
    """Bias along each axis: what a doubling (or switching on) adds to log(predicted/measured); standard error; runs.

    A least-squares fit to all axes at once with a constant of its own for every sweep, so that only what differs within
    sweeps counts; `least` runs must differ along an axis within theirs. Positive: we find more of it too slow.
    """
    rows: list[np.ndarray] = []
    errors: list[np.ndarray] = []
    for members in members_of(items).values():
        if len({plan_of(item) for item in members}) < FEWEST:
            continue
        table = np.array([[axis(plan_of(item)) for axis in AXES.values()] for item in members])
        rows.append(table - table.mean(axis=0))
        own = np.array([log(1.0 + (item.error or 0.0)) for item in members])
        errors.append(own - own.mean())
    if not rows:
        return {}
    table, error = np.concatenate(rows), np.concatenate(errors)
    moved = (np.abs(table) > 1e-9).sum(axis=0)
    used = [index for index in range(len(AXES)) if moved[index] >= least]
    if not used or len(error) <= len(rows) + len(used):
        return {}
    slopes, _, rank, _ = np.linalg.lstsq(table[:, used], error, rcond=None)
    if rank < len(used):
        return {}
    left = error - table[:, used] @ slopes
    variance = float(left @ left) / (len(error) - len(rows) - len(used))
    widths = np.sqrt(variance * np.diag(np.linalg.inv(table[:, used].T @ table[:, used])))
    names = list(AXES)
    return {
        names[index]: (float(slope), float(width), int(moved[index]))
        for index, slope, width in zip(used, slopes, widths, strict=True)
    }
