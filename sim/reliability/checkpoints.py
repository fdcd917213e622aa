"""Checkpoints: how large they are, how long a write takes, how often to write one.

.. [1] Young 1974, "A first order approximation to the optimum checkpoint interval", doi:10.1145/361147.361115.
.. [2] Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps",
   doi:10.1016/j.future.2004.11.016.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, require_not_negative, require_positive
from sim.work.operations import Number

CHECKPOINT_BYTES_PER_PARAM = 14.0
"""16-bit weights, 32-bit master weights and two moments: 2 + 4 + 4 + 4. Megatron-LM's trillion took 13.7."""


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


def checkpoint_bytes(params: Number, bytes_per_param: Number = CHECKPOINT_BYTES_PER_PARAM) -> Number:
    """Size of a checkpoint: weights and optimizer state.  [bytes]"""
    require_positive(params=params, bytes_per_param=bytes_per_param)
    return np.asarray(params, dtype=float) * bytes_per_param


def young_interval(write_s: Number, mtbf_s: Number) -> Number:
    """Interval of least waste to first order: sqrt(2 write mtbf) [1]_.  [s]"""
    require_positive(write_s=write_s, mtbf_s=mtbf_s)
    return np.sqrt(2.0 * np.asarray(write_s, dtype=float) * mtbf_s)


def daly_interval(write_s: Number, mtbf_s: Number) -> Number:
    """Interval of least waste to higher order; the time between failures where a write takes twice that [2]_.  [s]"""
    first = young_interval(write_s, mtbf_s)
    write_s, mtbf_s = np.asarray(write_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    share = write_s / (2.0 * mtbf_s)
    higher = first * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - write_s
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
