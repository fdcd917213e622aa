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

    Raises
    ------
    SpecError
        `loss` is not above the irreducible loss: no compute reaches it.
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
    """Tokens on which a model of `params` parameters reaches `loss`.

    Raises
    ------
    SpecError
        The model is too small for that loss on any amount of data; names the loss it tends to, and the least model.
    """
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


def kaplan_loss_of_params(params: Number) -> Number:
    """L(N) of a model trained to convergence on plentiful data; N without embeddings.  [nats/token]

    Kaplan et al. 2020, arXiv:2001.08361, equation 1.1 (read in the paper).
    """
    require_positive(params=params)
    return (8.8e13 / np.asarray(params, dtype=float)) ** 0.076


def kaplan_loss_of_tokens(tokens: Number) -> Number:
    """L(D) of a large model stopped early on `tokens` tokens.  [nats/token]

    Kaplan et al. 2020, equation 1.2 (read in the paper).
    """
    require_positive(tokens=tokens)
    return (5.4e13 / np.asarray(tokens, dtype=float)) ** 0.095


def kaplan_compute_of_size(ratio: Number) -> Number:
    """Compute to the same loss with a model `ratio` times the compute-optimal size, over the optimal model's.

    Steps are this over `ratio`. Kaplan et al. 2020, appendix B.4 (read in the paper).
    """
    require_positive(ratio=ratio)
    ratio, alpha_n, alpha_s = np.asarray(ratio, dtype=float), 0.077, 0.76
    left = 1 + alpha_s / alpha_n * (1 - ratio**-alpha_n)
    if (left <= 0).any():
        least = (1 + alpha_n / alpha_s) ** (-1 / alpha_n)
        raise SpecError(
            f"a model of {float(ratio.min()):g} times the best size never reaches the loss; take more than {least:.3g}"
        )
    return ratio * left ** (-1 / alpha_s)


def kaplan_loss_of_steps(params: Number, min_steps: Number) -> Number:
    """L(N, S_min): after S_min steps at a batch far above the critical one.  [nats/token]

    Kaplan et al. 2020, equation 1.6 with table 3 (quoted elsewhere).
    """
    require_positive(params=params, min_steps=min_steps)
    params, min_steps = np.asarray(params, dtype=float), np.asarray(min_steps, dtype=float)
    return (6.5e13 / params) ** 0.077 + (2.1e3 / min_steps) ** 0.76
