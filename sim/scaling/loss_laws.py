"""Published laws: loss as a function of model and data size, and the critical batch.

N is parameters, D tokens, C = 6 N D floating-point operations, losses are nats per token, batches are tokens. Every
function takes floats or NumPy arrays. A law of your own is one more row of `presets/laws.yaml`,
which also says how far its constants were checked. The best model and data for a budget or for a loss are what each law
says, with its published uncertainty; what repeated data is worth is Muennighoff's [3]_.

Below the critical batch a larger one saves steps at little cost in data, above it hardly any. What a loss takes in
steps and data at a batch follows from it by McCandlish's hyperbola. The laws of it disagree by more than a factor of
ten at today's sizes, because they hold different things fixed. They are shown side by side (`critical_batches`), never
averaged.

.. [1] McCandlish et al. 2018, "An empirical model of large-batch training", arXiv:1812.06162.
.. [2] Kaplan et al. 2020, arXiv:2001.08361, equations 5.1 to 5.5.
.. [3] Muennighoff et al. 2023, "Scaling data-constrained language models", arXiv:2305.16264, equations 5 to 7 and
   appendix A (read in the source).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from sim.arrays import Number
from sim.errors import SpecError, nearest, require_positive
from sim.specs.yaml12 import load_yaml
from sim.units import show_short

TABLE = Path(__file__).parents[1] / "presets" / "laws.yaml"
FLOP_PER_PARAM_TOKEN = 6.0
"""Forward and backward, without recomputation and attention scores (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """y = least + value · (x/at)^exponent."""

    value: float
    exponent: float
    at: float = 1.0
    least: float = 0.0

    def __call__(self, x: Number) -> Number:
        """Return y; takes arrays."""
        return self.least + self.value * (np.asarray(x, dtype=float) / self.at) ** self.exponent

    def inverse(self, y: float) -> float:
        """Return the x of a y above `least`; infinite where it is beyond any number."""
        with np.errstate(over="ignore"):
            return float(self.at * np.float64((y - self.least) / self.value) ** (1 / self.exponent))


@dataclass(frozen=True, slots=True)
class PowerSum:
    """L = irreducible + (a N^-alpha + b D^-beta)^gamma."""

    irreducible: float
    a: float
    alpha: float
    b: float
    beta: float
    gamma: float = 1.0

    @property
    def allocation(self) -> PowerLaw:
        """Parameters that lose least for C = 6 N D: G (C/6)^(beta/(alpha+beta)) [1]_. Gamma > 0 does not move them.

        .. [1] Hoffmann et al. 2022, arXiv:2203.15556, equation 4.
        """
        exponents = self.alpha + self.beta
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / exponents)
        return PowerLaw(ratio, self.beta / exponents, FLOP_PER_PARAM_TOKEN)

    @property
    def frontier(self) -> PowerLaw:
        """Least loss of C. There a N^-alpha + b D^-beta = (a G^-alpha + b G^beta) (C/6)^-(alpha beta/(alpha+beta))."""
        ratio, power = self.allocation.value, self.alpha * self.beta / (self.alpha + self.beta)
        reducible = self.a * ratio**-self.alpha + self.b * ratio**self.beta
        return PowerLaw(reducible**self.gamma, -power * self.gamma, FLOP_PER_PARAM_TOKEN, self.irreducible)


def power_sum_loss(params: Number, tokens: Number, form: PowerSum) -> Number:
    """Loss of `params` trained on `tokens` different tokens.  [nats/token]

    With gamma = 1 this is Hoffmann et al. 2022, equation 2; with irreducible = 0, beta = 1 and gamma = alpha_D it is
    Kaplan et al. 2020, equation 1.5.
    """
    require_positive(params=params, tokens=tokens)
    params, tokens = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
    return form.irreducible + (form.a * params**-form.alpha + form.b * tokens**-form.beta) ** form.gamma


def tokens_for_loss(loss: float, params: float, form: PowerSum) -> float:
    """Tokens on which a model of `params` parameters reaches `loss`."""
    require_positive(loss=loss, params=params)
    reducible = max(loss - form.irreducible, 0.0) ** (1 / form.gamma)
    left = reducible - form.a * params**-form.alpha
    if left <= 0:
        floor = form.irreducible + (form.a * params**-form.alpha) ** form.gamma
        least = show_short((form.a / reducible) ** (1 / form.alpha)) if reducible > 0 else None
        remedy = f"or take more than {least} parameters" if least else "no model goes below the irreducible loss"
        raise SpecError(
            f"{show_short(params)} parameters reach no loss of {loss:g} on any number of tokens; they tend to "
            f"{floor:.4g}. Ask for more than that, {remedy}"
        )
    return float((form.b / left) ** (1 / form.beta))


@dataclass(frozen=True, slots=True)
class LossLaw:
    """A published law.

    allocation : best N of compute C: the paper's own, or the optimum of `form`.
    form : loss of any N and D; None where the paper gives only the best allocation.
    frontier : least loss of compute C: the paper's own, or that of `form`; None where there is neither.
    exponent_interval : published interval of the exponent of N in C, and what it is.
    fitted_flop : compute of the runs it was fitted on; beyond it is extrapolation. [FLOP]
    """

    name: str
    summary: str
    source: str
    checked: str
    allocation: PowerLaw
    form: PowerSum | None = None
    frontier: PowerLaw | None = None
    exponent_interval: Sequence[float] | None = None
    interval_is: str = ""
    fitted_flop: Sequence[float] | None = None
    errors: Mapping[str, float] = field(default_factory=dict)


@cache
def published(kind: str) -> Any:
    """Laws of a kind (loss or batch) by name, or batches of pre-training, of `presets/laws.yaml`."""
    return load_yaml(TABLE)[kind]


def _read(name: str, row: Mapping[str, Any]) -> LossLaw:
    """Return a law of the table."""
    found = dict(row)
    if form := row.get("form"):
        found["form"] = form = PowerSum(**form)
        found |= {"allocation": form.allocation, "frontier": form.frontier}
    found |= {curve: PowerLaw(**row[curve]) for curve in ("allocation", "frontier") if curve in row}
    return LossLaw(name, **found)


LAWS = {name: _read(name, row) for name, row in published("loss").items()}
DEFAULT_LAW = "besiroglu-2024"


def get_law(name: str) -> LossLaw:
    """The law called `name`."""
    if name not in LAWS:
        raise SpecError(f"unknown loss law {name!r}{nearest(name, LAWS)}")
    return LAWS[name]


def form_of(law: LossLaw) -> PowerSum:
    """The law's loss of any N and D."""
    if law.form is None:
        able = ", ".join(name for name, other in LAWS.items() if other.form)
        raise SpecError(f"{law.name} gives no loss of a model on some tokens; laws that do: {able}")
    return law.form


BESIROGLU, MUENNIGHOFF = form_of(LAWS[DEFAULT_LAW]), form_of(LAWS["muennighoff-2023"])


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


BATCH_LAWS = {
    name: CriticalBatchLaw(name, **{**row, "law": PowerLaw(**row["law"])}) for name, row in published("batch").items()
}


def critical_batch(name: str, **facts: Number) -> Number:
    """The batch that law `name` gives for a run: its own batch, whatever its definition.  [tokens]"""
    if name not in BATCH_LAWS:
        raise SpecError(f"unknown critical batch law {name!r}{nearest(name, BATCH_LAWS)}")
    fact = BATCH_LAWS[name].fact
    if fact not in facts:
        raise SpecError(f"{name} needs the run's {fact}; give {fact}")
    require_positive(**{fact: facts[fact]})
    return BATCH_LAWS[name].law(facts[fact])


def mccandlish_batch(name: str, **facts: Number) -> Number:
    """The critical batch by McCandlish's definition, for the trade-off: the law's over its data overhead.  [tokens]

    Extra data at batch B is B/B_crit of the least, so a law that names the batch of 20 % extra names B_crit / 5 (own
    derivation; Zhang et al. fit their curves freely).
    """
    batch = critical_batch(name, **facts)
    if (overhead := BATCH_LAWS[name].data_overhead) is None:
        able = ", ".join(law.name for law in BATCH_LAWS.values() if law.data_overhead)
        raise SpecError(f"{name} gives the batch of least loss, no limit; choose from {able}")
    return batch / overhead


def critical_batches(**facts: Number) -> dict[str, Number]:
    """What every law that the given facts suffice for says.  [tokens]"""
    return {name: critical_batch(name, **facts) for name, law in BATCH_LAWS.items() if law.fact in facts}


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best use of a compute budget.

    loss : nan where the law gives none.
    extrapolated : whether the budget lies beyond the runs that the law was fitted on; None where that is not known.
    """

    law: str
    flop: float
    params: float
    tokens: float
    loss: float
    params_interval: tuple[float, float] | None
    extrapolated: bool | None


def best_loss(flop: float, law: LossLaw) -> float:
    """Loss of the compute-optimal model; nan where the law gives none.  [nats/token]"""
    return nan if law.frontier is None else float(law.frontier(flop))


def best_tokens(params: float, law: LossLaw) -> float:
    """Tokens with which a model of so many parameters is the best use of their compute."""
    return law.allocation.inverse(params) / FLOP_PER_PARAM_TOKEN / params


def _interval(flop: float, law: LossLaw) -> tuple[float, float] | None:
    """What the published interval of the exponent does to the best N; None where the paper gives none.

    Assumption: the law turns about the middle of the compute it was fitted on (on a logarithmic axis), where an
    exponent and a prefactor of a fit are least correlated. The uncertainty of the prefactor, which no paper gives, is
    left out.
    """
    if law.exponent_interval is None or law.fitted_flop is None:
        return None
    params, arm = float(law.allocation(flop)), flop / float(np.sqrt(np.prod(law.fitted_flop)))
    low, high = sorted(params * arm ** (end - law.allocation.exponent) for end in law.exponent_interval)
    return low, high


def compute_optimal(flop: float, law: LossLaw) -> Optimum:
    """The model and data that lose least for a budget of `flop`."""
    require_positive(flop=flop)
    params = float(law.allocation(flop))
    tokens = flop / (FLOP_PER_PARAM_TOKEN * params)
    if params < 1 or tokens < 1:
        raise SpecError(
            f"a budget of {flop:g} FLOP is too small for {law.name}: {params:.2g} parameters on {tokens:.2g} tokens; "
            f"the least it can spend is {least_budget(law):.3g} FLOP"
        )
    beyond = None if law.fitted_flop is None else not law.fitted_flop[0] <= flop <= law.fitted_flop[1]
    return Optimum(law.name, flop, params, tokens, best_loss(flop, law), _interval(flop, law), beyond)


def least_budget(law: LossLaw) -> float:
    """The budget from which the best model has a parameter and a token.  [FLOP]"""
    one_token: float = (FLOP_PER_PARAM_TOKEN * float(law.allocation(1.0))) ** (1 / (1 - law.allocation.exponent))
    return max(law.allocation.inverse(1.0), one_token)


def compute_optimal_for_loss(loss: float, law: LossLaw) -> Optimum:
    """The cheapest model and data that reach `loss`."""
    require_positive(loss=loss)
    if law.frontier is None:
        raise SpecError(f"{law.name} says nothing of losses; give a budget instead")
    if loss <= (least := law.frontier.least):
        raise SpecError(
            f"no budget reaches a loss of {loss:g}: the irreducible loss is {least:g}; ask for more, such as "
            f"{least + 0.1:.3g}"
        )
    if not isfinite(flop := law.frontier.inverse(loss)):
        raise SpecError(f"{law.name} needs more than {np.finfo(float).max:.1g} FLOP for a loss of {loss:g}")
    return compute_optimal(flop, law)


TOKEN_DECAY = 15.387756
"""R_D*: repetitions after which a further one is worth 1/e of the first tokens."""
PARAM_DECAY = 5.309743
"""R_N*: the same of parameters beyond those that the unique data can use."""


def effective(amount: Number, unique: Number, decay: float) -> Number:
    """What `amount` is worth of which only `unique` is new: U + U R* (1 − exp(−R/R*)), R = amount/U − 1."""
    amount, unique = np.asarray(amount, dtype=float), np.asarray(unique, dtype=float)
    repeats = np.maximum(amount / unique - 1, 0.0)
    return np.minimum(amount, unique) + unique * decay * -np.expm1(-repeats / decay)


def useful_params(unique_tokens: Number) -> Number:
    """Parameters that `unique_tokens` can use fully: the compute-optimal ones, 0.051 a token as alpha = beta."""
    return np.asarray(unique_tokens, dtype=float) * MUENNIGHOFF.allocation.value**2


def repeated_data_loss(params: Number, tokens: Number, unique_tokens: Number) -> Number:
    """Loss after `tokens` tokens of which only `unique_tokens` differ, repeated in epochs.  [nats/token]"""
    require_positive(params=params, tokens=tokens, unique_tokens=unique_tokens)
    unique = np.minimum(tokens, unique_tokens)
    useful = np.minimum(useful_params(unique), params)
    return power_sum_loss(effective(params, useful, PARAM_DECAY), effective(tokens, unique, TOKEN_DECAY), MUENNIGHOFF)


def compute_optimal_repeated(flop: float, unique_tokens: float) -> Optimum:
    """The model and the tokens, repeated where needed, that lose least for `flop` when data is limited."""
    from scipy.optimize import minimize_scalar

    require_positive(flop=flop, unique_tokens=unique_tokens)

    def loss(log_params: float) -> float:
        params = float(np.exp(log_params))
        return float(repeated_data_loss(params, flop / (FLOP_PER_PARAM_TOKEN * params), unique_tokens))

    centre = float(np.log(MUENNIGHOFF.allocation(flop)))  # of as much data as one likes
    found = minimize_scalar(loss, bounds=(centre - 9.0, centre + 5.0), method="bounded", options={"xatol": 1e-9})
    params = float(np.exp(found.x))
    tokens = flop / (FLOP_PER_PARAM_TOKEN * params)
    return Optimum("muennighoff-2023", flop, params, tokens, float(found.fun), None, None)
