"""The published loss laws, by name, with where their constants come from. A law of your own is one more `LossLaw`.

Each says how far its constants were checked: read in the paper itself, quoted in other papers and notebooks only, or
not verified, with the cross-checks that they pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sim.errors import SpecError, nearest
from sim.scaling.loss_laws import FLOP_PER_PARAM_TOKEN, PowerSum

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
