"""The critical batch by several laws: below it a larger batch saves steps at little cost in data, above it hardly any.
What a loss takes in steps and data at a batch follows from it by McCandlish's hyperbola.

Batches are tokens. A new law is one entry of `LAWS`: the arguments of its function are the facts of a run that it needs
(params, tokens, loss, flop), its answer a number of tokens.

The laws disagree by more than a factor of ten at today's sizes, because they hold different things fixed. They are
shown side by side (`critical_batches`), never averaged.

.. [1] McCandlish et al. 2018, "An empirical model of large-batch training", arXiv:1812.06162.
.. [2] Kaplan et al. 2020, arXiv:2001.08361, equations 5.1 to 5.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

import numpy as np

from sim.errors import SpecError, nearest, require_positive
from sim.work.operations import Number


@dataclass(frozen=True, slots=True)
class CriticalBatchLaw:
    """A published law.

    data_overhead : extra data at the batch it names: 1 by McCandlish's definition (twice the data, twice the least
        steps), 0.2 by Zhang's; None where it names the best batch for the loss instead of a limit.
    checked : how far its constants were checked, as in `loss_laws`.
    """

    name: str
    function: Callable[..., Number]
    summary: str
    source: str
    checked: str
    data_overhead: float | None = 1.0

    @property
    def needs(self) -> tuple[str, ...]:
        """The facts of a run that it asks for."""
        return tuple(signature(self.function).parameters)


def kaplan_batch(loss: Number, scale: float = 2e8, exponent: float = 0.21) -> Number:
    """B* / L^(1/alpha_B) of Kaplan et al. 2020; its appendix A has 2.1e8 for B* (not verified).  [tokens]"""
    return scale / np.asarray(loss, dtype=float) ** (1 / exponent)


def lamy_poirier_2021(params: Number) -> Number:
    """573 tokens times the cube root of the parameters.  [tokens]"""
    return 573.0 * np.cbrt(params)


_BERGSMA = "Bergsma et al. 2025, arXiv:2505.13738"
_UNVERIFIED = "exponent quoted elsewhere, prefactor not verified"
LAWS = {
    law.name: law
    for law in (
        CriticalBatchLaw(
            "kaplan-2020",
            lambda loss: kaplan_batch(loss),
            "Grows as the loss falls, whatever the model: doubles with every 13 % less loss",
            "Kaplan et al. 2020, arXiv:2001.08361, equation 5.3: 2e8 tokens, alpha_B = 0.21",
            "read in the paper",
        ),
        CriticalBatchLaw(
            "lamy-poirier-2021",
            lamy_poirier_2021,
            "573 tokens times the cube root of the parameters",
            "Lamy-Poirier 2021, arXiv:2106.02679: 82.0 x^(2/3) sequences for X_x",
            "reconstructed, not read; gives GPT-3's batch of 3.2 million",
        ),
        CriticalBatchLaw(
            "zhang-2024",
            lambda tokens: 22.91 * np.asarray(tokens, dtype=float) ** 0.47,
            "Grows with data, not with the model; the batch of 20 % more data",
            "Zhang et al. 2024, arXiv:2410.21676: 22.91 D^0.47, contexts of 512 tokens",
            f"{_UNVERIFIED}, though it agrees with their 93.20 N^0.47",
            0.2,
        ),
        CriticalBatchLaw(
            "bergsma-2025",
            lambda tokens: 2048 * 0.0471 * np.asarray(tokens, dtype=float) ** 0.462,
            "Grows with the least data for the loss, not with the model",
            f"{_BERGSMA}: 0.0471 D^0.462 sequences of 2048 tokens",
            f"{_UNVERIFIED}, its unit assumed",
        ),
        CriticalBatchLaw(
            "bergsma-2025-best",
            lambda tokens: 2048 * 0.0306 * np.asarray(tokens, dtype=float) ** 0.383,
            "The batch of least loss for the data",
            f"{_BERGSMA}: 0.0306 D^0.383 sequences of 2048 tokens",
            f"{_UNVERIFIED}, its unit assumed",
            None,
        ),
        CriticalBatchLaw(
            "deepseek-2024-best",
            lambda flop: 0.2920 * np.asarray(flop, dtype=float) ** 0.3271,
            "The batch of least loss for the compute",
            "DeepSeek-AI 2024, arXiv:2401.02954, equation 1: 0.2920 C^0.3271",
            "quoted elsewhere; gives the batches of their 7B and 67B runs",
            None,
        ),
    )
}


def critical_batch_laws() -> dict[str, CriticalBatchLaw]:
    """All laws by name."""
    return LAWS


def get_critical_batch_law(name: str) -> CriticalBatchLaw:
    """The law called `name`."""
    if name not in LAWS:
        raise SpecError(f"unknown critical batch law {name!r}{nearest(name, LAWS)}")
    return LAWS[name]


def critical_batch(name: str, **facts: Number) -> Number:
    """The batch that law `name` gives for a run: its own batch, whatever its definition.  [tokens]"""
    law = get_critical_batch_law(name)
    missing = [need for need in law.needs if need not in facts]
    if missing:
        raise SpecError(f"{name} needs the run's {' and '.join(missing)}; give {', '.join(law.needs)}")
    used = {need: np.asarray(facts[need], dtype=float) for need in law.needs}
    require_positive(**used)
    return law.function(**used)


def mccandlish_batch(name: str, **facts: Number) -> Number:
    """The critical batch by McCandlish's definition, for the trade-off: the law's over its data overhead.  [tokens]

    Extra data at batch B is B/B_crit of the least, so a law that names the batch of 20 % extra names B_crit / 5 (own
    derivation; Zhang et al. fit their curves freely).
    """
    overhead = get_critical_batch_law(name).data_overhead
    if overhead is None:
        able = ", ".join(law.name for law in LAWS.values() if law.data_overhead)
        raise SpecError(f"{name} gives the batch of least loss, no limit; choose from {able}")
    return critical_batch(name, **facts) / overhead


def critical_batches(**facts: Number) -> dict[str, Number]:
    """What every law that the given facts suffice for says.  [tokens]"""
    return {name: critical_batch(name, **facts) for name, law in LAWS.items() if set(law.needs) <= set(facts)}


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
