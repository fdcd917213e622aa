"""Gantt charts by matplotlib: what every pipeline rank does when, and what it keeps in memory meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.arrays import FloatArray, IntArray
from sim.canvas import new_figure
from sim.engines.tasks import COMPUTE, DATA, GRADIENTS
from sim.engines.timeline import TaskTable
from sim.report.facts import microbatch_words, plan_degrees
from sim.report.figures import LOOKS, ink, open_panels, place_title, shade
from sim.report.gantt.chart import Between, StepView, stretch
from sim.schedules.passes import weight_versions
from sim.units import show, show_time

LANES = 0.84
"""Width of the lanes, of the figure."""
LANE, THIN = 0.84, 0.13
"""Height of bars, and of what bars overlap, of a rank's row."""
NUMBER_POINTS, DIGIT = 6.0, 0.62
"""Font size of micro-batch numbers, and the width of a digit of it."""
EDGE_POINTS, LABEL_IN = 3.2, 2.2
"""Narrower bars have no edge. [points] Width of a label of the legend. [inches]"""
FAR = 1.4
"""Times the median step: schedules that take longer are cut off in a comparison, and say so."""
GREY = "#444444"


def gantt_figure(view: StepView, *, between: Between = (None, None), width_in: float = 11.0) -> Any:
    """A Gantt chart of a step with its memory below, as a matplotlib figure.

    between : A stretch of the step; all of it if not given. [s]
    width_in : [inches]
    """
    span = stretch(view.horizon, between)
    lanes_in = float(np.clip(0.34 * view.program.order.num_ranks, 0.7, 7.5))
    figure, (lanes, memory) = _panels(width_in, lanes_in + 2.75, (lanes_in, 1.15))
    seen = draw_lanes(lanes, view, span, LANES * width_in, lanes_in)
    _name_ranks(lanes, view, lanes_in)
    _draw_memory(memory, view, span[1])
    _draw_time_axis(memory)
    _place_legend(figure, legend_handles([view], seen), width_in)
    place_title(figure, f"{view.scenario.model.name}, {view.scenario.plan.schedule}: {view.words}", size=12, bold=True)
    lanes.set_title(_subtitle(view), loc="left", color=GREY, fontsize=8.5, parse_math=False)
    return figure


def comparison_figure(views: Sequence[StepView], *, width_in: float = 11.0) -> Any:
    """The Gantt charts of several schedules, one below the other on one time axis, as a matplotlib figure.

    width_in : [inches]
    """
    heights = [float(np.clip(0.085 * view.program.order.num_ranks, 0.42, 0.95)) for view in views]
    figure, panels = _panels(width_in, sum(heights) + 0.31 * len(views) + 1.5, heights)
    seen: set[str] = set()
    steps = [view.answer.step_time_s for view in views]
    # One schedule that is far slower than the others would make them small.
    end = max(step for step in steps if step <= FAR * np.median(steps))
    for panel, view, step, height in zip(panels, views, steps, heights, strict=True):
        # Of a stream without flush a stretch of its steady state is drawn.
        shift = max(0.0, view.horizon - step) if view.streams else 0.0
        seen |= draw_lanes(panel, view, (0.0, end), 0.92 * width_in, height, shift)
        panel.axvline(step, color="black", linewidth=1.2)
        panel.set_yticks([])
        slower = "" if step <= min(steps) * (1 + 1e-9) else f", {step / min(steps) - 1:.1%} slower"
        cut = ", cut off" if step > end * (1 + 1e-9) else ""
        panel.set_title(_headline(view, slower + cut), loc="left", fontsize=8.5, pad=2, parse_math=False)
    _draw_time_axis(panels[-1])
    figure.supylabel("pipeline ranks, the first on top", fontsize=8)
    _place_legend(figure, legend_handles(views, seen), width_in)
    scenario, answer, several = views[0].scenario, views[0].answer, len(views) > 1
    name = f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}"
    what = f"{name}: one step under {len(views)} schedule{'s' if several else ''}"
    ordered = "; fastest first" if several and steps == sorted(steps) else ""
    words = f"{what}\n{plan_degrees(scenario.plan)} · {microbatch_words(answer)}{ordered}"
    place_title(figure, words, size=12, bold=True)
    return figure


def _panels(width_in: float, height_in: float, heights: Sequence[float]) -> tuple[Any, Any]:
    """A figure, and its panels, one below the other."""
    figure = new_figure(width_in, height_in)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    figure.get_layout_engine().set(h_pad=0.02, hspace=0.01)
    return figure, panels


def step_bars(view: StepView) -> TaskTable:
    """Everything that ranks do in a step, in the order in which it is drawn: idle time lies under all else."""
    order, bars = view.program.order, view.bars()
    ranks, begun, sent = np.arange(order.num_ranks), view.timeline.begun_s, view.timeline.end > view.compute_end
    until = np.full(order.num_ranks, view.horizon) if view.streams else begun + view.answer.step_time_s

    def drawn(what: str, rank: IntArray, begin: FloatArray, end: FloatArray) -> TaskTable:
        return TaskTable(
            rank, np.full_like(rank, COMPUTE), np.full(len(rank), what), np.full_like(rank, -1), begin, end
        )

    idle = drawn("idle", ranks, begun * (not view.streams), until)
    keeps = np.flatnonzero(sent)  # sends that keep their rank
    sends = drawn("send", order.rank[keeps], view.compute_end[keeps], view.timeline.end[keeps])
    return TaskTable(*map(np.concatenate, zip(idle, bars, sends, strict=True)))


def draw_lanes(
    panel: Any, view: StepView, span: tuple[float, float], width_in: float, height_in: float, shift: float = 0.0
) -> set[str]:
    """Draw every rank's bars; return what was drawn, of LOOKS.

    span : The stretch of time that the panel shows, `width_in` wide and `height_in` high. [s], [inches]
    shift : Time at which the drawing begins. [s]
    """
    from matplotlib.collections import PolyCollection

    ranks, bars = view.program.order.num_ranks, step_bars(view)
    begin, end = (np.minimum(each, view.horizon) - shift for each in (bars.begin_s, bars.end_s))
    bars = bars._replace(begin_s=begin, end_s=end)
    bars = bars.where((end > max(span[0], 0.0)) & (begin < span[1]) & (end > begin))
    per_s = 72 * width_in / (span[1] - span[0])
    pale = np.where((bars.action >= 0) & (bars.what != "U"), view.paleness()[bars.action], 0.0)
    used = {(what, tone): shade(LOOKS[what].colour, tone) for what, tone in {*zip(bars.what, pale, strict=True)}}
    colours = [used[each] for each in zip(bars.what, pale, strict=True)]
    beside = np.isin(bars.stream, (DATA, GRADIENTS))
    high = np.where(bars.what == "idle", 1.0, np.where(beside, THIN, LANE))
    top = bars.rank + np.where(beside, (LANE - THIN) / 2, 0.0) - high / 2
    left, right = bars.begin_s, bars.end_s + (bars.what == "U") * 1.2 / per_s  # else too short to be seen
    corners = np.stack([left, top, left, top + high, right, top + high, right, top], axis=1).reshape(-1, 4, 2)
    edged = (bars.action >= 0) & ((right - left) * per_s >= EDGE_POINTS)
    shapes = PolyCollection(list(corners), facecolors=colours, edgecolors="white", linewidths=np.where(edged, 0.5, 0.0))
    shapes.set_in_layout(False)  # the panel clips it
    shapes.set_snap(False)  # else stripes would appear where actions are narrower than a pixel
    panel.add_collection(shapes, autolim=False)
    if 72 * height_in / ranks >= NUMBER_POINTS + 3:
        _number(panel, view, bars, colours, span, per_s)
    panel.set(xlim=span, ylim=(ranks - 0.45, -0.55))
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="both", length=0)
    return set(bars.what.tolist())


def _number(
    panel: Any, view: StepView, bars: TaskTable, colours: Sequence[Any], span: tuple[float, float], per_s: float
) -> None:
    """Micro-batch numbers on the actions that are wide enough, in ink that suits their colour."""
    labels = np.array([*view.labels(), ""])[bars.action]
    begin, end = np.clip(bars.begin_s, *span), np.clip(bars.end_s, *span)
    fits = (end - begin) * per_s >= 1.2 + DIGIT * NUMBER_POINTS * np.char.str_len(labels)
    for at in np.flatnonzero(fits & (bars.action >= 0) & (bars.what != "U")).tolist():
        look = {"ha": "center", "va": "center", "color": ink(colours[at]), "fontsize": NUMBER_POINTS, "clip_on": True}
        panel.text((begin[at] + end[at]) / 2, bars.rank[at], labels[at], **look)


def _subtitle(view: StepView) -> str:
    """The machine, the plan, and how the drawing is to be read."""
    plan, answer, notes = view.scenario.plan, view.answer, list[str]()
    slices = f" in {plan.sequence_slices} slices" if plan.sequence_slices > 1 else ""
    asked = f"{answer.num_gpus:,} × {view.scenario.cluster.gpu.name} · {plan_degrees(plan, chunks=True)}"
    if view.streams:
        notes.append("no flush: the first two batches are shown, later ones repeat")
        exposed = view.answer.timeline.exposed_reduce_s.max() if view.program.hide_grad_reduce else 0.0
        if exposed > 0:
            notes.append(f"each batch's time includes {show_time(float(exposed))} of exposed reduction, not drawn")
    if view.timeline.begun_s.max() > 0:
        notes.append("a rank begins its next step without waiting for the others, so grey shows each rank's own step")
    return "\n".join([f"{asked} · {microbatch_words(answer)}{slices} a step", *notes]) + "\n"


def _name_ranks(panel: Any, view: StepView, lanes_in: float) -> None:
    """Rank numbers on the left; at the right how much of the step each is idle."""
    ranks = view.program.order.num_ranks
    every = int(np.ceil(0.15 * ranks / lanes_in))
    shown = [*range(0, ranks - every, every), ranks - 1]
    panel.set_yticks(shown, shown, fontsize=8)
    panel.set_ylabel("pipeline rank", fontsize=9)
    idle, (versions, _) = np.clip(1 - view.share, 0.0, 1.0), weight_versions(view.program.order)
    text = [f"{idle[rank]:.1%}" + (f" · {versions[rank]}" if view.streams else "") for rank in shown]
    right = panel.twinx()
    right.set_ylim(panel.get_ylim())
    right.set_yticks(shown, text, fontsize=8, color=GREY)
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    heading = "idle share\nof the step" if not view.streams else "idle · weight\nversions"
    right.text(1.004, 1.0, heading, transform=right.transAxes, fontsize=8, va="bottom", ha="left", color=GREY)


def _draw_memory(panel: Any, view: StepView, end: float) -> None:
    """Activations kept on the first, the middle and the last rank, and on the fullest."""
    curves = view.kept()
    peaks = [float(kept.max(initial=0.0)) for _, kept in curves]
    last, fullest = len(curves) - 1, int(np.argmax(peaks))
    styles = [("#000000", "-"), ("#777777", "-"), ("#000000", "--"), ("#D55E00", ":")]
    for rank, (colour, line) in zip(dict.fromkeys((0, last // 2, last, fullest)), styles, strict=False):
        times, kept = curves[rank]
        moments = np.concatenate([[0.0], times, [max(end, times[-1])]])
        amounts = np.concatenate([[0.0], kept, kept[-1:]]) / 1e9
        label = f"rank {rank}: up to {show(peaks[rank], 'B')}"
        panel.plot(moments, amounts, drawstyle="steps-post", color=colour, ls=line, lw=1.2, label=label)
    panel.set_ylim(0, 1.42 * (max(peaks) or 1.0) / 1e9)
    open_panels(panel)
    panel.tick_params(axis="y", labelsize=8)
    panel.set_ylabel("activations\nkept [GB]", fontsize=9)
    panel.legend(loc="upper left", ncols=4, fontsize=8, frameon=False, handlelength=1.6, borderaxespad=0.2)


def _headline(view: StepView, beside: str) -> str:
    """One schedule of several, in a line."""
    plan, order, (versions, late) = view.scenario.plan, view.program.order, weight_versions(view.program.order)
    peak = max(use.activations for use in view.answer.memory)
    told = {
        f"{plan.num_chunks} chunks": plan.num_chunks > 1,
        f"{plan.sequence_slices} slices": plan.sequence_slices > 1,
        f"{order.copies} copies of the weights": order.copies > 1,
        f"{versions.max()} weight versions, gradients {late.max()} late": view.streams,
    }
    sizes = ", ".join(words for words, there in told.items() if there)
    detail = f"  ({sizes})" if sizes else ""
    return f"{plan.schedule}: {view.words}{beside}, up to {show(peak, 'B')} of activations{detail}"


def _draw_time_axis(panel: Any) -> None:
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(unit="s"))
    panel.tick_params(axis="x", labelsize=8, length=3)
    panel.set_xlabel("time", fontsize=9)


def legend_handles(views: Sequence[StepView], seen: set[str]) -> list[Any]:
    """A patch for everything that was drawn, and for what paler bars and strips mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colours = {LOOKS[what].name: LOOKS[what].colour for what in LOOKS if what in seen and what != "idle"}
    paler = {
        "paler: every other batch": any(view.streams for view in views),
        "paler: later slices of a sequence": any(view.scenario.plan.sequence_slices > 1 for view in views),
        "paler: later chunks of the rank": any(not view.streams and view.chunk.max() > 0 for view in views),
        "paler: from last rank to first": any(view.program.order.copies > 1 for view in views),
    }
    colours |= {words: "#C8C8C8" for words, there in paler.items() if there}
    handles: list[Any] = [Patch(color=colour, label=label) for label, colour in colours.items()]
    if any(len(view.bars(DATA, GRADIENTS).rank) for view in views):
        handles.append(Line2D([], [], color="#555555", linewidth=2, label="strips: beside compute"))
    return [*handles, Patch(color=LOOKS["idle"].colour, label=LOOKS["idle"].name)]


def _place_legend(figure: Any, handles: Sequence[Any], width_in: float) -> None:
    look = {"frameon": False, "fontsize": 8, "columnspacing": 1.4, "handlelength": 1.8}
    figure.legend(handles=handles, loc="outside lower left", ncols=max(1, int(width_in / LABEL_IN)), **look)
