"""A 90 % interval around a step time: how far what a step is made of has been off, in published runs.

A step time's logarithm is off by the sum, over its causes, of the cause's share of the step times how far the seconds
of that cause are off, and by a rest of the run's own. Both spreads are learnt from published runs
(`presets/intervals.yaml`; `python -m tests.learn_intervals`). A measured run tells of others as far as
they are made of the same and are alike: conditioned on it, their interval narrows, unless it was further off than
expected. The two sides differ, since what is not known of a network, a host and a build costs time more often than
it saves some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, hypot, log, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from sim.specs import Scenario, StackSpec
from sim.specs.frameworks import UNKNOWN
from sim.specs.values import TABLE, closeness, place_of
from sim.specs.yaml12 import load_yaml

NORMAL = NormalDist()

RELATIVE = "another framework"
"""Name of a stack that stands for a framework without runs."""

PARTS = {
    "matrix multiplies": ("flop_at_peak", "matmul_inefficiency"),
    "attention": ("attention_overhead",),
    "memory-bound kernels": ("memory_bound", "optimizer"),
    "the host": ("host_wait",),
    "recomputation": ("recompute",),
    "tensor-parallel traffic": ("tensor_parallel_comm",),
    "context-parallel traffic": ("context_parallel_comm",),
    "expert traffic": ("expert_parallel_comm", "beside_expert_comm"),
    "pipeline sends": ("pipeline_comm",),
    "waiting": ("pipeline_bubble", "stage_imbalance", "stragglers"),
    "data-parallel traffic": ("data_parallel_comm",),
    "offload": ("offload",),
}
"""The causes of a step (`sim.breakdown.CAUSES`) whose seconds are off together."""

FACTS = ("datasheet", "few published", "unknown framework", "experts")
"""What makes all parts of a step worse known: nothing was measured on its GPU, few lineages (below MANY) have
published runs of its kind (or nothing was measured), its framework is not known, there are experts."""
MANY = 4
"""Lineages (framework and organisation) from which on runs are called like measured ones: of other people's runs, on
which nothing was set, half are off by 16 % and more with as many, by 30 to 60 % with fewer."""


REST = 0.05
"""Standard deviation of what a run's logarithm has of its own: of 0.03, 0.05, 0.07 and 0.1 that with the least error
after one measured run (`flopcast validate --transfer`). Likelihoods alone would have half of it, and trust it more."""


class Spreads(NamedTuple):
    """How far predictions are off, as learnt from published runs.

    parts : standard deviation of the logarithm of each part's seconds.
    facts : factor on them where a fact holds.
    apart : by what share two runs tell less of each other for each doubling of what they differ in.
    reach : (down, up): standard deviations that the interval reaches.
    published : by GPU, sharding and precision the lineages and runs that were published.
    runs, lineages : that all of it was learnt from.
    """

    parts: Mapping[str, float]
    facts: Mapping[str, float]
    apart: Mapping[str, float]
    reach: tuple[float, float]
    published: Mapping[str, tuple[int, int]] = {}
    runs: int = 0
    lineages: int = 0


@cache
def shipped_spreads() -> Spreads:
    """The table that ships."""
    table: dict[str, Any] = load_yaml(TABLE)
    return Spreads(**table)


class Doubt(NamedTuple):
    """What an interval needs of an estimate.

    shares : of the step, by part; they sum to one.
    facts : those of FACTS that hold.
    place : what tells how much other steps resemble it (`sim.specs.values.place_of`).
    log_error : logarithm of its measured over its predicted time, if it was measured.
    """

    shares: dict[str, float]
    facts: tuple[str, ...]
    place: Mapping[str, float] = {}
    log_error: float = 0.0

    def scale(self, spreads: Spreads) -> float:
        """The product of the facts' factors."""
        return float(np.prod([spreads.facts[name] for name in self.facts])) if self.facts else 1.0

    def loads(self, spreads: Spreads) -> np.ndarray:
        """Change of the step time's logarithm by one standard deviation of each part, (parts,)."""
        sizes = [self.shares.get(name, 0.0) * spreads.parts[name] for name in PARTS]
        return np.array(sizes) * self.scale(spreads)


def shares_of(causes: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step by part, from its shares by cause."""
    return {name: sum(causes.get(cause, 0.0) for cause in of) for name, of in PARTS.items()}


def doubt_of(scenario: Scenario, causes: Mapping[str, float]) -> Doubt:
    """Facts and shares that an interval needs, from a scenario and the shares of its causes (`Breakdown.shares`)."""
    return Doubt(shares_of(causes), facts_of(scenario), place_of(scenario))


def facts_of(scenario: Scenario, lineages: int | None = None) -> tuple[str, ...]:
    """The facts of FACTS that hold for a scenario.

    lineages : of which runs of its kind are published; default: those of the table that ships.
    """
    by_datasheet = scenario.profile.provenance.of_datasheet
    few = published_like(scenario)[0] < MANY if lineages is None else lineages < MANY
    held = (by_datasheet, few or by_datasheet, is_unknown(scenario.stack), bool(scenario.model.num_experts))
    return tuple(name for name, holds in zip(FACTS, held, strict=True) if holds)


WIDEST = log(2.2)
"""The most that an interval reaches to longer steps, as a logarithm: where much of a step waits for traffic it would
reach further, and a wider interval tells nobody anything."""


def covariance(ones: Sequence[Doubt], others: Sequence[Doubt], spreads: Spreads) -> np.ndarray:
    """Covariance of the errors of steps, without what each has of its own, (ones, others)."""
    first, second = (np.array([each.loads(spreads) for each in steps]) for steps in (ones, others))
    alike = closeness([each.place for each in ones], [each.place for each in others], spreads.apart)
    shared: np.ndarray = first @ second.T * alike
    return shared


def spread_of(doubt: Doubt, measured: Sequence[Doubt] = (), spreads: Spreads | None = None) -> float:
    """Standard deviation of the logarithm of a step time, once some runs were measured to which its profile was drawn.

    A step's logarithm is linear in the parts' errors, and a source's errors are a Student t of ν = FREEDOM. Measured
    runs M that were off by e leave the variance k(x, x) + r² − k(x, M) K⁻¹ k(M, x), times (ν + eᵀ K⁻¹ e) / (ν + |M|),
    with K = k(M, M) + r² and r = REST (Ding 2016, arXiv:1604.00561): more, the further off they were.
    """
    spreads = spreads or shipped_spreads()
    own = doubt.loads(spreads)
    variance = float(own @ own) + REST**2
    if measured:
        common, off = covariance(measured, [doubt], spreads)[:, 0], np.array([run.log_error for run in measured])
        both = covariance(measured, measured, spreads) + REST**2 * np.eye(len(measured))
        by_common, by_off = np.linalg.solve(both, np.array([common, off]).T).T
        variance -= float(common @ by_common)
        variance *= (FREEDOM + float(off @ by_off)) / (FREEDOM + len(measured))
    return min(sqrt(variance), WIDEST / spreads.reach[1])


FREEDOM = 5.0
"""Degrees of freedom of the Student t that a source's errors follow: some sources are odd as a whole."""


def log_likelihood(measured: Sequence[Doubt]) -> float:
    """Log density of how far one source's measured runs were off, all together."""
    from scipy.stats import multivariate_t

    spreads = shipped_spreads()
    shape = covariance(measured, measured, spreads) + REST**2 * np.eye(len(measured))
    return float(multivariate_t(shape=shape, df=FREEDOM).logpdf(np.array([run.log_error for run in measured])))


def reach_of(doubt: Doubt, measured: Sequence[Doubt] = (), spreads: Spreads | None = None) -> tuple[float, float]:
    """How far the 90 % interval reaches to shorter and to longer steps, as logarithms. Parameters as `spread_of`."""
    spreads = spreads or shipped_spreads()
    spread = spread_of(doubt, measured, spreads)
    return spreads.reach[0] * spread, spreads.reach[1] * spread


def measured_doubts(scenario: Scenario) -> tuple[Doubt, ...]:
    """Return the measured runs that a scenario's profile was drawn to."""
    told = scenario.profile.provenance.measured
    return tuple(Doubt(dict(run.shares), run.facts, run.place, run.log_error) for run in told)


def interval_factors(scenario: Scenario, causes: Mapping[str, float]) -> tuple[float, float]:
    """Factors on the step time that bound its 90 % interval, from the step's shares by cause (`Breakdown.shares`)."""
    down, up = reach_of(doubt_of(scenario, causes), measured_doubts(scenario))
    return exp(-down), exp(up)


def quantile_factor(scenario: Scenario, causes: Mapping[str, float], probability: float) -> float:
    """Factor on the step time of what it stays below with a probability; parameters as `interval_factors`.

    Each side of the interval is half of a normal, of which it leaves one in twenty beyond.
    """
    low, high = interval_factors(scenario, causes)
    side = NORMAL.inv_cdf(probability) / NORMAL.inv_cdf(0.95)
    return exp(side * (log(high) if side > 0.0 else -log(low)))


def chance_below(scenario: Scenario, causes: Mapping[str, float], factor: float) -> float:
    """Probability that a step takes at most so many times its predicted time; the inverse of `quantile_factor`."""
    low, high = interval_factors(scenario, causes)
    side = log(factor) / (log(high) if factor > 1.0 else -log(low))
    return NORMAL.cdf(side * NORMAL.inv_cdf(0.95))


def least_quantile_factor(scenario: Scenario, probability: float) -> float:
    """What `quantile_factor` is at least, from a half on, for any plan of a scenario.

    No step is known better than one whose parts have the shares in which their independent errors cancel most, of a
    kind with many published runs; once runs were measured, what each run has of its own is left, and less of it the
    better they were predicted.
    """
    spreads, measured = shipped_spreads(), len(measured_doubts(scenario))
    facts = tuple(name for name in facts_of(scenario) if name != "few published")
    parts = sum(size**-2 for size in spreads.parts.values()) ** -0.5
    best = 0.0 if measured else Doubt({}, facts).scale(spreads) * parts
    up = min(hypot(best, REST) * (1.0 + measured / FREEDOM) ** -0.5 * spreads.reach[1], WIDEST)
    return exp(up * NORMAL.inv_cdf(probability) / NORMAL.inv_cdf(0.95))


def least_told_apart(*factors: tuple[float, float]) -> float:
    """Smallest factor between two step times that their intervals can distinguish.

    Errors of the two are taken as independent, so that the half-widths add as squares. What scenarios share errs alike
    in both: of plans on one machine smaller differences can be told than this says.
    """
    return exp(hypot(*(log(high / low) / 2 for low, high in factors)))


def largest_doubts(scenario: Scenario, causes: Mapping[str, float]) -> dict[str, float]:
    """Share of the step time's variance by part, and of the run's own rest; the largest first."""
    spreads, doubt = shipped_spreads(), doubt_of(scenario, causes)
    sizes = dict(zip(PARTS, (doubt.loads(spreads) ** 2).tolist(), strict=True)) | {"the run": REST**2}
    whole = sum(sizes.values())
    return {name: size / whole for name, size in sorted(sizes.items(), key=lambda item: -item[1]) if size}


def basis_of(scenario: Scenario, causes: Mapping[str, float]) -> str:
    """What the interval of a step time rests on, and what would narrow it, in a few sentences."""
    spreads, doubt, measured = shipped_spreads(), doubt_of(scenario, causes), measured_doubts(scenario)
    own = f" after {'one run' if len(measured) == 1 else f'{len(measured):,} runs'} of your own" if measured else ""
    said = [
        f"The interval{own} is {_range(reach_of(doubt, measured))} times the step time. It rests on the errors of "
        f"{spreads.runs:,} published runs"
    ]
    part = next(iter(largest_doubts(scenario, causes)))
    if part in doubt.shares and not measured:
        alone = exp(spreads.parts[part] * doubt.scale(spreads)) - 1
        said.append(
            f"The largest doubt is {part}: {doubt.shares[part]:.0%} of the step, uncertain by a factor of "
            f"{1 + alone:.2f}"
        )
    expected = doubt._replace(log_error=spread_of(doubt, measured))
    before, now, after = (reach_of(doubt, runs) for runs in ((), measured, (*measured, expected)))
    if measured and sum(now) > WORTH_NAMING * sum(before):
        said.append("Your runs hardly narrow it, as this run differs from them in its parts and sizes")
    elif not measured and sum(after) < WORTH_NAMING * sum(now):
        narrower = f"{1 - sum(after) / sum(now):.0%} narrower: {_range(after)}"
        said.append(f"One measured step of a similar run (flopcast anchor) would make the interval {narrower}")
    return ". ".join(said) + "."


def _range(reach: tuple[float, float]) -> str:
    return f"{exp(-reach[0]):.2f} to {exp(reach[1]):.2f}"


WORTH_NAMING = 0.8
"""Advice is given only if the interval would have at most this share of its width."""
GRADES = ("measured here", "like measured runs", "extrapolated", "unknown")
"""How well an answer is known, the best first."""


def grade_of(scenario: Scenario, off_range: bool = False) -> tuple[str, str]:
    """(how well a scenario's step time is known, of GRADES; the one fact that would raise it; empty: none).

    Measured here: the profile was fitted to a run of this model and precision on as many GPUs. Like measured runs: to
    another run, or runs of MANY lineages are published on this GPU, of this precision, sharded so. Extrapolated: of
    fewer, or something lies outside what the profile was fitted on. Unknown: the framework is, or nothing was measured
    on the GPU.
    """
    provenance, place = scenario.profile.provenance, place_of(scenario)
    if (measured_run(scenario), place) in [(run.name, run.place) for run in provenance.measured]:
        return GRADES[0], ""
    if provenance.of_datasheet and not provenance.measured:
        return GRADES[3], "one measured step (flopcast anchor)"
    if is_unknown(scenario.stack) and not provenance.measured:
        named = scenario.stack.framework not in UNKNOWN  # and no published run has it
        return GRADES[3], "one measured step (flopcast anchor)" if named else "naming the framework (stack.framework)"
    if off_range or (published_like(scenario)[0] < MANY and not provenance.measured):
        return GRADES[2], "one measured step (flopcast anchor)"
    return GRADES[1], "" if provenance.measured else "one measured step (flopcast anchor)"


def published_like(scenario: Scenario) -> tuple[int, int]:
    """(lineages, runs) published on this GPU, of this precision, sharded so."""
    lineages, runs = shipped_spreads().published.get(kind_of(scenario), (0, 0))
    return lineages, runs


def kind_of(scenario: Scenario) -> str:
    """GPU, sharding and precision of a run: "a100, pipeline or tensor, 16-bit"."""
    sharded = "fsdp" if scenario.plan.zero_stage == 3 else "pipeline or tensor"
    return f"{scenario.profile.gpu.lower()}, {sharded}, {recipe_of(scenario)}"


def is_unknown(stack: StackSpec) -> bool:
    """Whether nothing but its time is known of the framework, or no run of it: another one's stack stands for it."""
    return stack.framework in UNKNOWN or stack.name == RELATIVE


def recipe_of(scenario: Scenario) -> str:
    """Precision, and whether there are experts: "16-bit", "fp8 experts"."""
    peak = scenario.training.peak_precision
    precision = peak if peak in ("fp8", "fp4") else "16-bit"
    return f"{precision} experts" if scenario.model.num_experts else precision


def measured_run(scenario: Scenario) -> str:
    """What a profile keeps as the name of a measured run that it was drawn to."""
    return f"{scenario.model.name}, {recipe_of(scenario)}"
