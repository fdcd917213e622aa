"""Predict every configuration, then run it, and set the two side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from flopcast_validation.job.configs import Configuration, GptShape
from flopcast_validation.job.launch import launch, run_configuration
from flopcast_validation.job.predict import CalibratedMachine, predict
from sim.canvas import new_figure
from sim.engines import Timeline
from sim.errors import FlopcastError
from sim.report.figures import open_panels, place_title, save
from sim.schedules.actions import KINDS

LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 5e-3}
"""Relative, by precision. The cut job adds the same numbers in another order: rounding, which some steps of Adam let
grow. Each time a bf16 number is rounded it is off by up to 2e-3 (8 significant bits), and Adam's first steps follow the
sign of even the smallest gradients; the mean over all tokens' losses evens out most of it."""


@dataclass(slots=True)
class JobResult:
    """One configuration: predicted before it ran, measured in every repeat so far. [s]"""

    configuration: Configuration
    predicted_s: float
    timeline: Timeline
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    loss_error: float = 0.0
    foreign_share: float = 0.0
    trace: list[Any] = field(default_factory=list)

    @property
    def measured_s(self) -> float:
        """Median over the repeats. [s]"""
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        names = ("predicted_s", "measured_s", "error", "losses", "loss_error", "foreign_share")
        found = {name: getattr(self, name) for name in names}
        return {"name": self.configuration.name, **asdict(self.configuration), **found, "repeats_s": self.seconds}


def predict_all(shape: GptShape, suite: tuple[Configuration, ...], machine: CalibratedMachine) -> list[JobResult]:
    """A row for each configuration, not measured yet."""
    timelines = [predict(shape, cut, machine) for cut in suite]
    return [JobResult(cut, timeline.step_time_s, timeline) for cut, timeline in zip(suite, timelines, strict=True)]


def measure_all(
    rows: list[JobResult],
    shape: GptShape,
    device: str,
    steps: int,
    repeats: int,
    patience_s: float,
    report: Callable[[JobResult, int], None],
) -> None:
    """Run every configuration once, then all again: what the machine does meanwhile meets all of them alike.

    Each run times `steps` steps, and waits up to `patience_s` [s] for other programs; `report` is told (row, repeat) as
    soon as it is over. Losses that are not those of the single process, or do not fall, are a FlopcastError.
    """
    for repeat in range(repeats):
        for row in rows:
            result = run_configuration(shape, row.configuration, device, steps, patience_s)
            row.seconds.append(statistics.median(result["seconds"]))
            row.foreign_share = max(row.foreign_share, result["foreign_share"])
            row.trace = result["trace"]
            if repeat == 0:
                row.losses = result["losses"]
                row.loss_error = check_losses(row.losses, shape, row.configuration, device)
            report(row, repeat)


_single: dict[tuple[GptShape, int, int, str], list[float]] = {}


def check_losses(losses: list[float], shape: GptShape, cut: Configuration, device: str, most_steps: int = 6) -> float:
    """Largest relative difference between the job's losses and those of one process that sees the whole batch.

    Where that does not fit one GPU, the first configuration to run with so large a batch stands for it.
    """
    key = (shape, cut.global_batch_size, cut.num_experts, device)
    if key not in _single:
        plain, batch = Configuration(num_experts=cut.num_experts), cut.global_batch_size
        alone = {"shape": asdict(shape), "configuration": asdict(plain), "device": device, "batch": batch}
        _single[key] = launch("flopcast_validation.job.train", alone | {"steps": most_steps}, 1) or losses[:most_steps]
    expected = _single[key]
    tolerance = LOSS_TOLERANCE[shape.precision]
    pairs = list(zip(losses, expected, strict=False))
    worst = max(abs(ours / theirs - 1.0) for ours, theirs in pairs)
    if worst > tolerance:
        raise FlopcastError(
            f"{cut.name}: losses {losses[: len(expected)]} are not the single process's {expected}: they differ by "
            f"{worst:.1e}, more than {tolerance:.0e}; the cut changes what is computed"
        )
    if min(losses[-3:]) >= losses[0]:
        raise FlopcastError(f"{cut.name}: the loss does not fall: {losses}; nothing is learned")
    return worst


def summary(rows: list[JobResult]) -> dict[str, float]:
    """Median, mean and largest absolute relative error, and Kendall's tau between predicted and measured times."""
    done = [row for row in rows if row.seconds]
    errors = [abs(row.error) for row in done]
    predicted, measured = ([getattr(row, name) for row in done] for name in ("predicted_s", "measured_s"))
    return {
        "configurations": len(done),
        "median_abs_error": statistics.median(errors),
        "mean_abs_error": statistics.fmean(errors),
        "max_abs_error": max(errors),
        "kendall_tau": float(kendalltau(predicted, measured).statistic) if len(done) > 1 else 1.0,
    }


Bar = tuple[int, str, int, int, float, float]
"""(pipeline rank, kind, micro-batch, chunk, begin, end) [s]"""
_COLOURS = {"F": "#4c78a8", "B": "#f2a65a", "I": "#f2a65a", "W": "#9d7660"}


def traced_bars(trace: list[dict[str, Any]], num_ranks: int) -> tuple[list[Bar], float]:
    """What the first replica's first tensor-parallel process of each pipeline rank did, and when the step ended."""
    zero = min(rank["begin"] for rank in trace)
    bars = [
        (rank["pp"], kind, microbatch, stage // num_ranks, begin - zero, end - zero)
        for rank in trace
        if rank["dp"] == 0 and rank["tp"] == 0
        for kind, stage, microbatch, begin, end in rank["events"]
    ]
    return bars, max(rank["end"] for rank in trace) - zero


def simulated_bars(row: JobResult) -> tuple[list[Bar], float]:
    """What the engine had each pipeline rank do."""
    timeline = row.timeline
    order = timeline.program.order
    bars = [
        (int(rank), str(KINDS[kind]), int(microbatch), int(stage) // order.num_ranks, float(start), float(end))
        for rank, kind, microbatch, stage, start, end in zip(
            order.rank, order.kind, order.microbatch, order.stage, timeline.start, timeline.end, strict=True
        )
    ]
    return bars, timeline.step_time_s


def draw(row: JobResult, path: Path) -> None:
    """Both timelines over one time axis; what follows the last bar is gradient reduction, update and gathering."""
    from matplotlib.patches import Patch

    ranks = row.configuration.pp
    panels = [("measured", *traced_bars(row.trace, ranks)), ("simulated", *simulated_bars(row))]
    figure = new_figure(9, 1.6 + 1.0 * ranks)
    axes = figure.subplots(2, 1, sharex=True)
    for axis, (title, bars, end) in zip(axes, panels, strict=True):
        for rank, kind, microbatch, chunk, start, stop in bars:
            look = {"color": _COLOURS[kind], "edgecolor": "white", "alpha": 1 - 0.35 * chunk}
            axis.barh(rank, stop - start, left=start, height=0.8, **look)
            axis.text((start + stop) / 2, rank, str(microbatch), ha="center", va="center", fontsize=7, color="white")
        axis.axvline(end, color="black", linewidth=1)
        edge = axis.get_xaxis_transform()  # seconds across, the panel's height upwards: clear of the bars
        axis.annotate(f"{end * 1e3:.0f} ms", (end, 1.0), xycoords=edge, ha="center", va="bottom", fontsize=8)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axis.invert_yaxis()
        open_panels(axis)
    axes[-1].set_xlabel("time [s]")
    legend = [Patch(color=_COLOURS["F"], label="forward"), Patch(color=_COLOURS["B"], label="backward")]
    if row.configuration.num_chunks > 1:
        legend.append(Patch(color=_COLOURS["F"], alpha=0.65, label="later chunk, paler"))
    figure.legend(handles=legend, loc="outside upper right", ncols=len(legend), frameon=False, fontsize=8)
    place_title(figure, row.configuration.name)
    save(figure, path)
