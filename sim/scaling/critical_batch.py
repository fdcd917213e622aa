"""The critical batch by several laws: below it a larger batch saves steps at little cost in data, above it hardly any.
What a loss takes in steps and data at a batch follows from it by McCandlish's hyperbola.

Batches are tokens. A new law is one row of `presets/laws.yaml`.

The laws disagree by more than a factor of ten at today's sizes, because they hold different things fixed. They are
shown side by side (`critical_batches`), never averaged.

.. [1] McCandlish et al. 2018, "An empirical model of large-batch training", arXiv:1812.06162.
.. [2] Kaplan et al. 2020, arXiv:2001.08361, equations 5.1 to 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, nearest, require_positive
from sim.scaling.loss_laws import PowerLaw, published
from sim.work.operations import Number


@dataclass(frozen=True, slots=True)
class CriticalBatchLaw:
    """A published law: a power of one fact of a run.

    fact : params, tokens, loss or flop.
    data_overhead : extra data at the batch it names: 1 by McCandlish's definition (twice the data, twice the least
        steps), 0.2 by Zhang's; None where it names the best batch for the loss instead of a limit.
    checked : how far its constants were checked, as in `loss_laws`.
    """

    name: str
    fact: str
    law: PowerLaw
    summary: str
    source: str
    checked: str
    data_overhead: float | None

    @property
    def needs(self) -> tuple[str, ...]:
        """The facts of a run that it asks for."""
        return (self.fact,)


LAWS = {
    name: CriticalBatchLaw(name, **{**row, "law": PowerLaw(**row["law"])}) for name, row in published("batch").items()
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
    if law.fact not in facts:
        raise SpecError(f"{name} needs the run's {law.fact}; give {law.fact}")
    require_positive(**{law.fact: facts[law.fact]})
    return law.law(facts[law.fact])


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
    return {name: critical_batch(name, **facts) for name, law in LAWS.items() if law.fact in facts}


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
