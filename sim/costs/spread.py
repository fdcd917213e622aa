"""How much longer a job waits for the slowest of its GPUs, the more of them it has."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from sim.arrays import Floats, Ints
from sim.specs import Scenario

SPREAD_OVER = 64
"""GPUs of the median job of the series on which cluster.gpu_spread was fitted: it is over the speed of the slowest of
these."""


def expected_slowest(gpus: int) -> float:
    """Return how many standard deviations the slowest of so many GPUs is behind the mean.

    GPUs' speeds are taken to be normal; the expected maximum is Blom's approximation [1]_.

    .. [1] Blom 1958, "Statistical Estimates and Transformed Beta-Variables": Φ⁻¹((n − 3/8) / (n + 1/4)).
    """
    return NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def slowdown(gpus: Ints, spread: float, fitted_gpus: int) -> Floats:
    """Return the share by which passes take longer than a profile has it, since all wait for the slowest.

    Every layer waits for the slowest of a tensor-parallel group, every pipeline for its slowest rank, every step for
    the slowest replica: whatever the plan, the slowest GPU of the job sets its pace.

    gpus : GPUs of a job.
    spread : standard deviation of GPUs' speeds over that of the slowest of 64.
    fitted_gpus : GPUs of the jobs that the profile was set on: what these lose to slow GPUs is in its rates. Jobs of
        fewer are taken to be as fast: on A100 those of 8 are no faster than those of 64.
    """

    def pace(size: int) -> float:
        return 1.0 + spread * (expected_slowest(size) - expected_slowest(SPREAD_OVER))

    sizes, which = np.unique(np.asarray(gpus), return_inverse=True)
    each = np.array([pace(max(int(size), fitted_gpus)) for size in sizes])
    return np.asarray(each / pace(fitted_gpus) - 1.0)[which].reshape(np.shape(gpus))


def assumed(scenario: Scenario) -> Iterator[str]:
    """What a job of more GPUs than those of the fits waits for."""
    gpus, spread, fitted = scenario.plan.num_gpus, scenario.cluster.gpu_spread, scenario.profile.fitted_gpus
    more = float(slowdown(np.array(gpus), spread, fitted))
    if more:
        those = "one" if fitted == 1 else f"slowest of the {fitted}"
        name = scenario.profile.name
        yield (
            f"GPUs' speeds have a standard deviation of {spread:.1%} (cluster.gpu_spread). The slowest of your "
            f"{gpus:,} is expected to be {more:.1%} slower than the {those} that profile {name!r} was set on"
        )
