"""Failures played one by one, which know nothing of the formula: a job computes, writes checkpoints, is struck, loses
what was not safely written, restarts (and may be struck again meanwhile), and waits for a repaired node."""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Literal

import numpy as np

from sim.arrays import FloatArray, Number
from sim.reliability.goodput import Checkpoints, Failures, Goodput, job_mtbf

Repair = Literal["fixed", "exponential"]
_BLOCK = 1024
"""Random numbers drawn at once."""


def simulate_goodput(
    num_gpus: float,
    checkpoints: Checkpoints,
    failures: Failures | None = None,
    num_failures: int = 20_000,
    seed: int = 0,
    repair: Repair = "fixed",
) -> Goodput:
    """Shares of wall-clock time over a run that sees `num_failures` failures.

    The error falls as one over the root of that number. `repair` says whether every repair takes `failures.repair_s`,
    or that on average.
    """
    failures = failures or Failures()
    played = int(num_failures)
    blocks = islice(_blocks(num_gpus, failures, seed, repair), -(-played // _BLOCK))
    uptimes, waits = (np.concatenate(each)[:played] for each in zip(*blocks, strict=True))
    restarts = np.full(played, failures.restart_s)
    restarts[0] = 0.0
    intervals = float(_saved_intervals(uptimes - restarts, checkpoints).sum())
    kept, saving = intervals * checkpoints.interval_s, intervals * checkpoints.blocking_s
    restarting, waiting = float(np.minimum(uptimes, restarts).sum()), float(waits.sum())
    end = float(uptimes.sum()) + waiting
    lost = end - kept - saving - restarting - waiting
    return Goodput(*(part / end for part in (kept, saving, lost, restarting, waiting)))


def _blocks(num_gpus: float, failures: Failures, seed: int, repair: Repair) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield the time until each failure strikes, and the wait for a repair after it.  [s]

    The job lives without end, and its failures come in blocks. What it computes meanwhile does not change them.
    """
    rng = np.random.default_rng(seed)
    mtbf = float(job_mtbf(num_gpus, failures.gpu_mtbf_s))
    now = 0.0
    away: list[float] = []  # when each node in repair comes back
    while True:
        uptimes = rng.exponential(mtbf, _BLOCK)
        broken = np.flatnonzero(rng.random(_BLOCK) < failures.hardware_share)
        repairs = rng.exponential(failures.repair_s, _BLOCK) if repair == "exponential" else None
        waits = np.zeros(_BLOCK)
        if failures.spare_nodes is not None:
            strikes, waited = now + np.cumsum(uptimes), 0.0
            for place, strike in zip(broken.tolist(), strikes[broken].tolist(), strict=True):
                struck = strike + waited
                while away and away[0] <= struck:
                    heappop(away)
                heappush(away, struck + (failures.repair_s if repairs is None else float(repairs[place])))
                if len(away) > failures.spare_nodes:
                    wait = heappop(away) - struck
                    waits[place], waited = wait, waited + wait
        yield uptimes, waits
        now += float(uptimes.sum() + waits.sum())


def _saved_intervals(running_s: Number, checkpoints: Checkpoints) -> FloatArray:
    """Intervals safely written of those computed between a restart and the next failure. Takes arrays.

    The checkpoint whose write was still going on in the background is lost.
    """
    period = checkpoints.interval_s + checkpoints.blocking_s
    begun = np.floor(np.maximum(running_s, 0.0) / period)
    since = running_s - begun * period
    saved: FloatArray = np.where(since >= checkpoints.drain_s, begun, np.maximum(begun - 1.0, 0.0))
    return saved
