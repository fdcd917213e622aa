"""Sweeps of layouts: which one we would pick, which was the fastest, how alike the orders are.

A sweep keeps machine, model, batch and precision (`flopcast_calibration.readers.families.sweep_of`) and the kernels;
its runs differ in layout, and in what overlaps with compute, which may come with a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from flopcast_validation.runs.scored import Scored, modelled
from sim.report.terminal import grouped
from sim.specs import ParallelPlan, StackSpec

FEWEST = 3
"""Layouts a sweep needs for a rank correlation."""
GOAL = 0.02
"""Regret that a planner can live with: about what repeats of one run differ by."""
FEWEST_REPEATED = 3
"""Layouts that a source must have measured more than once for their spread to stand for its sweeps."""
_DRAWS = 2000
_OTHER = ("overlap_", "fitted", "name", "parallel_save")
_KERNELS = tuple(name for name in StackSpec.model_fields if not name.startswith(_OTHER))
"""Fields of a stack that a planner does not choose."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan of a sweep, with every run of it: repeats count as one layout that takes their mean. [s]

    each_s : the measurements as step times.
    """

    plan: ParallelPlan
    runs: tuple[Scored, ...]
    each_s: tuple[float, ...]
    measured_s: float
    predicted_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        times = {"measured_s": self.measured_s, "predicted_s": self.predicted_s}
        return {"ids": [item.run.id for item in self.runs], "plan": self.plan.model_dump(mode="json"), **times}


@dataclass(frozen=True, slots=True)
class SweepScore:
    """One sweep.

    name : model, GPUs, sequences, and the kernels where sweeps differ in nothing else.
    tau : Kendall's, of measured and predicted step times of the layouts; None where either is all ties.
    picked, fastest : the layouts that we find and that were measured to be the fastest.
    differ : fields of the plan in which the sweep's layouts differ.
    """

    name: str
    source: str
    layouts: tuple[Layout, ...]
    tau: float | None
    picked: Layout
    fastest: Layout
    differ: tuple[str, ...]

    @property
    def count(self) -> int:
        """Runs."""
        return sum(len(layout.runs) for layout in self.layouts)

    @property
    def regret(self) -> float:
        """How much slower the plan we would pick is than the fastest, as measured."""
        return self.picked.measured_s / self.fastest.measured_s - 1.0

    @property
    def believed_loss(self) -> float:
        """How much slower than the picked plan we take the fastest for."""
        return self.fastest.predicted_s / self.picked.predicted_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        counts = {"sweep": self.name, "source": self.source, "runs": self.count, "layouts": len(self.layouts)}
        found = {name: getattr(self, name) for name in ("tau", "regret", "believed_loss")}
        return {**counts, **found, "picked": self.picked.to_dict(), "fastest": self.fastest.to_dict()}


def sweeps_of(items: Sequence[Scored]) -> list[SweepScore]:
    """Every sweep of enough layouts among the runs that were predicted, in their order."""
    groups = members_of(items)
    alike = grouped((first.run.sweep, first.run.choices[0].stack) for first, *_ in groups.values())
    scores = (_score(members, alike[members[0].run.sweep]) for members in groups.values())
    return [score for score in scores if score is not None]


def members_of(items: Sequence[Scored]) -> dict[Any, list[Scored]]:
    """Predicted runs by sweep."""
    kernels = attrgetter(*_KERNELS)
    return grouped(((item.run.sweep, kernels(item.run.choices[0].stack)), item) for item in modelled(items))


def plan_of(item: Scored) -> ParallelPlan:
    """A run's layout."""
    return item.run.choices[0].plan


def _layout(plan: ParallelPlan, runs: Sequence[Scored]) -> Layout:
    """The layout of runs of one plan that we find equally fast: they are repeats."""
    each_s = tuple(item.run.step_time_s(item.run.choices[0]) for item in runs)
    predicted_s = float(np.mean([item.step_time_s or 0.0 for item in runs]))
    return Layout(plan, tuple(runs), each_s, float(np.mean(each_s)), predicted_s)


def _score(members: list[Scored], alike: Sequence[StackSpec]) -> SweepScore | None:
    from scipy.stats import kendalltau

    repeats = grouped(((plan_of(item), item.step_time_s), item) for item in members)
    plans = {plan for plan, _ in repeats}
    if len(plans) < FEWEST:
        return None
    layouts = tuple(_layout(plan, runs) for (plan, _), runs in repeats.items())
    tau = float(kendalltau([each.measured_s for each in layouts], [each.predicted_s for each in layouts]).statistic)
    first = members[0].run
    return SweepScore(
        _name(first.choices[0], first.sweep) + _kernel_words(first.choices[0].stack, alike),
        first.source,
        layouts,
        None if np.isnan(tau) else tau,
        min(layouts, key=lambda layout: layout.predicted_s),
        min(layouts, key=lambda layout: layout.measured_s),
        tuple(name for name in ParallelPlan.model_fields if len({getattr(plan, name) for plan in plans}) > 1),
    )


def _kernel_words(stack: StackSpec, alike: Sequence[StackSpec]) -> str:
    """The kernels in which a sweep differs from others of the same model, machine and batch."""
    differ = [name for name in _KERNELS if len({getattr(each, name) for each in alike}) > 1]
    words = []
    if {"attention", "flash_version", "fused_softmax"} & set(differ):
        core = "fused softmax" if stack.fused_softmax else "plain softmax"
        words.append(f"flash {stack.flash_version}" if stack.attention == "flash" else core)
    if "elementwise_rate" in differ:
        words.append("eager" if stack.elementwise_rate < 1 else "compiled")
    elif "fused_norm" in differ:
        words.append("norm in one kernel" if stack.fused_norm else "norm step by step")
    return "".join(f", {each}" for each in words)


def _name(scenario: Any, sweep: str) -> str:
    """Model, GPUs, sequence and batch of a sweep, as its rows call them."""
    _, gpu, gpus, model, length, batch, *_ = (*sweep.split(" | "), *[""] * 6)
    size = batch or str(scenario.training.global_batch_size)
    return f"{model or scenario.model.name}, {gpus} {gpu.split('-')[0]}, batch {size} × {length}"


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """The sweeps of one source, or of all.

    within : sweeps whose regret is at most GOAL.
    repeated, spread : layouts that were measured more than once, and the standard deviation of the logarithm of one
        such measurement; None without.
    oracle_regret : mean regret of a planner who knows the truth, on measurements that spread so; None where too few
        were repeated. A lower bound: what was measured, chance included, is taken for the truth.
    """

    source: str
    sweeps: int
    runs: int
    within: int
    mean_regret: float
    median_regret: float
    worst_regret: float
    mean_tau: float | None
    repeated: int
    spread: float | None
    oracle_regret: float | None


def summaries_of(sweeps: Sequence[SweepScore]) -> list[SweepSummary]:
    """One for every source, in their order, and one for all."""
    named = grouped((each.source, each) for each in sweeps) | ({"all": list(sweeps)} if sweeps else {})
    return [_summary(name, own) for name, own in named.items()]


def _summary(name: str, sweeps: Sequence[SweepScore]) -> SweepSummary:
    regrets, taus = np.array([each.regret for each in sweeps]), [each.tau for each in sweeps if each.tau is not None]
    repeated, spread = spread_of(sweeps)
    # The spread of one source says nothing of another's.
    known = spread is not None and repeated >= FEWEST_REPEATED and len({each.source for each in sweeps}) == 1
    return SweepSummary(
        source=name,
        sweeps=len(sweeps),
        runs=sum(each.count for each in sweeps),
        within=int((regrets <= GOAL).sum()),
        mean_regret=float(regrets.mean()),
        median_regret=float(np.median(regrets)),
        worst_regret=float(regrets.max()),
        mean_tau=float(np.mean(taus)) if taus else None,
        repeated=repeated,
        spread=spread,
        oracle_regret=float(np.mean([oracle_regret(each, spread or 0.0) for each in sweeps])) if known else None,
    )


def spread_of(sweeps: Sequence[SweepScore]) -> tuple[int, float | None]:
    """How many layouts were measured more than once, and the standard deviation of the log of one measurement."""
    repeated = [np.log(layout.each_s) for each in sweeps for layout in each.layouts if len(layout.runs) > 1]
    free = sum(len(logs) - 1 for logs in repeated)
    squares = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in repeated)
    return len(repeated), float(np.sqrt(squares / free)) if free else None


def oracle_regret(sweep: SweepScore, spread: float, seed: int = 0) -> float:
    """Mean regret of one who picks what is fastest in truth, where every run's measurement spreads by chance.

    `spread` is the standard deviation of the logarithm of one measurement.
    """
    truth = np.log([layout.measured_s for layout in sweep.layouts])
    width = spread / np.sqrt([len(layout.runs) for layout in sweep.layouts])
    drawn = truth + width * np.random.default_rng(seed).standard_normal((_DRAWS, len(truth)))
    return float(np.expm1(drawn[:, truth.argmin()] - drawn.min(axis=1)).mean())
