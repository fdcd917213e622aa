"""Gantt charts of several schedules, one below the other on one time axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.report.facts import microbatch_words, plan_degrees
from sim.report.figures import check_width, new_figure, place_title
from sim.report.gantt.chart import window_of
from sim.report.gantt.figure import LANES, PLACES_PER_INCH
from sim.report.gantt.lanes import draw_lanes, draw_time_axis, legend_handles, mark_breaks, place_legend
from sim.report.gantt.step_view import StepView
from sim.units import show, show_time


def comparison_figure(views: Sequence[StepView], *, width_in: float = 11.0) -> Any:
    """The Gantt charts of several schedules, one below the other on one time axis, as a matplotlib figure.

    Parameters and raises as for `gantt_figure`.
    """
    check_width(width_in)
    window = window_of(views, LANES * width_in * PLACES_PER_INCH)
    heights = [float(np.clip(0.085 * view.program.order.num_ranks, 0.42, 0.95)) for view in views]
    figure = new_figure(width_in, sum(heights) + 0.31 * len(views) + 1.5)
    rows = figure.subplots(len(views), 1, sharex=True, squeeze=False, height_ratios=heights)
    figure.get_layout_engine().set(h_pad=0.02, hspace=0.0)
    handles: dict[str, Any] = {}
    fastest = min(view.answer.step_time_s for view in views)
    for axes, view, height in zip(rows[:, 0], views, heights, strict=True):
        # Of a stream without flush a stretch of its steady state is drawn.
        shift = max(0.0, view.horizon - view.answer.step_time_s) if view.streams else 0.0
        point_in = 72.0 * 0.92 * width_in / window.width
        lane_points = 72.0 * height / view.program.order.num_ranks
        look = {"points_per_s": point_in, "lane_points": lane_points}
        seen = draw_lanes(axes, view, window, **look, shift=shift, versions=False)
        for handle in legend_handles(view, seen, durations=False):
            handles.setdefault(handle.get_label(), handle)
        step = view.answer.step_time_s
        if step > window.spans[-1][1] * (1 + 1e-9):
            axes.text(window.width, -0.6, f"goes on to {show_time(step)} →", fontsize=7, ha="right", va="bottom")
        else:
            axes.axvline(float(window.place(step)), color="black", linewidth=1.2)
        slower = "" if step <= fastest * (1 + 1e-9) else f" (+{step / fastest - 1:.1%})"
        axes.set_title(_headline(view, slower, width_in), loc="left", fontsize=8.5 if width_in >= 8 else 7, pad=2)
        mark_breaks(axes, window, labelled=view is views[0])
        axes.set_yticks([])
        axes.tick_params(axis="x", length=0)
    last = rows[-1, 0]
    draw_time_axis(last, window, window.spans[-1][1], about=max(4, int(width_in)))
    last.tick_params(axis="x", length=3)
    figure.supylabel("pipeline ranks, the first on top", fontsize=8)
    place_legend(figure, list(handles.values()), width_in)
    place_title(figure, _shared_title(views), size=12 if width_in >= 8 else 9, bold=True)
    return figure


def _headline(view: StepView, slower: str, width_in: float) -> str:
    """One schedule of several, in a line."""
    plan, answer = view.scenario.plan, view.answer
    peak = max(use.activations for use in answer.memory)
    sizes = [f"{plan.num_chunks} chunks"] if plan.num_chunks > 1 else []
    sizes += [f"{plan.sequence_slices} slices"] if plan.sequence_slices > 1 else []
    order = view.program.order
    sizes += [f"{order.copies} copies of the weights"] if order.copies > 1 else []
    versions, late = view.versions()
    sizes += [f"up to {versions.max()} weight versions, gradients up to {late.max()} late"] if view.streams else []
    name = plan.schedule.replace("$", r"\$")
    if re.fullmatch(r"\w+", name):
        name = rf"$\bf{{{name.replace('_', chr(92) + '_')}}}$"
    detail = f"  ({', '.join(sizes)})" if sizes else ""
    space = "\n" if detail and width_in < 8 else ""
    return (
        f"{name}  {view.period} {show_time(answer.step_time_s)}{slower} · bubble {answer.bubble_fraction:.1%} · "
        f"activations up to {show(peak, 'B')}{space}{detail}"
    )


def _shared_title(views: Sequence[StepView]) -> str:
    scenario, answer = views[0].scenario, views[0].answer
    return (
        f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}: one step under "
        f"{len(views)} schedule{'s' if len(views) > 1 else ''}\n"
        f"{plan_degrees(scenario.plan)} · {microbatch_words(answer)}; fastest first"
    )
