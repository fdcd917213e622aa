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
    few = (lineages_like(scenario) if lineages is None else lineages) < MANY
    held = (by_datasheet, few or by_datasheet, is_unknown(scenario.stack), bool(scenario.model.num_experts))
    return tuple(name for name, holds in zip(FACTS, held, strict=True) if holds)


WIDEST = log(2.2)
"""The most that an interval reaches to longer steps, as a logarithm: where much of a step waits for traffic it would
reach further, and a wider interval tells nobody anything."""
FREEDOM = 5.0
"""Degrees of freedom of the Student t that a source's errors follow: some sources are odd as a whole."""


def covariance(ones: Sequence[Doubt], others: Sequence[Doubt], spreads: Spreads) -> np.ndarray:
    """Covariance of the errors of steps, without what each has of its own, (ones, others)."""
    loads = np.array([each.loads(spreads) for each in (*ones, *others)])
    alike = closeness([each.place for each in ones], [each.place for each in others], spreads.apart)
    shared: np.ndarray = loads[: len(ones)] @ loads[len(ones) :].T * alike
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


def log_likelihood(measured: Sequence[Doubt]) -> float:
    """Log density of how far one source's measured runs were off, all together."""
    from scipy.stats import multivariate_t

    shape = covariance(measured, measured, shipped_spreads()) + REST**2 * np.eye(len(measured))
    return float(multivariate_t(shape=shape, df=FREEDOM).logpdf(np.array([run.log_error for run in measured])))


def measured_doubts(scenario: Scenario) -> tuple[Doubt, ...]:
    """Return the measured runs that a scenario's profile was drawn to."""
    told = scenario.profile.provenance.measured
    return tuple(Doubt(dict(run.shares), run.facts, run.place, run.log_error) for run in told)


WORTH_NAMING = 0.8
"""Advice is given only if the interval would have at most this share of its width."""


class Interval(NamedTuple):
    """The 90 % interval of a step time, and what it rests on.

    spread : standard deviation of the step time's logarithm.
    doubt : of the step. measured : runs to which its profile was drawn.
    """

    spread: float
    doubt: Doubt
    measured: tuple[Doubt, ...] = ()

    def __str__(self) -> str:
        low, high = self.factors
        return f"{low:.2f} to {high:.2f}"

    @property
    def reach(self) -> tuple[float, float]:
        """How far it reaches to shorter and to longer steps, as logarithms."""
        down, up = shipped_spreads().reach
        return down * self.spread, up * self.spread

    @property
    def factors(self) -> tuple[float, float]:
        """Factors on the step time that bound it."""
        down, up = self.reach
        return exp(-down), exp(up)

    def quantile(self, probability: float) -> float:
        """Factor on the step time of what it stays below with a probability.

        Each side of the interval is half of a normal, of which it leaves one in twenty beyond.
        """
        side = NORMAL.inv_cdf(probability) / NORMAL.inv_cdf(0.95)
        return exp(side * self.reach[side > 0.0])

    def chance_below(self, factor: float) -> float:
        """Probability that a step takes at most so many times its predicted time; the inverse of `quantile`."""
        return NORMAL.cdf(log(factor) / self.reach[factor > 1.0] * NORMAL.inv_cdf(0.95))

    @property
    def parts(self) -> dict[str, float]:
        """Share of the step time's variance by part, and of the run's own rest; the largest first."""
        sizes = dict(zip(PARTS, self.doubt.loads(shipped_spreads()) ** 2, strict=True)) | {"the run": REST**2}
        whole = sum(sizes.values())
        ordered = sorted(sizes.items(), key=lambda item: -item[1])
        return {name: float(size / whole) for name, size in ordered if size}

    @property
    def narrowed(self) -> float | None:
        """The spread once a similar step is measured; None if some run was, or if it would hardly be less."""
        if self.measured:
            return None
        after = spread_of(self.doubt, [self.doubt._replace(log_error=self.spread)])
        return after if after < WORTH_NAMING * self.spread else None

    @property
    def basis(self) -> str:
        """What it rests on, and what would narrow it, in a few sentences."""
        spreads, doubt, count = shipped_spreads(), self.doubt, len(self.measured)
        own = f" after {'one run' if count == 1 else f'{count:,} runs'} of your own" if count else ""
        runs = f"{spreads.runs:,} published runs"
        said = [f"The interval{own} is {self} times the step time. It rests on the errors of {runs}"]
        part = next(iter(self.parts))
        if part in doubt.shares and not count:
            alone = exp(spreads.parts[part] * doubt.scale(spreads))
            said.append(
                f"The largest doubt is {part}: {doubt.shares[part]:.0%} of the step, uncertain by a factor of "
                f"{alone:.2f}"
            )
        if count and self.spread > WORTH_NAMING * spread_of(doubt):
            said.append("Your runs hardly narrow it, as this run differs from them in its parts and sizes")
        elif (after := self.narrowed) is not None:
            narrower = f"{1 - after / self.spread:.0%} narrower: {self._replace(spread=after)}"
            said.append(f"One measured step of a similar run (flopcast anchor) would make the interval {narrower}")
        return ". ".join(said) + "."


def interval_of(scenario: Scenario, causes: Mapping[str, float]) -> Interval:
    """The interval of a scenario's step time, from the step's shares by cause (`Breakdown.shares`)."""
    doubt, measured = doubt_of(scenario, causes), measured_doubts(scenario)
    return Interval(spread_of(doubt, measured), doubt, measured)


def least_quantile_factor(scenario: Scenario, probability: float) -> float:
    """What `Interval.quantile` is at least, from a half on, for any plan of a scenario.

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


def least_told_apart(*intervals: Interval) -> float:
    """Smallest factor between two step times that their intervals can distinguish.

    Errors of the two are taken as independent, so that the half-widths add as squares. What scenarios share errs alike
    in both: of plans on one machine smaller differences can be told than this says.
    """
    return exp(hypot(*(sum(each.reach) / 2 for each in intervals)))


GRADES = ("measured here", "like measured runs", "extrapolated", "unknown")
"""How well an answer is known, the best first."""


def grade_of(scenario: Scenario, off_range: bool = False) -> tuple[str, str]:
    """(how well a scenario's step time is known, of GRADES; the one fact that would raise it; empty: none).

    Measured here: the profile was fitted to a run of this model and precision on as many GPUs. Like measured runs: to
    another run, or runs of MANY lineages are published on this GPU, of this precision, sharded so. Extrapolated: of
    fewer, or something lies outside what the profile was fitted on. Unknown: the framework is, or nothing was measured
    on the GPU.
    """
    provenance, measure = scenario.profile.provenance, "one measured step (flopcast anchor)"
    if (measured_run(scenario), place_of(scenario)) in [(run.name, run.place) for run in provenance.measured]:
        return GRADES[0], ""
    if provenance.measured:
        return (GRADES[2], measure) if off_range else (GRADES[1], "")
    if provenance.of_datasheet:
        return GRADES[3], measure
    if is_unknown(scenario.stack):
        named = scenario.stack.framework not in UNKNOWN  # and no published run has it
        return GRADES[3], measure if named else "naming the framework (stack.framework)"
    return GRADES[2 if off_range or lineages_like(scenario) < MANY else 1], measure


def lineages_like(scenario: Scenario) -> int:
    """Lineages with runs published on this GPU, of this precision, sharded so."""
    return shipped_spreads().published.get(kind_of(scenario), (0, 0))[0]


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
