"""Along which axis of a plan we mislead ourselves: errors within sweeps of layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

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
    sweeps = [own for own in members_of(items).values() if len({plan_of(item) for item in own}) >= FEWEST]
    if not sweeps:
        return {}
    tables = (np.array([[*(axis(plan_of(i)) for axis in AXES.values()), -i.log_error] for i in own]) for own in sweeps)
    within = np.concatenate([table - table.mean(axis=0) for table in tables])
    table, error = within[:, :-1], within[:, -1]
    moved = (np.abs(table) > 1e-9).sum(axis=0)
    used = [index for index in range(len(AXES)) if moved[index] >= least]
    free = len(error) - len(sweeps) - len(used)
    if not used or free <= 0:
        return {}
    slopes, _, rank, _ = np.linalg.lstsq(table[:, used], error, rcond=None)
    if rank < len(used):
        return {}
    left = error - table[:, used] @ slopes
    widths = np.sqrt(float(left @ left) / free * np.diag(np.linalg.inv(table[:, used].T @ table[:, used])))
    rows = zip(used, slopes.tolist(), widths.tolist(), strict=True)
    return {list(AXES)[index]: (slope, width, int(moved[index])) for index, slope, width in rows}
