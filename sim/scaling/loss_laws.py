"""Loss as a function of model and data size: the forms that laws take, and the published ones by name.

N is parameters, D tokens, C = 6 N D floating-point operations, losses are nats per token. Every function takes
floats or NumPy arrays. The best use of a budget is in `allocation`. A law of your own is one more `LossLaw`. Each says
how far its constants were checked: read in the paper itself, quoted in other papers and notebooks only, or not
verified, with the cross-checks that they pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sim.errors import SpecError, nearest, require_positive
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


PETAFLOP_DAY = 1e15 * 86400.0


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """y = scale · x^exponent."""

    scale: float
    exponent: float


@dataclass(frozen=True, slots=True)
class LossLaw:
    """A published (or fitted) law.

    form : loss of any N and D; None where the paper gives only the best allocation.
    allocation : the paper's own N of compute C, where it is not the optimum of `form`.
    frontier : the paper's own loss of compute C, where it is not that of `form` at the optimum.
    exponent_interval : published interval of the exponent of N in C, and what it is.
    fitted_flop : compute of the runs it was fitted on; beyond it is extrapolation. [FLOP]
    """

    name: str
    summary: str
    source: str
    checked: str
    form: PowerSum | None = None
    allocation: PowerLaw | None = None
    frontier: PowerLaw | None = None
    exponent_interval: tuple[float, float] | None = None
    interval_is: str = ""
    fitted_flop: tuple[float, float] | None = None
    errors: Mapping[str, float] = field(default_factory=dict)


def _kaplan_joint() -> PowerSum:
    """Kaplan et al. 2020, equation 1.5 with table 2: [(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D."""
    alpha_n, alpha_d, n_c, d_c = 0.076, 0.103, 6.4e13, 1.8e13
    ratio = alpha_n / alpha_d
    return PowerSum(0.0, n_c**ratio, ratio, d_c, 1.0, alpha_d)


KAPLAN = _kaplan_joint()
HOFFMANN = PowerSum(1.6934, 406.4, 0.3392, 410.7, 0.2849)
"""Approach 3 with the digits of the paper's TeX source; the rounded .34 and .28 put 20 % fewer parameters."""
HOFFMANN_ROUNDED = PowerSum(1.69, 406.4, 0.34, 410.7, 0.28)
BESIROGLU = PowerSum(1.8172, 482.01, 0.3478, 2085.43, 0.3658)
MUENNIGHOFF = PowerSum(1.87, 521.0, 0.353, 1488.0, 0.353)

_HOFFMANN = "Hoffmann et al. 2022, arXiv:2203.15556"
_HOFFMANN_RUNS = (1.4e18, 1.3e22)  # of the runs in figure 4
_PERCENTILES = "10th to 90th percentile of bootstraps, table 2"

LAWS: dict[str, LossLaw] = {
    law.name: law
    for law in (
        LossLaw(
            "kaplan-2020",
            "larger models on little more data; N without embeddings, C far below the critical batch",
            "Kaplan et al. 2020, arXiv:2001.08361, tables 2 and 6, equation 1.3",
            "quoted elsewhere",
            form=KAPLAN,
            allocation=PowerLaw(1.3e9 * PETAFLOP_DAY**-0.73, 0.73),
            frontier=PowerLaw((3.1e8 * PETAFLOP_DAY) ** 0.050, -0.050),
        ),
        LossLaw(
            "chinchilla-1",
            "approach 1: the envelope of training curves",
            f"{_HOFFMANN}, tables 2 and 3 (scaled to the row of Gopher's budget)",
            "quoted elsewhere",
            allocation=PowerLaw(67e9 / 5.76e23**0.50, 0.50),
            exponent_interval=(0.488, 0.502),
            interval_is=_PERCENTILES,
            fitted_flop=_HOFFMANN_RUNS,
        ),
        LossLaw(
            "chinchilla-2",
            "approach 2: profiles of equal compute",
            f"{_HOFFMANN}, table 2; 63 billion parameters at Gopher's budget, section 3.2",
            "quoted elsewhere; the 63 billion not verified",
            allocation=PowerLaw(63e9 / 5.76e23**0.49, 0.49),
            exponent_interval=(0.462, 0.534),
            interval_is=_PERCENTILES,
            fitted_flop=_HOFFMANN_RUNS,
        ),
        LossLaw(
            "chinchilla-3",
            "approach 3: a parametric fit, since found to be off",
            f"{_HOFFMANN}, equation 10 and its TeX source",
            "quoted elsewhere",
            form=HOFFMANN,
            exponent_interval=(0.454, 0.455),
            interval_is=f"{_PERCENTILES}; implausibly narrow (Besiroglu et al.)",
            fitted_flop=_HOFFMANN_RUNS,
        ),
        LossLaw(
            "besiroglu-2024",
            "approach 3 fitted anew to the points of the paper's figure 4",
            "Besiroglu et al. 2024, arXiv:2404.10102, table 1",
            "quoted elsewhere; the fit repeated here from the published points",
            form=BESIROGLU,
            exponent_interval=(0.5126 - 1.645 * 0.018, 0.5126 + 1.645 * 0.018),
            interval_is="90 %, from the published standard error 0.018",
            fitted_flop=_HOFFMANN_RUNS,
            errors={"irreducible": 0.03, "a": 124.58, "alpha": 0.02, "b": 1293.23, "beta": 0.02},
        ),
        LossLaw(
            "muennighoff-2023",
            "fitted with alpha = beta on C4; extends to repeated data",
            "Muennighoff et al. 2023, arXiv:2305.16264, appendix A",
            "read in the paper",
            form=MUENNIGHOFF,
        ),
        LossLaw(
            "deepseek-2024",
            "allocation only; N is non-embedding FLOPs a token over 6, so attention counts",
            "DeepSeek-AI 2024, arXiv:2401.02954, section 3.2: M = 0.1715 C^0.5243",
            "quoted elsewhere; 0.1715 · 5.8316 = 1.000, as C = M D needs",
            allocation=PowerLaw(0.1715 / FLOP_PER_PARAM_TOKEN, 0.5243),
            fitted_flop=(1e17, 3e20),
        ),
    )
}
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
