"""matplotlib's drawing of a chart: bars by kind and shade, numbers where they fit, time axis, breaks, legend."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.report.gantt.chart import Chart, step_chart
from sim.report.gantt.step_view import Bars, StepView
from sim.report.gantt.window import Window
from sim.report.palette import LOOKS, ink, shade
from sim.schedules.actions import KINDS, U
from sim.units import show_time

LANE = 0.84
"""Height of bars, of a rank's row."""
THIN = 0.13
"""Height of what bars overlap, of a rank's row."""
NUMBER_POINTS = 6.5
"""Font size of micro-batch numbers."""
SMALLEST_POINTS = 4.8
"""The smallest they become."""
MOST_NUMBERS = 4000
"""Where more would fit, none is written: each takes a moment to draw."""
MOST_BARS, HAIRS = 2000, 20_000
"""Of one look: where there are more, gaps of less than this part of the drawing are closed."""
DIGIT = 0.62
"""Width of a digit, of the font size."""
EDGE_POINTS = 3.2
"""Bars narrower than this have no edge."""
VISIBLE_POINTS = 0.4
"""What would be narrower than this is not listed in the legend."""
LEGEND_POINTS = 8.0
"""Font size of the legend."""


def draw_lanes(
    axes: Any,
    view: StepView,
    window: Window,
    *,
    points_per_s: float,
    lane_points: float,
    shift: float = 0.0,
    versions: bool = True,
) -> set[str]:
    """Draw every rank's bars; return what was drawn wide enough to be seen, of LOOKS, and whether `hatched`.

    Parameters
    ----------
    points_per_s : float
        Width of a second. [points]
    lane_points : float
        Height of a rank's row. [points]
    shift : float
        Time at which the drawing begins. [s]
    versions : bool
        Name the versions of the weights where updates are actions.
    """
    chart = step_chart(view, window, shift)
    idle, *others = chart.bars
    draw_bars(axes, chart, idle)
    seen = _draw_actions(axes, view, chart, points_per_s, lane_points)
    for bars in others:
        if bars.what == "send" and float(np.median(bars.end - bars.begin)) * points_per_s <= VISIBLE_POINTS:
            continue
        if bars.action is None or bars.what == "U":
            seen.add(bars.what)
            draw_bars(axes, chart, bars)
        if bars.what == "U":
            _mark_updates(axes, view, chart, bars, versions)
    axes.set_xlim(0, window.width)
    axes.set_ylim(chart.num_ranks - 0.45, -0.55)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return seen


def draw_bars(axes: Any, chart: Chart, bars: Bars) -> None:
    """Bars of one colour; idle time fills the row, what overlaps other bars is a thin line at their foot."""
    index, begins, ends = chart.pieces(bars)
    height, drop = (THIN, (LANE - THIN) / 2) if bars.overlapped else (1.0 if bars.what == "idle" else LANE, 0.0)
    _rectangles(axes, bars.rank[index], begins, ends, LOOKS[bars.what].colour, height=height, drop=drop)


def _draw_actions(axes: Any, view: StepView, chart: Chart, points_per_s: float, lane_points: float) -> set[str]:
    """Forwards and backwards, all bars of one look at once; what was drawn."""
    order, window = view.program.order, chart.window
    (tone, levels), direction, labels = view.tones(), view.copy, view.labels()
    acts = [bars for bars in chart.bars if bars.action is not None]
    begin, end = (np.concatenate([getattr(bars, side) for bars in acts]) for side in ("begin", "end"))
    texts = [labels[at] for bars in acts if bars.action is not None for at in bars.action.tolist()]
    shown = (end > window.spans[0][0]) & (begin < window.spans[-1][1])
    fitting = shown & (_number_sizes(texts, (end - begin) * points_per_s) > 0)
    numbered = lane_points >= NUMBER_POINTS + 1.5 and int(fitting.sum()) <= MOST_NUMBERS
    hatched = points_per_s * float(np.mean(end - begin)) >= EDGE_POINTS
    seen: set[str] = {"hatched"} if hatched and order.copies > 1 else set()
    for bars, level, copy in product(acts, range(levels), range(order.copies)):
        if bars.what == "U" or bars.action is None:
            continue
        here = (tone[bars.action] == level) & (direction[bars.action] == copy)
        index, begins, ends = window.pieces(bars.begin[here], bars.end[here])
        if not len(index):
            continue
        seen.add(bars.what)
        colour = LOOKS[bars.what].colour
        fill = shade(colour, 0.75 if copy else level / max(1, levels - 1))
        wide = (ends - begins) * points_per_s
        rank, edge = bars.rank[here][index], float(np.median(wide)) >= EDGE_POINTS
        _rectangles(axes, rank, begins, ends, fill, edge=edge, hatch_colour=colour if hatched and copy else None)
        if numbered:
            own = [labels[at] for at in bars.action[here][index].tolist()]
            _numbers(axes, own, rank, (begins + ends) / 2, _number_sizes(own, wide), ink(fill), copy > 0)
    return seen


def _number_sizes(labels: list[str], wide: Array) -> Array:
    """Font size at which each label fits its bar, 0 where it does not. [points]"""
    length = np.array([len(label) for label in labels])
    size = np.minimum(NUMBER_POINTS, (wide - 1.2) / (DIGIT * length))
    return np.asarray(np.where(size >= SMALLEST_POINTS, size, 0.0))


def _numbers(axes: Any, texts: list[str], rank: Array, middle: Array, size: Array, colour: str, boxed: bool) -> None:
    """Micro-batch numbers on the bars that are wide enough."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": colour}
    if boxed:  # hatching would cross the numbers
        look["bbox"] = {"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none"}
        look["color"] = "black"
    for place in np.flatnonzero(size).tolist():
        axes.text(middle[place], rank[place], texts[place], clip_on=True, fontsize=size[place], **look)


def _mark_updates(axes: Any, view: StepView, chart: Chart, bars: Bars, versions: bool) -> None:
    """A line at the end of every update, and which version of its weights the first rank has from then on."""
    from matplotlib.collections import LineCollection

    assert bars.action is not None
    # An update that takes no time has an end all the same.
    index, _, ends = chart.window.pieces(bars.begin, np.maximum(bars.end, bars.begin + 1e-12))
    ranks = bars.rank[index]
    lines = [[(x, r - 0.5), (x, r + 0.5)] for x, r in zip(ends.tolist(), ranks.tolist(), strict=True)]
    often = len(lines) > 4 * chart.num_ranks
    axes.add_collection(LineCollection(lines, colors=LOOKS["U"].colour, linewidths=0.8 if often else 2.2))
    if versions and not often:
        batch = view.batch[bars.action][index]
        for moment, version in zip(ends[ranks == 0].tolist(), (batch[ranks == 0] + 1).tolist(), strict=True):
            axes.text(moment, -0.56, f"version {version}", fontsize=7, ha="right", va="bottom")


def _rectangles(
    axes: Any,
    rank: Array,
    begins: Array,
    ends: Array,
    colour: Any,
    *,
    height: float = LANE,
    drop: float = 0.0,
    edge: bool = False,
    hatch_colour: Any = None,
) -> None:
    """All bars of one look at once."""
    from matplotlib.collections import PolyCollection

    if len(begins) > MOST_BARS and not edge:
        rank, begins, ends = _joined(rank, begins, ends)
    low, high = rank + drop - height / 2, rank + drop + height / 2
    corners = np.stack([begins, low, begins, high, ends, high, ends, low], axis=1).reshape(-1, 4, 2)
    look: dict[str, Any] = {"facecolors": [colour], "linewidths": 0.0}
    if hatch_colour is not None:
        look |= {"hatch": "////", "edgecolors": [hatch_colour], "linewidths": 0.4}
    elif edge:
        look |= {"edgecolors": "white", "linewidths": 0.5}
    axes.add_collection(PolyCollection(list(corners), **look), autolim=False)


def _joined(rank: Array, begins: Array, ends: Array) -> tuple[Array, Array, Array]:
    """Bars of one look with those as one between which nobody could see a gap: each takes a moment to draw."""
    order = np.lexsort((begins, rank))
    rank, begins, ends = rank[order], begins[order], ends[order]
    hair = float(ends.max() - begins.min()) / HAIRS
    first = np.append(True, (np.diff(rank) != 0) | (begins[1:] - ends[:-1] > hair))
    at = np.flatnonzero(first)
    return rank[at], begins[at], np.maximum.reduceat(ends, at)


def mark_breaks(axes: Any, window: Window, *, labelled: bool) -> None:
    """A white gap with torn edges where time is left out."""
    for begin, end, seconds in window.breaks:
        axes.axvspan(begin, end, color="white", zorder=5, linewidth=0)
        low, high = axes.get_ylim()
        y = np.linspace(low, high, 25)
        jag = 0.18 * (end - begin) * np.where(np.arange(25) % 2, 1.0, -1.0)
        for edge in (begin, end):
            axes.plot(edge + jag, y, color="#999999", linewidth=0.7, zorder=6, clip_on=False, scaley=False)
        if labelled:
            look = {"rotation": 90, "ha": "center", "va": "center", "fontsize": 7, "color": "#444444", "zorder": 7}
            axes.text((begin + end) / 2, (low + high) / 2, f"{show_time(seconds)} left out", **look)


def draw_time_axis(axes: Any, window: Window, end: float, *, about: int) -> None:
    """Ticks at round moments of what is shown."""
    ticks, unit = window.ticks(about, end, clear=0.5 * window.gap)
    axes.set_xticks([tick.place for tick in ticks], [tick.label for tick in ticks], fontsize=8)
    axes.set_xlabel(f"time [{unit}]", fontsize=9)


def legend_handles(view: StepView, seen: set[str], *, durations: bool = True) -> list[Any]:
    """A patch for everything that was drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def patch(what: str, label: str) -> Any:
        return Patch(color=LOOKS[what].colour, label=label)

    handles: list[Any] = [patch(kind, LOOKS[kind].name) for kind in KINDS if kind in seen and kind != "U"]
    if "U" in seen:
        often = "micro-batch" if view.answer.timeline.updates > 1 else "batch"
        included = ", its reduction included" if (view.program.costs.reduce_s > 0).any() else ""
        updates = (view.end - view.start)[view.program.order.kind == U]
        length = f", {show_time(float(updates.max()))}" if durations else ""
        reduced = included if durations and not view.program.hide_grad_reduce else ""
        label = f"update after each {often}{length}{reduced}"
        handles.append(Line2D([], [], color=LOOKS["U"].colour, linewidth=2, label=label))
    handles += _pale_handles(view, seen)
    if "send" in seen:
        handles.append(patch("send", "send (keeps the rank)"))
    lengths = {bars.what: float((bars.end - bars.begin).max()) for bars in view.after()}
    strips = {bars.what: " (strip: once a visit)" for bars in view.at_visits()}
    strips |= {"reduce": " (strip: beside the backward)"} if view.overlapped_reductions() else {}
    for what in ("reduce", "tied", "update", "gather", "setup"):
        if what not in seen:
            continue
        overlapped = strips.get(what, "")
        length = f", {show_time(lengths[what])}" if durations and what in lengths else ""
        exposed = " exposed" if overlapped and length else ""
        handles.append(patch(what, f"{LOOKS[what].name}{length}{exposed}{overlapped}"))
    return [*handles, patch("idle", "idle")]


def _pale_handles(view: StepView, seen: set[str]) -> list[Any]:
    """What paler, and what hatched, bars are."""
    from matplotlib.patches import Patch

    pale, handles = shade("#555555", 1.0), []
    if view.streams:
        handles.append(Patch(color=pale, label="paler: every other batch"))
    elif view.scenario.plan.sequence_slices > 1:
        handles.append(Patch(color=pale, label="paler: later slices of a sequence"))
    elif int(view.chunk.max()) > 0:
        handles.append(Patch(color=pale, label="paler: later chunks of the rank"))
    if view.program.order.copies > 1:
        look: dict[str, Any] = {"edgecolor": "#555555", "linewidth": 0.4, "hatch": "////"} if "hatched" in seen else {}
        name = "hatched" if "hatched" in seen else "paler"
        handles.append(Patch(facecolor=pale, label=f"{name}: from last rank to first", **look))
    return handles


def place_legend(figure: Any, handles: list[Any], width_in: float) -> None:
    """Put the legend below the figure in as many columns as fit, to be read row by row."""
    room = 72.0 * width_in - 10.0
    # An entry's width is guessed from the letters of its label.
    points = [LEGEND_POINTS * (4.4 + 0.56 * len(handle.get_label())) for handle in handles]
    for columns in range(len(handles), 0, -1):
        if sum(max(points[at::columns]) for at in range(columns)) <= room:
            break
    # A legend fills its columns one after the other.
    by_column = [handle for at in range(columns) for handle in handles[at::columns]]
    look = {"frameon": False, "fontsize": LEGEND_POINTS, "columnspacing": 1.4, "handlelength": 1.8}
    figure.legend(handles=by_column, loc="outside lower left", ncols=columns, **look)
