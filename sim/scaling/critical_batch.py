"""The critical batch by several laws: below it a larger batch saves steps at little cost in data, above it hardly any.
What a loss takes in steps and data at a batch follows from it by McCandlish's hyperbola.

Batches are tokens. A new law is one function under `@critical_batch_law`: its arguments are the facts of a
run that it needs (params, tokens, loss, flop), its answer a number of tokens.

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

FACTS = ("params", "tokens", "loss", "flop")


@dataclass(frozen=True, slots=True)
class CriticalBatchLaw:
    """A registered law.

    needs : the facts of a run it asks for.
    data_overhead : extra data at the batch it names: 1 by McCandlish's definition (twice the data, twice the least
        steps), 0.2 by Zhang's; None where it names the best batch for the loss instead of a limit.
    checked : how far its constants were checked, as in `published`.
    """

    name: str
    function: Callable[..., Number]
    needs: tuple[str, ...]
    summary: str
    data_overhead: float | None
    source: str
    checked: str


_REGISTRY: dict[str, CriticalBatchLaw] = {}


def critical_batch_law(
    name: str, *, source: str, checked: str, data_overhead: float | None = 1.0
) -> Callable[[Callable[..., Number]], Callable[..., Number]]:
    """Register a law under `name`; the first line of its docstring is its summary."""

    def register(function: Callable[..., Number]) -> Callable[..., Number]:
        needs = tuple(signature(function).parameters)
        strange = [need for need in needs if need not in FACTS]
        if strange:
            raise SpecError(f"critical batch law {name!r} asks for {strange[0]!r}{nearest(strange[0], FACTS)}")
        summary = (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        _REGISTRY[name] = CriticalBatchLaw(name, function, needs, summary, data_overhead, source, checked)
        return function

    return register


def critical_batch_laws() -> dict[str, CriticalBatchLaw]:
    """All registered laws by name."""
    return dict(_REGISTRY)


def get_critical_batch_law(name: str) -> CriticalBatchLaw:
    """The law called `name`."""
    if name not in _REGISTRY:
        raise SpecError(f"unknown critical batch law {name!r}{nearest(name, _REGISTRY)}")
    return _REGISTRY[name]


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
        able = ", ".join(law.name for law in _REGISTRY.values() if law.data_overhead)
        raise SpecError(f"{name} gives the batch of least loss, no limit; choose from {able}")
    return critical_batch(name, **facts) / overhead


def critical_batches(**facts: Number) -> dict[str, Number]:
    """What every law that the given facts suffice for says.  [tokens]"""
    return {name: critical_batch(name, **facts) for name, law in _REGISTRY.items() if set(law.needs) <= set(facts)}


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


@critical_batch_law(
    "kaplan-2020",
    source="Kaplan et al. 2020, arXiv:2001.08361, equation 5.3: 2e8 tokens, alpha_B = 0.21",
    checked="read in the paper",
)
def kaplan_2020(loss: Number) -> Number:
    """Grows as the loss falls, whatever the model: doubles with every 13 % less loss."""
    return kaplan_batch(loss)


def kaplan_batch(loss: Number, scale: float = 2e8, exponent: float = 0.21) -> Number:
    """B* / L^(1/alpha_B) of Kaplan et al. 2020; its appendix A has 2.1e8 for B* (not verified).  [tokens]"""
    return scale / np.asarray(loss, dtype=float) ** (1 / exponent)


@critical_batch_law(
    "lamy-poirier-2021",
    source="Lamy-Poirier 2021, arXiv:2106.02679: 82.0 x^(2/3) sequences for X_x",
    checked="reconstructed, not read; gives GPT-3's batch of 3.2 million",
)
def lamy_poirier_2021(params: Number) -> Number:
    """573 tokens times the cube root of the parameters."""
    return 573.0 * np.cbrt(params)


@critical_batch_law(
    "zhang-2024",
    source="Zhang et al. 2024, arXiv:2410.21676: 22.91 D^0.47, contexts of 512 tokens",
    checked="exponent quoted elsewhere, prefactor not verified, though it agrees with their 93.20 N^0.47",
    data_overhead=0.2,
)
def zhang_2024(tokens: Number) -> Number:
    """Grows with data, not with the model; the batch of 20 % more data."""
    return 22.91 * np.asarray(tokens, dtype=float) ** 0.47


@critical_batch_law(
    "bergsma-2025",
    source="Bergsma et al. 2025, arXiv:2505.13738: 0.0471 D^0.462 sequences of 2048 tokens",
    checked="exponent quoted elsewhere, prefactor not verified, its unit assumed",
)
def bergsma_2025(tokens: Number) -> Number:
    """Grows with the least data for the loss, not with the model."""
    return 2048 * 0.0471 * np.asarray(tokens, dtype=float) ** 0.462


@critical_batch_law(
    "bergsma-2025-best",
    source="Bergsma et al. 2025, arXiv:2505.13738: 0.0306 D^0.383 sequences of 2048 tokens",
    checked="exponent quoted elsewhere, prefactor not verified, its unit assumed",
    data_overhead=None,
)
def bergsma_2025_best(tokens: Number) -> Number:
    """The batch of least loss for the data."""
    return 2048 * 0.0306 * np.asarray(tokens, dtype=float) ** 0.383


@critical_batch_law(
    "deepseek-2024-best",
    source="DeepSeek-AI 2024, arXiv:2401.02954, equation 1: 0.2920 C^0.3271",
    checked="quoted elsewhere; gives the batches of their 7B and 67B runs",
    data_overhead=None,
)
def deepseek_2024_best(flop: Number) -> Number:
    """The batch of least loss for the compute."""
    return 0.2920 * np.asarray(flop, dtype=float) ** 0.3271
