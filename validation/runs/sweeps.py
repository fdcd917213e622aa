"""Sweeps of layouts: which one we would pick, which was the fastest, how alike the orders are.

A sweep keeps machine, model, batch and precision (`sweep_of` of `flopcast_calibration.readers.training_runs`) and the
kernels; its runs differ in layout, and in what overlaps with compute, which may come with a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from flopcast_validation.runs.scored import Scored, modelled
from flopcast_validation.tables import table_of
from sim.commands.options import finite
from sim.report.terminal import grouped
from sim.specs import ParallelPlan, StackSpec

FEWEST = 3
"""Layouts a sweep needs for a rank correlation."""
GOAL = 0.02
"""Regret that a planner can live with: about what repeats of one run differ by."""
_OTHER = ("overlap_", "fitted", "name", "parallel_save")
_KERNELS = tuple(name for name in StackSpec.model_fields if not name.startswith(_OTHER))
"""Fields of a stack that a planner does not choose."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan of a sweep, with every run of it: repeats count as one layout that takes their mean. [s]"""

    plan: ParallelPlan
    runs: tuple[Scored, ...]
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

    def words(self, layout: Layout) -> str:
        """What a plan differs in from others of the sweep, in a few words."""
        return " ".join(f"{LABELS.get(name, name + ' ')}{getattr(layout.plan, name)}" for name in self.differ)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        counts = {"sweep": self.name, "source": self.source, "runs": self.count, "layouts": len(self.layouts)}
        found = {name: getattr(self, name) for name in ("tau", "regret", "believed_loss")}
        return {**counts, **found, "picked": self.picked.to_dict(), "fastest": self.fastest.to_dict()}


def sweeps_of(items: Sequence[Scored]) -> list[SweepScore]:
    """Every sweep of enough layouts among the runs that were predicted, in their order."""
    kernels = attrgetter(*_KERNELS)
    groups = grouped(((item.run.sweep, kernels(item.run.choices[0].stack)), item) for item in modelled(items))
    alike = grouped((first.run.sweep, first.run.choices[0].stack) for first, *_ in groups.values())
    scores = (_score(members, alike[members[0].run.sweep]) for members in groups.values())
    return [score for score in scores if score is not None]


def _score(members: list[Scored], alike: Sequence[StackSpec]) -> SweepScore | None:
    from scipy.stats import kendalltau

    # Runs of one plan that we find equally fast are repeats.
    repeats = grouped(((item.run.choices[0].plan, item.step_time_s), item) for item in members)
    plans = {plan for plan, _ in repeats}
    if len(plans) < FEWEST:
        return None
    layouts = tuple(
        Layout(
            plan,
            tuple(runs),
            float(np.mean([item.run.step_time_s(item.run.choices[0]) for item in runs])),
            float(np.mean([item.step_time_s or 0.0 for item in runs])),
        )
        for (plan, _), runs in repeats.items()
    )
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


def summaries_of(sweeps: Sequence[SweepScore]) -> list[Any]:
    """A row for every source, in their order, and one for all; `within` counts sweeps whose regret is at most GOAL."""
    rows = pd.DataFrame(
        {name: [getattr(each, name) for each in sweeps] for name in ("source", "count", "regret", "tau")}
    )
    rows = rows.assign(tau=rows.tau.astype(float), within=rows.regret <= GOAL)
    columns = {
        "sweeps": ("regret", "size"), "runs": ("count", "sum"), "within": ("within", "sum"),
        "mean_regret": ("regret", "mean"), "median_regret": ("regret", "median"), "worst_regret": ("regret", "max"),
        "mean_tau": ("tau", "mean"),
    }  # fmt: skip
    both = (each.groupby("source", sort=False).agg(**columns) for each in (rows, rows.assign(source="all")))
    return list(pd.concat(both).reset_index().itertuples(index=False, name="SweepSummary"))


LABELS = {"microbatch_size": "mbs ", "num_chunks": "chunks ", "schedule": "", "zero_stage": "ZeRO ",
          "sequence_parallel": "SP "}  # fmt: skip
SWEEPS = {
    "sweep": "name",
    "plans": lambda each: f"{len(each.layouts)}",
    "tau": "tau:.2f",
    "regret": "regret:.1%",
    "picked": lambda each: each.words(each.picked),
    "fastest": lambda each: each.words(each.fastest) if each.regret else "the same",
    "ours": lambda each: f"{each.believed_loss:+.1%}" if each.regret else "",
}
SOURCES = {
    "source": lambda each: short_name(each.source), "sweeps": "sweeps", "runs": "runs:,", "within": "within",
    "mean": "mean_regret:.1%", "median": "median_regret:.1%", "worst": "worst_regret:.1%", "tau": "mean_tau:.2f",
}  # fmt: skip


def print_sweeps(out: Any, scored: Sequence[Scored]) -> dict[str, Any]:
    """Print the sweeps; plain data of each and of each source."""
    sweeps = sweeps_of(scored)
    if not sweeps:
        out.print("no sweep of three layouts or more\n")
        return {"sweeps": [], "sweep_summaries": []}
    words, summaries = ("sweep", "picked", "fastest"), summaries_of(sweeps)
    for source, own in grouped((each.source, each) for each in sweeps).items():
        out.print(short_name(source))
        out.print(table_of(SWEEPS, own, left=words, wrap=words))
        out.print()
    out.print(table_of(SOURCES, summaries, wrap=("source",)))
    out.print(
        "A sweep keeps model, machine, batch, precision and kernels; its plans differ in layout, schedule, micro-batch "
        "and recomputation, and one measured several times counts once, by its mean. Sweeps of two plans are left out. "
        "regret: how much slower, as measured, the plan we would pick is than the fastest; ours: how much slower we "
        "take the fastest for. tau: Kendall's, of measured and predicted step times. "
        f"within: sweeps of at most {GOAL:.0%} regret.\n"
    )
    return {
        "sweeps": [each.to_dict() for each in sweeps],
        "sweep_summaries": finite([row._asdict() for row in summaries]),
    }


def short_name(source: str) -> str:
    """A source without what stands in brackets."""
    return source.partition(" (")[0]
