"""Steps and data that a loss takes at a batch, by McCandlish's hyperbola; the critical batch measured from gradients.

Batches and data are tokens; `critical` is B_crit by McCandlish's definition, of `critical_batch.mccandlish_batch`.

.. [1] McCandlish et al. 2018, "An empirical model of large-batch training", arXiv:1812.06162.
.. [2] Kaplan et al. 2020, arXiv:2001.08361, equations 5.1 to 5.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, require_positive
from sim.work.operations import Number


def steps_needed(min_tokens: Number, batch: Number, critical: Number) -> Number:
    """Optimizer steps at `batch`, for a loss that takes `min_tokens` at a small batch.

    S = S_min (1 + B_crit/B) with S_min = E_min / B_crit: the hyperbola (S/S_min − 1)(E/E_min − 1) = 1 [1]_ [2]_.

    min_tokens : E_min, the data needed far below the critical batch. [tokens]
    batch, critical : B and B_crit by McCandlish's definition. [tokens]
    """
    return tokens_needed(min_tokens, batch, critical) / np.asarray(batch, dtype=float)


def tokens_needed(min_tokens: Number, batch: Number, critical: Number) -> Number:
    """Tokens at `batch`, for a loss that takes `min_tokens` at a small batch: E = E_min (1 + B/B_crit).  [tokens]"""
    require_positive(min_tokens=min_tokens, batch=batch, critical=critical)
    return np.asarray(min_tokens, dtype=float) * (1 + np.asarray(batch, dtype=float) / critical)


def batch_for_steps(min_tokens: Number, steps: Number, critical: Number) -> Number:
    """The batch that needs `steps` steps.  [tokens]

    Raises
    ------
    SpecError
        Not even an unlimited batch needs so few.
    """
    require_positive(min_tokens=min_tokens, steps=steps, critical=critical)
    least = np.asarray(min_tokens, dtype=float) / critical
    if (np.asarray(steps) <= least).any():
        raise SpecError(
            f"no batch gets there in {float(np.min(steps)):,.0f} steps: an unlimited one needs "
            f"{float(np.max(least)):,.0f}; allow more than that"
        )
    return np.asarray(min_tokens, dtype=float) / (steps - least)


def ramped_steps(tokens: float, ramp: Sequence[tuple[float, float]]) -> float:
    """Steps of a run whose batch grows on the way.

    Parameters
    ----------
    tokens : float
        Of the whole run. [tokens]
    ramp : sequence of (float, float)
        From how many tokens on which batch holds, the first from 0: Llama 3 405B's is [(0, 4e6), (252e6, 8e6),
        (2.87e12, 16e6)] [3]_. [tokens]

    Raises
    ------
    SpecError
        A ramp that does not start at 0 or does not go forward.

    .. [3] Grattafiori et al. 2024, arXiv:2407.21783, section 3.4.1.
    """
    starts = [start for start, _ in ramp]
    if not ramp or starts[0] != 0 or sorted(set(starts)) != starts:
        raise SpecError(f"a ramp of batches starts at 0 tokens and goes forward, not at {starts}")
    require_positive(tokens=tokens, batch=[batch for _, batch in ramp])
    ends = [*starts[1:], float("inf")]
    return sum(max(min(end, tokens) - start, 0.0) / batch for (start, batch), end in zip(ramp, ends, strict=True))


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """A measured gradient noise scale.

    critical : B_simple, an estimate of the critical batch, in the unit of the batches.
    gradient_squared : |G|² of the true gradient.
    noise : trace of the covariance of one example's gradient.
    """

    critical: float
    gradient_squared: float
    noise: float


def gradient_noise_scale(
    small_norm_squared: Number, big_norm_squared: Number, small_batch: float, big_batch: float
) -> NoiseScale:
    """The critical batch from gradient norms at two batch sizes, such as before and after the data-parallel reduce.

    Both estimates are unbiased; their ratio is not, so many steps are averaged first, each by itself [1]_.

    small_norm_squared, big_norm_squared : |G|² at either batch, of one step or of many.
    small_batch, big_batch : in sequences or tokens; the answer has the same unit.

    Raises
    ------
    SpecError
        Batches in the wrong order, or norms so noisy that the true gradient's comes out negative.
    """
    require_positive(small_norm_squared=small_norm_squared, big_norm_squared=big_norm_squared, small_batch=small_batch)
    if not small_batch < big_batch < np.inf:
        raise SpecError(f"big_batch = {big_batch:g} must be larger than small_batch = {small_batch:g}")
    small, big = float(np.mean(small_norm_squared)), float(np.mean(big_norm_squared))
    squared = (big_batch * big - small_batch * small) / (big_batch - small_batch)
    noise = (small - big) / (1 / small_batch - 1 / big_batch)
    if squared <= 0 or noise <= 0:
        raise SpecError(
            f"these norms ({small:g} at {small_batch:g}, {big:g} at {big_batch:g}) leave no "
            f"{'gradient' if squared <= 0 else 'noise'}; average over more steps, or take batches further apart"
        )
    return NoiseScale(noise / squared, squared, noise)


def learning_rate_share(batch: Number, noise_scale: Number) -> Number:
    """Best learning rate at `batch` over that at a large one: 1/(1 + B_noise/B) [1]_."""
    require_positive(batch=batch, noise_scale=noise_scale)
    return 1 / (1 + np.asarray(noise_scale, dtype=float) / batch)
