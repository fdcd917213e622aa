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

from flopcast_validation.runs.scored import Scored
from sim.report.terminal import grouped
from sim.specs import ParallelPlan, StackSpec

FEWEST = 3
"""Layouts a sweep needs for a rank correlation."""
GOAL = 0.02
"""Regret that a planner can live with: about what repeats of one run differ by."""

_OTHER = ("overlap_", "fitted", "name", "parallel_save")
_KERNELS = tuple(name for name in StackSpec.model_fields if not name.startswith(_OTHER))
"""Fields of a stack that a planner does not choose."""
_LABELS = {
    "microbatch_size": "mbs ",
    "num_chunks": "chunks ",
    "schedule": "",
    "zero_stage": "ZeRO ",
    "sequence_parallel": "SP ",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan of a sweep, with every run of it: repeats count as one layout that takes their mean."""

    runs: tuple[Scored, ...]

    @property
    def plan(self) -> ParallelPlan:
        """The plan."""
        return plan_of(self.runs[0])

    @property
    def each_s(self) -> list[float]:
        """The measurements as step times. [s]"""
        return [item.run.step_time_s(item.run.choices[0]) for item in self.runs]

    @property
    def measured_s(self) -> float:
        """Their mean. [s]"""
        return float(np.mean(self.each_s))

    @property
    def predicted_s(self) -> float:
        """The step time we find. [s]"""
        return float(np.mean([item.step_time_s or 0.0 for item in self.runs]))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ids": [item.run.id for item in self.runs],
            "plan": self.plan.model_dump(mode="json"),
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
        }


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
        return {
            "sweep": self.name,
            "source": self.source,
            "runs": self.count,
            "layouts": len(self.layouts),
            "tau": self.tau,
            "regret": self.regret,
            "believed_loss": self.believed_loss,
            "picked": self.picked.to_dict(),
            "fastest": self.fastest.to_dict(),
        }


def sweeps_of(items: Sequence[Scored]) -> list[SweepScore]:
    """Every sweep of enough layouts among the runs that were predicted, in their order."""
    groups = members_of(items)
    alike = grouped((first.run.sweep, _stack_of(first)) for first, *_ in groups.values())
    scores = (_score(members, alike[members[0].run.sweep]) for members in groups.values())
    return [score for score in scores if score is not None]


def members_of(items: Sequence[Scored]) -> dict[Any, list[Scored]]:
    """Predicted runs by sweep."""
    predicted = (item for item in items if item.error is not None)
    kernels = attrgetter(*_KERNELS)
    return grouped(((item.run.sweep, kernels(_stack_of(item))), item) for item in predicted)


def layouts_of(members: Sequence[Scored]) -> tuple[Layout, ...]:
    """A sweep's layouts, in their order; runs of one plan that we find equally fast are repeats."""
    found = grouped(((plan_of(item), item.step_time_s), item) for item in members)
    return tuple(Layout(tuple(runs)) for runs in found.values())


def _score(members: list[Scored], alike: Sequence[StackSpec]) -> SweepScore | None:
    from scipy.stats import kendalltau

    layouts = layouts_of(members)
    plans = {layout.plan for layout in layouts}
    if len(plans) < FEWEST:
        return None
    tau = float(kendalltau([each.measured_s for each in layouts], [each.predicted_s for each in layouts]).statistic)
    first = members[0].run
    return SweepScore(
        _name(first.choices[0], first.sweep) + _kernel_words(_stack_of(members[0]), alike),
        first.source,
        layouts,
        None if np.isnan(tau) else tau,
        min(layouts, key=lambda layout: layout.predicted_s),
        min(layouts, key=lambda layout: layout.measured_s),
        tuple(name for name in ParallelPlan.model_fields if len({getattr(plan, name) for plan in plans}) > 1),
    )


def plan_words(plan: ParallelPlan, names: Sequence[str]) -> str:
    """Some fields of a plan in a few words; those that nothing is said of are as everywhere in the sweep."""
    return " ".join(f"{_LABELS.get(name, name + ' ')}{getattr(plan, name)}" for name in names)


def plan_of(item: Scored) -> ParallelPlan:
    """A run's layout."""
    return item.run.choices[0].plan


def _stack_of(item: Scored) -> StackSpec:
    return item.run.choices[0].stack


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
