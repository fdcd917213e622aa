"""Failures, checkpoints, spare nodes: the share of wall-clock time that moves training forward.

Failures strike as a Poisson process. Work since the last checkpoint is lost; the job restarts, and if hardware failed
and no spare node is left it waits for a repair first. `goodput` is exact for this process, which the tests play failure
by failure (`tests/reliability/test_reliability.py`).

.. [1] Grattafiori et al. 2024, "The Llama 3 herd of models", arXiv:2407.21783, section 3.3.4 and table 5.
.. [2] Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps",
   doi:10.1016/j.future.2004.11.016.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Number
from sim.errors import SpecError, require_not_negative, require_positive


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """How state is saved.

    interval_s : useful work between two checkpoints. [s]
    blocking_s : for which training stops; the whole write unless it goes on in the background. [s]
    drain_s : for which the write goes on in the background; a failure before it ends loses the checkpoint too. [s]
    """

    interval_s: float
    blocking_s: float
    drain_s: float = 0.0

    def __post_init__(self) -> None:
        require_positive(interval_s=self.interval_s)
        require_not_negative(blocking_s=self.blocking_s, drain_s=self.drain_s)
        if self.drain_s > (self.interval_s + self.blocking_s) * (1 + 1e-9):
            raise SpecError(
                f"a checkpoint every {self.interval_s:g} s is not written yet when the next one is due: drain_s = "
                f"{self.drain_s:g}; take an interval of at least {self.drain_s - self.blocking_s:g} s"
            )


def daly_interval(write_s: Number, mtbf_s: Number) -> Number:
    """Interval of least waste to higher order; the time between failures where a write takes twice that [2]_.  [s]

    Its first factor is Young's, sqrt(2 write mtbf).
    """
    require_positive(write_s=write_s, mtbf_s=mtbf_s)
    write_s, mtbf_s = np.asarray(write_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    share = write_s / (2.0 * mtbf_s)
    higher = np.sqrt(2.0 * write_s * mtbf_s) * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - write_s
    return np.where(write_s < 2.0 * mtbf_s, higher, mtbf_s)


def best_interval(write_s: Number, mtbf_s: Number) -> Number:
    """Interval of least waste, exactly: mtbf (1 + W(−exp(−1 − write/mtbf))), W Lambert's function.  [s]

    The zero of the derivative of `slowdown` in the interval; restarts and draining do not move it.
    """
    from scipy.special import lambertw

    require_positive(write_s=write_s, mtbf_s=mtbf_s)
    mtbf_s = np.asarray(mtbf_s, dtype=float)
    share = np.asarray(write_s, dtype=float) / mtbf_s
    exact = mtbf_s * (1.0 + lambertw(-np.exp(-1.0 - share)).real)
    # So near its branch point W keeps few digits, and Daly's series all of them.
    return np.where(share < 1e-6, daly_interval(write_s, mtbf_s), exact)


def slowdown(interval_s: Number, write_s: Number, mtbf_s: Number, restart_s: Number = 0.0) -> Number:
    """Wall-clock over useful time, exactly: M e^(R/M) (e^((tau + delta)/M) − 1)/tau [2]_.

    Failures may strike during checkpoints and restarts too. Writing in the background for `drain_s` works like as much
    more restart: a failure before the write has ended, of chance 1 − e^(−drain/M), loses one interval more (own
    derivation, checked by the simulation).
    """
    require_positive(interval_s=interval_s, mtbf_s=mtbf_s)
    require_not_negative(write_s=write_s, restart_s=restart_s)
    mtbf_s, interval_s = np.asarray(mtbf_s, dtype=float), np.asarray(interval_s, dtype=float)
    with np.errstate(over="ignore"):
        return mtbf_s * np.exp(restart_s / mtbf_s) * np.expm1((interval_s + write_s) / mtbf_s) / interval_s


_LLAMA3_GPUS, _LLAMA3_DAYS, _LLAMA3_FAILURES = 16_384, 54, 419
GPU_MTBF_S = _LLAMA3_GPUS * _LLAMA3_DAYS * 86400.0 / _LLAMA3_FAILURES
"""Mean time between unexpected interruptions of one GPU: 50,677 hours. Llama 3 405B had 419 in 54 days on 16,384 H100
[1]_. [s]"""
STARTUP_S = 600.0
"""Time from a failure until the job can load its checkpoint: the failure is noticed, the broken node found and
replaced, processes and NCCL started. Assumption. [s]"""
HARDWARE_SHARE = 0.78
"""Share of the interruptions that confirmed or suspected hardware causes [1]_."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What goes wrong, and how it is put right.

    gpu_mtbf_s : mean time between failures of one GPU, including everything around it. Default: Llama 3's. [s]
    startup_s : time from a failure until the job can load its checkpoint, with a spare node at hand. [s]
    hardware_share : share of failures that take a node out of service.
    repair_s : how long a broken node is away. Assumption: a day. [s]
    spare_nodes : idle nodes that take over at once; default: as many as it takes.
    load_s : time to load the checkpoint. [s]
    """

    gpu_mtbf_s: float = GPU_MTBF_S
    startup_s: float = STARTUP_S
    hardware_share: float = HARDWARE_SHARE
    repair_s: float = 86400.0
    spare_nodes: int | None = None
    load_s: float = 0.0

    def __post_init__(self) -> None:
        require_positive(gpu_mtbf_s=self.gpu_mtbf_s)
        require_not_negative(
            startup_s=self.startup_s, load_s=self.load_s, repair_s=self.repair_s, spare_nodes=self.spare_nodes or 0
        )
        if not 0 <= self.hardware_share <= 1:
            raise SpecError(f"hardware_share = {self.hardware_share:g} must lie between 0 and 1")

    @property
    def restart_s(self) -> float:
        """Time from a failure to the first new step, with a spare node at hand. [s]"""
        return self.startup_s + self.load_s


@dataclass(frozen=True, slots=True)
class Goodput:
    """Shares of wall-clock time; they sum to one."""

    useful: float
    checkpoints: float
    lost_work: float
    restarts: float
    waiting: float


def job_mtbf(num_gpus: Number, gpu_mtbf_s: Number = GPU_MTBF_S) -> Number:
    """Mean time between failures of a job on `num_gpus`.  [s]"""
    require_positive(num_gpus=num_gpus, gpu_mtbf_s=gpu_mtbf_s)
    return np.asarray(gpu_mtbf_s, dtype=float) / num_gpus


def waiting_share(failures: Failures, num_gpus: float) -> float:
    """Share of time that the job waits for a repair because no spare node is left.

    Hardware failures per repair time are the load of spare_nodes + 1 servers, and a stopped job has no failures, so
    the share is Erlang's loss formula, whatever the distribution of the repair time (Erlang B is insensitive).
    """
    if failures.spare_nodes is None:
        return 0.0
    load = failures.hardware_share * failures.repair_s / float(job_mtbf(num_gpus, failures.gpu_mtbf_s))
    blocked = 1.0
    for servers in range(1, failures.spare_nodes + 2):
        blocked = load * blocked / (servers + load * blocked)
        if blocked == 0.0:  # more spares change nothing
            break
    return blocked


def goodput(num_gpus: float, checkpoints: Checkpoints, failures: Failures | None = None) -> Goodput:
    """Where the wall-clock time of a long job goes, in expectation."""
    failures = failures or Failures()
    mtbf = float(job_mtbf(num_gpus, failures.gpu_mtbf_s))
    waiting = waiting_share(failures, num_gpus)
    stretch = float(
        slowdown(checkpoints.interval_s, checkpoints.blocking_s, mtbf, failures.restart_s + checkpoints.drain_s)
    )
    running = 1.0 - waiting
    useful = running / stretch
    saving = useful * checkpoints.blocking_s / checkpoints.interval_s
    restarting = running * -float(np.expm1(-failures.restart_s / mtbf))
    return Goodput(useful, saving, max(running - useful - saving - restarting, 0.0), restarting, waiting)
