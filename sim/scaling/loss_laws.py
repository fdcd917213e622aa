"""Loss as a function of model and data size: the forms that the published laws take.

N is parameters, D tokens, C = 6 N D floating-point operations, losses are nats per token. Every function takes
floats or NumPy arrays. Constants are in `published`, the best use of a budget in `allocation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import SpecError, require_positive
from sim.work.operations import Number

FLOP_PER_PARAM_TOKEN = 6.0
"""Forward and backward, without recomputation and attention scores (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True, slots=True)
class PowerSum:
    """L = irreducible + (a N^-alpha + b D^-beta)^gamma."""

    irreducible: float
    a: float
    alpha: float
    b: float
    beta: float
    gamma: float = 1.0


def power_sum_loss(params: Number, tokens: Number, form: PowerSum) -> Number:
    """Loss of `params` trained on `tokens` different tokens.  [nats/token]

    With gamma = 1 this is Hoffmann et al. 2022, equation 2; with irreducible = 0, beta = 1 and gamma = alpha_D it is
    Kaplan et al. 2020, equation 1.5.
    """
    require_positive(params=params, tokens=tokens)
    params, tokens = np.asarray(params, dtype=float), np.asarray(tokens, dtype=float)
    return form.irreducible + (form.a * params**-form.alpha + form.b * tokens**-form.beta) ** form.gamma


def _best_ratio(form: PowerSum) -> float:
    """G of Hoffmann et al. 2022, equation 4; gamma > 0 does not move the optimum."""
    return float((form.alpha * form.a / (form.beta * form.b)) ** (1 / (form.alpha + form.beta)))


def optimal_params(flop: Number, form: PowerSum) -> Number:
    """Parameters that lose least for `flop` = 6 N D: G (C/6)^(beta/(alpha+beta)) [1]_.

    .. [1] Hoffmann et al. 2022, arXiv:2203.15556, equation 4.
    """
    require_positive(flop=flop)
    power = form.beta / (form.alpha + form.beta)
    return _best_ratio(form) * (np.asarray(flop, dtype=float) / FLOP_PER_PARAM_TOKEN) ** power


def flop_for_loss(loss: Number, form: PowerSum) -> Number:
    """Least compute that reaches `loss`.  [FLOP]

    At the optimum a N^-alpha + b D^-beta = (a G^-alpha + b G^beta) (C/6)^-(alpha beta/(alpha+beta)), solved for C.
    """
    require_positive(loss=loss)
    loss = np.asarray(loss, dtype=float)
    if (loss <= form.irreducible).any():
        raise SpecError(
            f"no budget reaches a loss of {float(loss.min()):g}: the irreducible loss is {form.irreducible:g}; "
            f"ask for more, such as {form.irreducible + 0.1:.3g}"
        )
    best = _best_ratio(form)
    numerator = form.a * best**-form.alpha + form.b * best**form.beta
    power = (form.alpha + form.beta) / (form.alpha * form.beta)
    return FLOP_PER_PARAM_TOKEN * (numerator / (loss - form.irreducible) ** (1 / form.gamma)) ** power


def tokens_for_loss(loss: float, params: float, form: PowerSum) -> float:
    """Tokens on which a model of `params` parameters reaches `loss`."""
    require_positive(loss=loss, params=params)
    reducible = max(loss - form.irreducible, 0.0) ** (1 / form.gamma)
    left = reducible - form.a * params**-form.alpha
    if left <= 0:
        floor = form.irreducible + (form.a * params**-form.alpha) ** form.gamma
        least = f"{(form.a / reducible) ** (1 / form.alpha):.3g}" if reducible > 0 else None
        remedy = f"or take more than {least} parameters" if least else "no model goes below the irreducible loss"
        raise SpecError(
            f"{params:.3g} parameters reach no loss of {loss:g} on any number of tokens; they tend to {floor:.4g}. "
            f"Ask for more than that, {remedy}"
        )
    return float((form.b / left) ** (1 / form.beta))


def optimal_shape(flop: Number) -> tuple[Number, Number]:
    """Parameters and tokens of a run at 20 tokens a parameter, as Hoffmann et al. 2022 are usually read: C = 120 N²."""
    require_positive(flop=flop)
    params = np.sqrt(np.asarray(flop, dtype=float) / (FLOP_PER_PARAM_TOKEN * 20.0))
    return params, 20.0 * params
