"""How much longer a job waits for the slowest of its GPUs, the more of them it has."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from sim.arrays import Floats, Ints
from sim.specs import Scenario

FITTED_GPUS = 64
"""GPUs of the median run that profiles and stacks were set on: what these lose to slow GPUs is in their rates. Of the
740 published runs of families that set a value the median has 64."""


def expected_slowest(gpus: int) -> float:
    """Return how many standard deviations the slowest of so many GPUs is behind the mean.

    GPUs' speeds are taken to be normal; the expected maximum is Blom's approximation [1]_.

    .. [1] Blom 1958, "Statistical Estimates and Transformed Beta-Variables": Φ⁻¹((n − 3/8) / (n + 1/4)).
    """
    return NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def slowdown(gpus: Ints, spread: float) -> Floats:
    """Return the share by which passes take longer than in a job of 64 GPUs, since all wait for the slowest.

    Every layer waits for the slowest of a tensor-parallel group, every pipeline for its slowest rank, every step for
    the slowest replica: whatever the plan, the slowest GPU of the job sets its pace.

    Parameters
    ----------
    gpus : array
        GPUs of a job.
    spread : float
        Standard deviation of GPUs' speeds over their mean.
    """
    sizes, which = np.unique(np.asarray(gpus), return_inverse=True)
    each = np.array([expected_slowest(max(int(size), FITTED_GPUS)) for size in sizes])
    return np.asarray(spread * (each - expected_slowest(FITTED_GPUS)))[which].reshape(np.shape(gpus))


def assumed(scenario: Scenario) -> Iterator[str]:
    """What a job of more GPUs than those of the fits waits for."""
    gpus, spread = scenario.plan.num_gpus, scenario.cluster.gpu_spread
    more = float(slowdown(np.array(gpus), spread))
    if more:
        yield (
            f"the slowest of {gpus:,} GPUs is {more:.1%} slower than the slowest of {FITTED_GPUS} (cluster.gpu_spread "
            f"{spread:g})"
        )
