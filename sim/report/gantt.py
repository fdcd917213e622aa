"""Gantt charts: what every pipeline rank does when, what follows, and what it keeps in memory meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.report.figures import check_paths, check_width, new_figure, save, window_of
from sim.report.lanes import draw_lanes
from sim.report.legend import draw_time_axis, legend_handles, mark_breaks, place_legend
from sim.report.memory import draw_memory
from sim.report.scene import Scene
from sim.report.text import layout_words
from sim.units import show_time


def draw_gantt(
    scene: Scene,
    paths: Sequence[Path],
    *,
    between: tuple[float | None, float | None] = (None, None),
    width_in: float = 11.0,
) -> None:
    """Write a Gantt chart of a step with its memory below.

    Parameters
    ----------
    paths : sequence of Path
        .png or .svg.
    between, width_in
        As for `gantt_figure`.

    Raises
    ------
    SpecError
        A stretch that is none, a width out of range, or a path that cannot be written.
    """
    check_paths(paths)
    save(gantt_figure(scene, between=between, width_in=width_in), paths)


def gantt_figure(
    scene: Scene, *, between: tuple[float | None, float | None] = (None, None), width_in: float = 11.0
) -> Any:
    """A Gantt chart of a step with its memory below, as a matplotlib figure.

    Parameters
    ----------
    between : (from, to)
        A stretch of the step; without, all of it, or its beginning and end where it is too long to be read. [s]
    width_in : float
        [inches]

    Raises
    ------
    SpecError
        A stretch that is none, or a width out of range.
    """
    check_width(width_in)
    window = window_of([scene], width_in, between)
    ranks = scene.program.order.num_ranks
    lanes_in = float(np.clip(0.34 * ranks, 0.7, 7.5))
    figure = new_figure(width_in, lanes_in + 2.75 + 0.35 * (width_in < 9))
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=(lanes_in, 1.15))
    figure.get_layout_engine().set(h_pad=0.03, hspace=0.02)
    point_in = 72.0 * 0.84 * width_in / window.width
    seen = draw_lanes(lanes, scene, window, points_per_s=point_in, lane_points=72.0 * lanes_in / ranks)
    _name_ranks(lanes, scene, lanes_in)
    draw_memory(memory, scene, window, width_in)
    for axes in (lanes, memory):
        mark_breaks(axes, window, labelled=axes is lanes)
    draw_time_axis(memory, window, scene.horizon, about=max(4, int(width_in)))
    lanes.tick_params(axis="x", length=0)
    place_legend(figure, legend_handles(scene, seen), width_in)
    figure.suptitle(
        _title(scene), parse_math=False, x=0.01, ha="left", fontsize=12 if width_in >= 8 else 10, fontweight="bold"
    )
    lanes.set_title(_subtitle(scene, width_in), loc="left", fontsize=8.5, color="#444444")
    return figure


def _title(scene: Scene) -> str:
    answer = scene.answer
    period = "a batch every" if scene.streams else "step"
    return (
        f"{scene.scenario.model.name}, {scene.scenario.plan.schedule}: {period} {show_time(answer.step_time_s)}, "
        f"bubble {answer.bubble_fraction:.1%}"
    )


def _subtitle(scene: Scene, width_in: float) -> str:
    plan, answer = scene.scenario.plan, scene.answer
    chunks = f" × {plan.num_chunks} chunks" if plan.num_chunks > 1 else ""
    slices = f" in {plan.sequence_slices} slices" if plan.sequence_slices > 1 else ""
    parts = [
        f"{answer.num_gpus:,} × {scene.scenario.cluster.gpu.name}",
        layout_words(plan, chunks),
        f"{answer.num_microbatches:,} micro-batches of {plan.microbatch_size}{slices} a step",
    ]
    notes = []
    if scene.streams:
        notes.append("no flush: the first two batches, later ones follow in the same rhythm")
        exposed = scene.answer.timeline.exposed_reduce.max() if scene.program.hide_grad_reduce else 0.0
        if exposed > 0:
            notes.append(f"each batch's time includes {show_time(float(exposed))} of exposed reduction, not drawn")
    if scene.begin.max() > 0:
        notes.append("a rank begins its next step without waiting for the others, so grey shows each rank's own step")
    lines = [" · ".join(parts)] if width_in >= 9 else [" · ".join(parts[:2]), parts[2]]
    return "\n".join([*lines, *notes]) + "\n"


def _name_ranks(axes: Any, scene: Scene, lanes_in: float) -> None:
    """Rank numbers on the left; at the right how much of the step each is idle."""
    ranks = scene.program.order.num_ranks
    every = int(np.ceil(0.15 * ranks / lanes_in))
    shown = sorted({*range(0, ranks, every)} - ({ranks - 1 - i for i in range(1, every)} if every > 1 else set()))
    shown = sorted({*shown, ranks - 1})
    axes.set_yticks(shown, [f"rank {rank}" if ranks <= 12 else str(rank) for rank in shown], fontsize=8)
    axes.set_ylabel("" if ranks <= 12 else "pipeline rank", fontsize=9)
    idle = np.clip(1 - scene.share, 0.0, 1.0)
    versions, _ = scene.versions()
    text = [f"{idle[rank]:.1%}" + (f" · {versions[rank]}" if scene.streams else "") for rank in shown]
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(shown, text, fontsize=8, color="#444444")
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    heading = "idle share\nof the step" if not scene.streams else "idle · weight\nversions"
    right.text(1.004, 1.0, heading, transform=axes.transAxes, fontsize=8, va="bottom", ha="left", color="#444444")
