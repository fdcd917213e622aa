"""Failures played event by event: what `closed_form` is checked against.

The events know nothing of the formula. A job computes, writes checkpoints, is struck, loses what was not safely
written, restarts (and may be struck again meanwhile), and waits for a repaired node when it has run out of spares.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import SpecError, require_positive
from sim.reliability.checkpoints import Checkpoints
from sim.reliability.closed_form import Failures, Goodput, goodput, job_mtbf
from sim.work.operations import Number

Array = NDArray[np.float64]
Repair = Literal["fixed", "exponential"]
MOST_FAILURES = 5_000_000
"""A run of more is refused rather than played for minutes."""
_BLOCK = 1024
"""Random numbers drawn at once."""


class _Stretch(NamedTuple):
    """Time from one (re)start to the next failure, and the wait for a repair after it."""

    start_s: float
    uptime_s: float
    restart_s: float
    wait_s: float


def simulate_goodput(
    num_gpus: float,
    checkpoints: Checkpoints,
    failures: Failures | None = None,
    num_failures: int = 20_000,
    seed: int = 0,
    repair: Repair = "fixed",
) -> Goodput:
    """Shares of wall-clock time over a run that sees `num_failures` failures.

    num_failures : how long to play; the error falls as one over its root.
    seed : the same seed plays the same failures.
    repair : whether every repair takes `failures.repair_s`, or that on average.
    """
    require_positive(num_failures=num_failures)
    _require_playable(num_failures)
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


def simulate_wall_times(
    useful_s: float,
    num_gpus: float,
    checkpoints: Checkpoints,
    failures: Failures | None = None,
    num_runs: int = 200,
    seed: int = 0,
    repair: Repair = "fixed",
) -> NDArray[np.float64]:
    """Wall-clock times of `num_runs` runs of so much work each: how much luck decides. Sorted.  [s]"""
    require_positive(useful_s=useful_s, num_runs=num_runs)
    failures = failures or Failures()
    expected = goodput(num_gpus, checkpoints, failures).wall_time(useful_s)
    _require_playable(num_runs * expected / float(job_mtbf(num_gpus, failures.gpu_mtbf_s)))
    return np.sort(
        [_wall_time(useful_s, checkpoints, _stretches(num_gpus, failures, seed + i, repair)) for i in range(num_runs)]
    )


def _wall_time(useful_s: float, checkpoints: Checkpoints, stretches: Iterator[_Stretch]) -> float:
    kept = 0.0
    for stretch in stretches:
        left = useful_s - kept
        pauses = int(left // checkpoints.interval_s) * checkpoints.blocking_s
        if stretch.uptime_s >= stretch.restart_s + left + pauses:
            return stretch.start_s + stretch.restart_s + left + pauses
        saved = _saved_intervals(stretch.uptime_s - stretch.restart_s, checkpoints)
        kept += float(saved) * checkpoints.interval_s
    raise AssertionError("failures never end")


def _require_playable(num_failures: float) -> None:
    if num_failures > MOST_FAILURES:
        raise SpecError(f"{num_failures:,.0f} failures are more than the {MOST_FAILURES:,} that are played one by one")


def _blocks(num_gpus: float, failures: Failures, seed: int, repair: Repair) -> Iterator[tuple[Array, Array]]:
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


def _stretches(num_gpus: float, failures: Failures, seed: int, repair: Repair) -> Iterator[_Stretch]:
    """Stretch after stretch of the job's life, with when each begins."""
    now, restart = 0.0, 0.0
    for uptimes, waits in _blocks(num_gpus, failures, seed, repair):
        for uptime, wait in zip(uptimes.tolist(), waits.tolist(), strict=True):
            yield _Stretch(now, uptime, restart, wait)
            now, restart = now + uptime + wait, failures.restart_s


def _saved_intervals(running_s: Number, checkpoints: Checkpoints) -> Array:
    """Intervals safely written of those computed between a restart and the next failure. Takes arrays.

    The checkpoint whose write was still going on in the background is lost.
    """
    period = checkpoints.interval_s + checkpoints.blocking_s
    begun = np.floor(np.maximum(running_s, 0.0) / period)
    since = running_s - begun * period
    saved: Array = np.where(since >= checkpoints.drain_s, begun, np.maximum(begun - 1.0, 0.0))
    return saved
