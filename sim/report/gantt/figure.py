"""Gantt charts as figures: what every pipeline rank does when, what follows, and what it keeps in memory meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.engines import Timeline
from sim.report.facts import microbatch_words, plan_degrees
from sim.report.figures import check_width, new_figure, place_title
from sim.report.gantt.chart import played_chart, window_of
from sim.report.gantt.lanes import draw_bars, draw_lanes, draw_time_axis, legend_handles, mark_breaks, place_legend
from sim.report.gantt.step_view import StepView
from sim.report.gantt.window import Window
from sim.report.palette import LOOKS
from sim.units import show, show_time

PLACES_PER_INCH = 24.0
"""Forwards side by side in an inch of axis that can still be told apart."""
LANES = 0.84
"""Width of the lanes, of the figure."""


def gantt_figure(
    view: StepView, *, between: tuple[float | None, float | None] = (None, None), width_in: float = 11.0
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
    window = window_of([view], LANES * width_in * PLACES_PER_INCH, between)
    ranks = view.program.order.num_ranks
    lanes_in = float(np.clip(0.34 * ranks, 0.7, 7.5))
    figure = new_figure(width_in, lanes_in + 2.75 + 0.35 * (width_in < 9))
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=(lanes_in, 1.15))
    figure.get_layout_engine().set(h_pad=0.03, hspace=0.02)
    point_in = 72.0 * LANES * width_in / window.width
    seen = draw_lanes(lanes, view, window, points_per_s=point_in, lane_points=72.0 * lanes_in / ranks)
    _name_ranks(lanes, view, lanes_in)
    _draw_memory(memory, view, window, width_in)
    for axes in (lanes, memory):
        mark_breaks(axes, window, labelled=axes is lanes)
    draw_time_axis(memory, window, view.horizon, about=max(4, int(width_in)))
    lanes.tick_params(axis="x", length=0)
    place_legend(figure, legend_handles(view, seen), width_in)
    answer = view.answer
    title = (
        f"{view.scenario.model.name}, {view.scenario.plan.schedule}: {view.period} {show_time(answer.step_time_s)}, "
        f"bubble {answer.bubble_fraction:.1%}"
    )
    place_title(figure, title, size=12 if width_in >= 8 else 10, bold=True)
    lanes.set_title(_subtitle(view, width_in), loc="left", fontsize=8.5, color="#444444")
    return figure


def _subtitle(view: StepView, width_in: float) -> str:
    """The machine, the plan, and how the drawing is to be read."""
    plan, answer = view.scenario.plan, view.answer
    slices = f" in {plan.sequence_slices} slices" if plan.sequence_slices > 1 else ""
    parts = [
        f"{answer.num_gpus:,} × {view.scenario.cluster.gpu.name}",
        plan_degrees(plan, chunks=True),
        f"{microbatch_words(answer)}{slices} a step",
    ]
    notes = []
    if view.streams:
        notes.append("no flush: the first two batches, later ones follow in the same rhythm")
        exposed = view.answer.timeline.exposed_reduce_s.max() if view.program.hide_grad_reduce else 0.0
        if exposed > 0:
            notes.append(f"each batch's time includes {show_time(float(exposed))} of exposed reduction, not drawn")
    if view.begin.max() > 0:
        notes.append("a rank begins its next step without waiting for the others, so grey shows each rank's own step")
    lines = [" · ".join(parts)] if width_in >= 9 else [" · ".join(parts[:2]), parts[2]]
    return "\n".join([*lines, *notes]) + "\n"


def _name_ranks(axes: Any, view: StepView, lanes_in: float) -> None:
    """Rank numbers on the left; at the right how much of the step each is idle."""
    ranks = view.program.order.num_ranks
    every = int(np.ceil(0.15 * ranks / lanes_in))
    shown = sorted({*range(0, ranks, every)} - ({ranks - 1 - i for i in range(1, every)} if every > 1 else set()))
    shown = sorted({*shown, ranks - 1})
    axes.set_yticks(shown, [f"rank {rank}" if ranks <= 12 else str(rank) for rank in shown], fontsize=8)
    axes.set_ylabel("" if ranks <= 12 else "pipeline rank", fontsize=9)
    idle = np.clip(1 - view.share, 0.0, 1.0)
    versions, _ = view.versions()
    text = [f"{idle[rank]:.1%}" + (f" · {versions[rank]}" if view.streams else "") for rank in shown]
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(shown, text, fontsize=8, color="#444444")
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    heading = "idle share\nof the step" if not view.streams else "idle · weight\nversions"
    right.text(1.004, 1.0, heading, transform=axes.transAxes, fontsize=8, va="bottom", ha="left", color="#444444")


def _draw_memory(axes: Any, view: StepView, window: Window, width_in: float) -> None:
    """Activations kept on the first, the middle and the last rank, and on the fullest."""
    curves = view.kept()
    peaks = [float(held.max(initial=0.0)) for _, held in curves]
    last = len(curves) - 1
    chosen = sorted({0, last // 2, last})
    fullest = int(np.argmax(peaks))
    if peaks[fullest] > 1.001 * max(peaks[rank] for rank in chosen):
        chosen = sorted({*chosen, fullest})
    styles = [("#000000", "-", 1.3), ("#777777", "-", 1.3), ("#000000", (0, (4, 1.5)), 1.0), ("#777777", ":", 1.3)]
    top = max(peaks) or 1.0
    for rank, (colour, line, width) in zip(chosen, styles, strict=False):
        times, held = curves[rank]
        for begin, end in window.spans:
            before = held[times <= begin]
            level = before[-1:] if len(before) else np.zeros(1)
            here = (times > begin) & (times < end)
            t = np.concatenate([[begin], times[here], [end]])
            y = np.concatenate([level, held[here], held[here][-1:] if here.any() else level])
            label = f"rank {rank}: up to {show(peaks[rank], 'B')}" if begin == window.spans[0][0] else None
            axes.plot(
                _inside(window, t, begin, end), y, drawstyle="steps-post", color=colour, ls=line, lw=width, label=label
            )
    peak_s = float(curves[fullest][0][int(np.argmax(curves[fullest][1]))])
    if any(begin <= peak_s <= end for begin, end in window.spans):
        axes.plot(window.place(peak_s), peaks[fullest], "v", color="#D55E00", markersize=5, clip_on=False)
    axes.set_ylim(0, 1.42 * top)
    scale = next((s for s in (1e12, 1e9, 1e6, 1e3) if top >= s), 1.0)
    unit = {1e12: "TB", 1e9: "GB", 1e6: "MB", 1e3: "kB", 1.0: "B"}[scale]
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    axes.yaxis.get_major_locator().set_params(nbins=4)
    axes.set_ylabel(f"activations\nkept [{unit}]", fontsize=9)
    axes.tick_params(labelsize=8)
    size = 8 if width_in >= 8 else 6.5
    look = {"facecolor": "white", "edgecolor": "none", "framealpha": 1.0, "borderpad": 0.1}
    legend = axes.legend(loc="upper left", ncols=4, fontsize=size, borderaxespad=0.2, handlelength=1.6, **look)
    legend.set_zorder(10)  # above a break
    axes.spines[["top", "right"]].set_visible(False)


def _inside(window: Window, times: Array, begin: float, end: float) -> Array:
    """Places of moments of one stretch, without its edges slipping into a break."""
    return np.asarray(float(window.place(begin)) + np.clip(times, begin, end) - begin)


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
    steps = [view.answer.step_time_s for view in views]
    order = "; fastest first" if len(steps) > 1 and steps == sorted(steps) else ""
    return (
        f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}: one step under "
        f"{len(views)} schedule{'s' if len(views) > 1 else ''}\n"
        f"{plan_degrees(scenario.plan)} · {microbatch_words(answer)}{order}"
    )


def timeline_figure(timeline: Timeline, width_in: float = 9.0) -> Any:
    """What the engine played: every rank's actions. Repetitions that it left out are left out here too.

    Raises
    ------
    SpecError
        The engine gives totals only, or a width out of range.
    """
    from matplotlib.patches import Patch

    chart = played_chart(timeline)
    actions = [bars for bars in chart.bars if bars.action is not None]
    figure = new_figure(width_in, float(np.clip(0.28 * chart.num_ranks, 0.8, 6.0)) + 1.3)
    axes = figure.subplots()
    for bars in actions:
        draw_bars(axes, chart, bars)
    axes.set_xlim(0, chart.window.width)
    axes.set_ylim(chart.num_ranks - 0.5, -0.5)
    axes.set_ylabel("pipeline rank", fontsize=9)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    mark_breaks(axes, chart.window, labelled=True)
    draw_time_axis(axes, chart.window, chart.window.spans[-1][1], about=int(width_in))
    axes.set_title(timeline_title(timeline), loc="left", fontsize=10, fontweight="bold")
    handles = [Patch(color=LOOKS[bars.what].colour, label=LOOKS[bars.what].name) for bars in actions]
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=8, handlelength=1.2)
    return figure


def timeline_title(timeline: Timeline) -> str:
    """What was played, in a line."""
    order = timeline.program.order
    folded = "; repetitions left out" if order.fold is not None else ""
    return f"{order.schedule}: step {show_time(timeline.step_time_s)}, engine {timeline.engine}{folded}"
