"""The traced timeline of one step next to the simulated one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flopcast_validation.job.compare import JobResult
from sim.canvas import new_figure
from sim.report.figures import open_panels, place_title, save
from sim.schedules.actions import KINDS

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
