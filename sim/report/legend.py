"""What stands around the lanes of a Gantt chart: time axis, breaks, legend."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.report.palette import AFTER_COLOURS, IDLE_COLOUR, KIND_COLOURS, KIND_NAMES, SEND_COLOUR, shade
from sim.report.scene import AFTER, Scene
from sim.report.window import Window
from sim.schedules.actions import U
from sim.units import show_time

LEGEND_POINTS = 8.0
"""Font size."""


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
            axes.text(
                (begin + end) / 2,
                (low + high) / 2,
                f"{show_time(seconds)} left out",
                rotation=90,
                ha="center",
                va="center",
                fontsize=7 if abs(high - low) > 0 else 6,
                color="#444444",
                zorder=7,
            )


def time_unit(seconds: float) -> tuple[float, str]:
    """(units in a second, its name) in which such a time has few digits."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def draw_time_axis(axes: Any, window: Window, end: float, *, about: int) -> None:
    """Ticks at round moments of what is shown."""
    factor, unit = time_unit(end)
    places, moments = window.ticks(about)
    keep = np.ones(len(places), dtype=bool)
    for begin, stop, _ in window.breaks:  # no tick where the axis is torn
        keep &= (places < begin - 0.5 * window.gap) | (places > stop + 0.5 * window.gap)
    axes.set_xticks(places[keep], [f"{moment * factor + 0.0:.6g}" for moment in moments[keep]], fontsize=8)
    axes.set_xlabel(f"time [{unit}]", fontsize=9)


def legend_handles(scene: Scene, seen: set[str], *, durations: bool = True) -> list[Any]:
    """A patch for everything that was drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    order = scene.program.order
    handles: list[Any] = []
    for kind, name in KIND_NAMES.items():
        if kind != U and name in seen:
            handles.append(Patch(color=KIND_COLOURS[kind], label=name))
    if "update action" in seen:
        often = "micro-batch" if scene.answer.timeline.updates > 1 else "batch"
        included = ", its reduction included" if (scene.program.costs.reduce > 0).any() else ""
        updates = scene.program.occupy[order.kind == U]
        length = f", {show_time(float(updates.max()))}" if durations else ""
        reduced = included if durations and not scene.program.hide_grad_reduce else ""
        label = f"update after each {often}{length}{reduced}"
        handles.append(Line2D([], [], color=KIND_COLOURS[U], linewidth=2, label=label))
    pale = shade("#555555", 1.0)
    if scene.streams:
        handles.append(Patch(color=pale, label="paler: every other batch"))
    elif scene.scenario.plan.sequence_slices > 1:
        handles.append(Patch(color=pale, label="paler: later slices of a sequence"))
    elif int(scene.chunk.max()) > 0:
        handles.append(Patch(color=pale, label="paler: later chunks of the rank"))
    if order.copies > 1:
        look: dict[str, Any] = {"edgecolor": "#555555", "linewidth": 0.4, "hatch": "////"} if "hatched" in seen else {}
        name = "hatched" if "hatched" in seen else "paler"
        handles.append(Patch(facecolor=pale, label=f"{name}: from last rank to first", **look))
    if "send" in seen:
        handles.append(Patch(color=SEND_COLOUR, label="send (keeps the rank)"))
    bars = scene.after()
    for what, name in AFTER.items():
        if what not in seen:
            continue
        longest = max((bar.end - bar.begin for bar in bars if bar.what == what), default=0.0)
        beside = " (strip: beside the backward)" if what == "reduce" and scene.reductions() else ""
        length = f", {show_time(longest)}" if durations and longest else ""
        exposed = " exposed" if beside and length else ""
        handles.append(Patch(color=AFTER_COLOURS[what], label=f"{name}{length}{exposed}{beside}"))
    handles.append(Patch(color=IDLE_COLOUR, label="idle"))
    return handles


def place_legend(figure: Any, handles: list[Any], width_in: float) -> None:
    """Put the legend below the figure in as many columns as fit, to be read row by row."""
    room = 72.0 * width_in - 10.0
    for columns in range(len(handles), 0, -1):
        widths = [max(_points(handle.get_label()) for handle in handles[at::columns]) for at in range(columns)]
        if sum(widths) <= room:
            break
    # A legend fills its columns one after the other.
    by_column = [handle for at in range(columns) for handle in handles[at::columns]]
    look = {"frameon": False, "fontsize": LEGEND_POINTS, "columnspacing": 1.4, "handlelength": 1.8}
    figure.legend(handles=by_column, loc="outside lower left", ncols=columns, **look)


def _points(label: str) -> float:
    """About how wide a legend's entry is. [points]"""
    return LEGEND_POINTS * (4.4 + 0.56 * len(label))
