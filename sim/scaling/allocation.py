"""The best model and data for a budget or for a loss: what each loss law says, with its published uncertainty.

Muennighoff et al. 2023, "Scaling data-constrained language models", arXiv:2305.16264, equations 5 to 7 and appendix A
(read in the source).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, require_positive
from sim.scaling.loss_laws import (
    FLOP_PER_PARAM_TOKEN,
    MUENNIGHOFF,
    LossLaw,
    flop_for_loss,
    optimal_params,
    power_sum_loss,
)
from sim.work.operations import Number


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


def exponent_of(law: LossLaw) -> float:
    """The exponent of the best N in C."""
    if law.allocation is not None:
        return law.allocation.exponent
    assert law.form is not None
    return law.form.beta / (law.form.alpha + law.form.beta)


def best_params(flop: Number, law: LossLaw) -> Number:
    """Parameters of the compute-optimal model."""
    require_positive(flop=flop)
    if law.allocation is not None:
        return law.allocation(flop)
    assert law.form is not None
    return optimal_params(flop, law.form)


def best_loss(flop: Number, law: LossLaw) -> Number:
    """Loss of the compute-optimal model; nan where the law gives none.  [nats/token]"""
    require_positive(flop=flop)
    if law.frontier is not None:
        return law.frontier(flop)
    if law.form is None:
        return np.full(np.shape(flop), np.nan)
    params = best_params(flop, law)
    return power_sum_loss(params, np.asarray(flop, dtype=float) / (FLOP_PER_PARAM_TOKEN * params), law.form)


def params_interval(flop: Number, law: LossLaw) -> tuple[Number, Number] | None:
    """What the published interval of the exponent does to the best N; None where the paper gives none.

    Assumption: the law turns about the middle of the compute it was fitted on (on a logarithmic axis), where an
    exponent and a prefactor of a fit are least correlated. The uncertainty of the prefactor, which no paper gives, is
    left out.
    """
    if law.exponent_interval is None or law.fitted_flop is None:
        return None
    pivot = float(np.sqrt(law.fitted_flop[0] * law.fitted_flop[1]))
    params, arm = best_params(flop, law), np.asarray(flop, dtype=float) / pivot
    ends = [params * arm ** (end - exponent_of(law)) for end in law.exponent_interval]
    return np.minimum(*ends), np.maximum(*ends)


def compute_optimal(flop: float, law: LossLaw) -> Optimum:
    """The model and data that lose least for a budget of `flop`."""
    require_positive(flop=flop)
    params = float(best_params(flop, law))
    tokens = flop / (FLOP_PER_PARAM_TOKEN * params)
    if params < 1 or tokens < 1:
        raise SpecError(
            f"a budget of {flop:g} FLOP is too small for {law.name}: {params:.2g} parameters on {tokens:.2g} tokens; "
            f"the least it can spend is {least_budget(law):.3g} FLOP"
        )
    interval = params_interval(flop, law)
    return Optimum(
        law.name,
        flop,
        params,
        tokens,
        float(best_loss(flop, law)),
        None if interval is None else (float(interval[0]), float(interval[1])),
        None if law.fitted_flop is None else not law.fitted_flop[0] <= flop <= law.fitted_flop[1],
    )


def flop_for_params(params: Number, law: LossLaw) -> Number:
    """The budget whose compute-optimal model has `params` parameters.  [FLOP]"""
    require_positive(params=params)
    return (np.asarray(params, dtype=float) / best_params(1.0, law)) ** (1 / exponent_of(law))


def least_budget(law: LossLaw) -> float:
    """The budget from which the best model has a parameter and a token.  [FLOP]"""
    exponent = exponent_of(law)
    scale = float(best_params(1.0, law))
    one_parameter = float(flop_for_params(1.0, law))
    one_token = (FLOP_PER_PARAM_TOKEN * scale) ** (1 / (1 - exponent))
    return float(max(one_parameter, one_token))


def compute_optimal_for_loss(loss: float, law: LossLaw) -> Optimum:
    """The cheapest model and data that reach `loss`."""
    require_positive(loss=loss)
    if law.frontier is not None:
        with np.errstate(over="ignore"):
            flop = float(np.float64(loss / law.frontier.scale) ** (1 / law.frontier.exponent))
    elif law.form is not None:
        flop = float(flop_for_loss(loss, law.form))
    else:
        raise SpecError(f"{law.name} says nothing of losses; give a budget instead")
    if not np.isfinite(flop):
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
    form = MUENNIGHOFF
    return np.asarray(unique_tokens, dtype=float) * (form.alpha * form.a / (form.beta * form.b)) ** (1 / form.alpha)


def repeated_data_loss(params: Number, tokens: Number, unique_tokens: Number) -> Number:
    """Loss after `tokens` tokens of which only `unique_tokens` differ, repeated in epochs.  [nats/token]"""
    require_positive(params=params, tokens=tokens, unique_tokens=unique_tokens)
    unique = np.minimum(tokens, unique_tokens)
    useful = np.minimum(useful_params(unique), params)
    return power_sum_loss(effective(params, useful, PARAM_DECAY), effective(tokens, unique, TOKEN_DECAY), MUENNIGHOFF)


def compute_optimal_repeated(flop: float, unique_tokens: float) -> Optimum:
    """The model and the tokens, repeated where needed, that lose least for `flop` when data is limited.

    Found on a grid of model sizes refined around the best, as the loss has no closed optimum.
    """
    require_positive(flop=flop, unique_tokens=unique_tokens)
    centre = float(optimal_params(flop, MUENNIGHOFF))
    low, high = centre * 1e-4, centre * 1e2
    for _ in range(4):
        params = np.geomspace(low, high, 801)
        tokens = flop / (FLOP_PER_PARAM_TOKEN * params)
        loss = repeated_data_loss(params, tokens, unique_tokens)
        best = int(np.argmin(loss))
        low, high = params[max(best - 1, 0)], params[min(best + 1, len(params) - 1)]
    return Optimum("muennighoff-2023", flop, float(params[best]), float(tokens[best]), float(loss[best]), None, None)
