"""What tokens seen again are worth: the law of Muennighoff et al. for data that runs out.

Muennighoff et al. 2023, "Scaling data-constrained language models", arXiv:2305.16264, equations 5 to 7 and appendix A
(read in the source).
"""

from __future__ import annotations

import numpy as np

from sim.errors import require_positive
from sim.scaling.allocation import Optimum
from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, optimal_params, power_sum_loss
from sim.scaling.published import MUENNIGHOFF
from sim.work.operations import Number

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
