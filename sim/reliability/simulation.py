"""Failures played event by event: what `closed_form` is held against.

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

    Parameters
    ----------
    num_gpus : float
    checkpoints : Checkpoints
    failures : Failures, optional
    num_failures : int
        How long to play; the error falls as one over its root.
    seed : int
        The same seed plays the same failures.
    repair : {"fixed", "exponential"}
        Whether every repair takes `failures.repair_s`, or that on average.

    Raises
    ------
    SpecError
        Too many failures to play.
    """
    require_positive(num_failures=num_failures)
    _require_playable(num_failures)
    kept = saving = restarting = waiting = end = 0.0
    for stretch in islice(_stretches(num_gpus, failures or Failures(), seed, repair), int(num_failures)):
        intervals = _saved_intervals(stretch.uptime_s - stretch.restart_s, checkpoints)
        kept += intervals * checkpoints.interval_s
        saving += intervals * checkpoints.blocking_s
        restarting += min(stretch.uptime_s, stretch.restart_s)
        waiting += stretch.wait_s
        end = stretch.start_s + stretch.uptime_s + stretch.wait_s
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
    """Wall-clock times of `num_runs` runs of so much work each: how much luck decides. Sorted.  [s]

    Raises
    ------
    SpecError
        More failures than can be played, as when next to no work gets done.
    """
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
        kept += _saved_intervals(stretch.uptime_s - stretch.restart_s, checkpoints) * checkpoints.interval_s
    raise AssertionError("failures never end")


def _require_playable(num_failures: float) -> None:
    if num_failures > MOST_FAILURES:
        raise SpecError(f"{num_failures:,.0f} failures are more than the {MOST_FAILURES:,} that are played one by one")


def _stretches(num_gpus: float, failures: Failures, seed: int, repair: Repair) -> Iterator[_Stretch]:
    """The job's life, failure by failure, without end. What it computes meanwhile changes nothing of it."""
    rng = np.random.default_rng(seed)
    mtbf = float(job_mtbf(num_gpus, failures.gpu_mtbf_s))
    now, restart = 0.0, 0.0
    away: list[float] = []  # when each node in repair comes back
    while True:
        draws = zip(
            rng.exponential(mtbf, _BLOCK),
            rng.random(_BLOCK) < failures.hardware_share,
            rng.exponential(failures.repair_s, _BLOCK) if repair == "exponential" else [failures.repair_s] * _BLOCK,
            strict=True,
        )
        for uptime, broken, repair_s in draws:
            struck = now + float(uptime)
            wait = 0.0
            if broken and failures.spare_nodes is not None:
                while away and away[0] <= struck:
                    heappop(away)
                heappush(away, struck + float(repair_s))
                if len(away) > failures.spare_nodes:
                    wait = heappop(away) - struck
            yield _Stretch(now, float(uptime), restart, wait)
            now, restart = struck + wait, failures.restart_s


def _saved_intervals(running_s: float, checkpoints: Checkpoints) -> int:
    """Intervals safely written of those computed between a restart and the next failure.

    The checkpoint whose write was still going on in the background is lost.
    """
    period = checkpoints.interval_s + checkpoints.blocking_s
    begun = int(max(running_s, 0.0) // period)
    since = running_s - begun * period
    return begun if since >= checkpoints.drain_s else max(begun - 1, 0)
