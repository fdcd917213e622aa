"""Gantt charts of several schedules, one below the other on one time axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.report.figures import check_paths, check_width, new_figure, save, window_of
from sim.report.lanes import draw_lanes
from sim.report.legend import draw_time_axis, legend_handles, mark_breaks, place_legend
from sim.report.scene import Scene
from sim.report.text import layout_words
from sim.units import show, show_time


def draw_comparison(scenes: Sequence[Scene], paths: Sequence[Path], *, width_in: float = 11.0) -> None:
    """Write the Gantt charts of several schedules, one below the other on one time axis.

    Parameters and raises as for `draw_gantt`.
    """
    check_paths(paths)
    save(comparison_figure(scenes, width_in=width_in), paths)


def comparison_figure(scenes: Sequence[Scene], *, width_in: float = 11.0) -> Any:
    """The Gantt charts of several schedules, one below the other on one time axis, as a matplotlib figure.

    Parameters and raises as for `gantt_figure`.
    """
    check_width(width_in)
    window = window_of(scenes, width_in)
    heights = [float(np.clip(0.085 * scene.program.order.num_ranks, 0.42, 0.95)) for scene in scenes]
    figure = new_figure(width_in, sum(heights) + 0.31 * len(scenes) + 1.5)
    rows = figure.subplots(len(scenes), 1, sharex=True, squeeze=False, height_ratios=heights)
    figure.get_layout_engine().set(h_pad=0.02, hspace=0.0)
    handles: dict[str, Any] = {}
    fastest = min(scene.answer.step_time_s for scene in scenes)
    for axes, scene, height in zip(rows[:, 0], scenes, heights, strict=True):
        moved = _one_step(scene)
        point_in = 72.0 * 0.92 * width_in / window.width
        lane_points = 72.0 * height / scene.program.order.num_ranks
        seen = draw_lanes(
            axes, scene, window, points_per_s=point_in, lane_points=lane_points, shift=moved, versions=False
        )
        for handle in legend_handles(scene, seen, durations=False):
            handles.setdefault(handle.get_label(), handle)
        step = scene.answer.step_time_s
        if step > window.spans[-1][1] * (1 + 1e-9):
            axes.text(window.width, -0.6, f"goes on to {show_time(step)} →", fontsize=7, ha="right", va="bottom")
        else:
            axes.axvline(float(window.place(step)), color="black", linewidth=1.2)
        slower = "" if step <= fastest * (1 + 1e-9) else f" (+{step / fastest - 1:.1%})"
        axes.set_title(_headline(scene, slower, width_in), loc="left", fontsize=8.5 if width_in >= 8 else 7, pad=2)
        mark_breaks(axes, window, labelled=scene is scenes[0])
        axes.set_yticks([])
        axes.tick_params(axis="x", length=0)
    last = rows[-1, 0]
    draw_time_axis(last, window, window.spans[-1][1], about=max(4, int(width_in)))
    last.tick_params(axis="x", length=3)
    figure.supylabel("pipeline ranks, the first on top", fontsize=8)
    place_legend(figure, list(handles.values()), width_in)
    figure.suptitle(
        _shared_title(scenes),
        parse_math=False,
        x=0.01,
        ha="left",
        fontsize=12 if width_in >= 8 else 9,
        fontweight="bold",
    )
    return figure


def _one_step(scene: Scene) -> float:
    """Where the step that is drawn begins: of a stream without flush, a stretch of its steady state. [s]"""
    return max(0.0, scene.horizon - scene.answer.step_time_s) if scene.streams else 0.0


def _headline(scene: Scene, slower: str, width_in: float) -> str:
    """One schedule of several, in a line."""
    plan, answer = scene.scenario.plan, scene.answer
    peak = max(use.activations for use in answer.memory)
    sizes = [f"{plan.num_chunks} chunks"] if plan.num_chunks > 1 else []
    sizes += [f"{plan.sequence_slices} slices"] if plan.sequence_slices > 1 else []
    order = scene.program.order
    sizes += [f"{order.copies} copies of the weights"] if order.copies > 1 else []
    versions, late = scene.versions()
    sizes += [f"up to {versions.max()} weight versions, gradients up to {late.max()} late"] if scene.streams else []
    name = plan.schedule.replace("$", r"\$")
    if re.fullmatch(r"\w+", name):
        name = rf"$\bf{{{name.replace('_', chr(92) + '_')}}}$"
    noun = "a batch every" if scene.streams else "step"
    detail = f"  ({', '.join(sizes)})" if sizes else ""
    space = "\n" if detail and width_in < 8 else ""
    return (
        f"{name}  {noun} {show_time(answer.step_time_s)}{slower} · bubble {answer.bubble_fraction:.1%} · "
        f"activations up to {show(peak, 'B')}{space}{detail}"
    )


def _shared_title(scenes: Sequence[Scene]) -> str:
    scenario, answer = scenes[0].scenario, scenes[0].answer
    plan = scenario.plan
    return (
        f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}: one step under "
        f"{len(scenes)} schedule{'s' if len(scenes) > 1 else ''}\n"
        f"{layout_words(plan)} · {answer.num_microbatches:,} micro-batches of "
        f"{plan.microbatch_size}; fastest first"
    )
