"""Sweeps of layouts: which one we would pick, which was the fastest, how alike the orders are, what misleads us.

A sweep keeps machine, model, batch and precision (`calibration.readers.families.sweep_of`); its runs differ in layout
and, where the source says so, in kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.specs import ParallelPlan

if TYPE_CHECKING:
    from validation.runs.score import Scored

FEWEST = 3
"""Layouts a sweep needs for a rank correlation."""
GOAL = 0.02
"""Regret that a planner can live with: about what repeats of one run differ by."""

AXES: dict[str, Callable[[ParallelPlan], float]] = {
    "tp": lambda plan: log2(plan.tp),
    "pp": lambda plan: log2(plan.pp),
    "micro-batch": lambda plan: log2(plan.microbatch_size),
    "chunks": lambda plan: log2(plan.num_chunks),
    "recompute": lambda plan: float(plan.recompute != "none"),
    "sequence parallel": lambda plan: float(plan.sequence_parallel),
}
"""Along which a bias is looked for: doublings of numbers, on against off of choices. dp follows from tp and pp."""


@dataclass(frozen=True, slots=True)
class SweepScore:
    """One sweep.

    count, layouts : runs, and distinct plans among them.
    tau : Kendall's, of measured and predicted step times; None where either is all ties.
    regret : how much slower the plan we would pick is than the fastest, as measured.
    picked, fastest : runs.
    differ : fields of the plan in which the sweep's runs differ.
    """

    name: str
    source: str
    count: int
    layouts: int
    tau: float | None
    regret: float
    picked: Scored
    fastest: Scored
    differ: tuple[str, ...]

    @property
    def believed_loss(self) -> float:
        """How much slower than the picked plan we take the fastest for."""
        return (self.fastest.step_time_s or 0.0) / (self.picked.step_time_s or 1.0) - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "sweep": self.name,
            "source": self.source,
            "runs": self.count,
            "layouts": self.layouts,
            "tau": self.tau,
            "regret": self.regret,
            "believed_loss": self.believed_loss,
            "picked": _run(self.picked),
            "fastest": _run(self.fastest),
        }


def sweeps_of(items: Sequence[Scored]) -> list[SweepScore]:
    """Every sweep of enough layouts among the runs that were predicted, in their order."""
    return [score for members in members_of(items).values() if (score := _score(members)) is not None]


def members_of(items: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Predicted runs by sweep."""
    sweeps: dict[str, list[Scored]] = {}
    for item in items:
        if item.error is not None:
            sweeps.setdefault(item.run.sweep, []).append(item)
    return sweeps


def _score(members: list[Scored]) -> SweepScore | None:
    from scipy.stats import kendalltau

    layouts = {_plan(item) for item in members}
    if len(layouts) < FEWEST:
        return None
    measured = np.array([measured_s(item) for item in members])
    predicted = np.array([item.step_time_s for item in members], dtype=float)
    tau = float(kendalltau(measured, predicted).statistic)
    picked = members[int(predicted.argmin())]
    fastest = members[int(measured.argmin())]
    regret = float(measured[predicted.argmin()] / measured.min() - 1.0)
    first = members[0].run
    return SweepScore(
        _name(first.choices[0], first.sweep), first.source, len(members), len(layouts), None if np.isnan(tau) else tau,
        regret, picked, fastest,
        tuple(name for name in ParallelPlan.model_fields if len({getattr(plan, name) for plan in layouts}) > 1),
    )  # fmt: skip


def biases(items: Sequence[Scored], least: int = 10) -> dict[str, tuple[float, float, int]]:
    """By axis: log of predicted over measured step time that a doubling (or switching on) adds, standard error, runs.

    A least-squares fit to all axes at once with a constant of its own for every sweep, so that only what differs
    within sweeps counts. Positive: we find more of it too slow.

    Parameters
    ----------
    least : int
        Runs that must differ along an axis within their sweeps.
    """
    rows: list[np.ndarray] = []
    errors: list[np.ndarray] = []
    for members in members_of(items).values():
        if len({_plan(item) for item in members}) < FEWEST:
            continue
        table = np.array([[axis(_plan(item)) for axis in AXES.values()] for item in members])
        rows.append(table - table.mean(axis=0))
        own = np.array([log(1.0 + (item.error or 0.0)) for item in members])
        errors.append(own - own.mean())
    if not rows:
        return {}
    table, error = np.concatenate(rows), np.concatenate(errors)
    moved = (np.abs(table) > 1e-9).sum(axis=0)
    used = [index for index in range(len(AXES)) if moved[index] >= least]
    if not used or len(error) <= len(rows) + len(used):
        return {}
    slopes, _, rank, _ = np.linalg.lstsq(table[:, used], error, rcond=None)
    if rank < len(used):
        return {}
    left = error - table[:, used] @ slopes
    variance = float(left @ left) / (len(error) - len(rows) - len(used))
    widths = np.sqrt(variance * np.diag(np.linalg.inv(table[:, used].T @ table[:, used])))
    names = list(AXES)
    return {
        names[index]: (float(slope), float(width), int(moved[index]))
        for index, slope, width in zip(used, slopes, widths, strict=True)
    }


def measured_s(item: Scored) -> float:
    """The measurement as a step time. [s]"""
    return item.run.step_time_s(item.run.choices[0])


def plan_words(item: Scored, names: Sequence[str]) -> str:
    """Some fields of a run's layout in a few words; those that nothing is said of are as everywhere in the sweep."""
    plan = _plan(item)
    labels = {"microbatch_size": "mbs ", "num_chunks": "chunks ", "schedule": "", "zero_stage": "ZeRO "}
    return " ".join(f"{labels.get(name, name + ' ')}{getattr(plan, name)}" for name in names)


def _plan(item: Scored) -> ParallelPlan:
    return item.run.choices[0].plan


def _name(scenario: Any, sweep: str) -> str:
    """Model, GPUs, sequence and batch of a sweep, as its rows call them."""
    _, gpu, gpus, model, length, batch, *_ = (*sweep.split(" | "), *[""] * 6)
    size = batch or str(scenario.training.global_batch_size)
    return f"{model or scenario.model.name}, {gpus} {gpu.split('-')[0]}, batch {size} × {length}"


def _run(item: Scored) -> dict[str, Any]:
    return {
        "id": item.run.id,
        "plan": _plan(item).model_dump(mode="json"),
        "measured_s": measured_s(item),
        "predicted_s": item.step_time_s,
    }
