"""The lanes of a Gantt chart: bars by kind and shade, with numbers where they fit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from sim.report.palette import AFTER_COLOURS, IDLE_COLOUR, KIND_COLOURS, KIND_NAMES, SEND_COLOUR, ink, shade
from sim.report.scene import AFTER, Scene
from sim.report.window import Window
from sim.schedules.actions import U

Array = np.ndarray
LANE = 0.84
"""Of a rank's row, the height of its bars."""
STRIP = 0.13
"""Of a rank's row, the height of what runs beside its bars."""
NUMBER_POINTS = 6.5
"""Font size of micro-batch numbers."""
SMALLEST_POINTS = 4.8
"""The smallest they become."""
MOST_NUMBERS = 4000
"""Where more would fit, none is written: each takes a moment to draw."""
DIGIT = 0.62
"""Width of a digit, of the font size."""
EDGE_POINTS = 3.2
"""Bars narrower than this have no edge."""
VISIBLE_POINTS = 0.4
"""What would be narrower than this is not listed in the legend."""


def draw_lanes(
    axes: Any,
    scene: Scene,
    window: Window,
    *,
    points_per_s: float,
    lane_points: float,
    shift: float = 0.0,
    versions: bool = True,
) -> set[str]:
    """Draw every rank's bars; return what was drawn wide enough to be seen, by names of the legend.

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
    from matplotlib.collections import LineCollection

    order = scene.program.order
    seen: set[str] = set()
    stop = min(scene.horizon - shift, window.spans[-1][1])
    step = scene.answer.step_time_s
    zero = np.zeros(order.num_ranks) if scene.streams else scene.begin
    limit = np.full(order.num_ranks, stop) if scene.streams else zero + step
    _bars(axes, window, np.arange(order.num_ranks), zero, limit, IDLE_COLOUR, 1.0)
    start, compute, end = scene.start - shift, scene.compute_end - shift, scene.end - shift
    if scene.streams:
        start, compute, end = (np.minimum(each, stop) for each in (start, compute, end))
    seen |= _actions(axes, scene, window, start, compute, points_per_s, lane_points)
    sends = np.flatnonzero(end > compute)
    if len(sends) and float(np.median((end - compute)[sends])) * points_per_s > VISIBLE_POINTS:
        _bars(axes, window, order.rank[sends], compute[sends], end[sends], SEND_COLOUR, LANE)
        seen.add("send")
    for what in AFTER:
        bars = [bar for bar in scene.after() if bar.what == what]
        if bars:
            ranks, begin, close = (
                np.array(each) for each in zip(*((b.rank, b.begin, b.end) for b in bars), strict=True)
            )
            _bars(axes, window, ranks, begin, close, AFTER_COLOURS[what], LANE)
            seen.add(what)
    beside = scene.reductions()
    if beside:
        ranks, begin, close = (np.array(each) for each in zip(*((b.rank, b.begin, b.end) for b in beside), strict=True))
        _bars(axes, window, ranks, begin, close, AFTER_COLOURS["reduce"], STRIP, (LANE - STRIP) / 2)
        seen.add("reduce")
    if scene.streams:
        updates = np.flatnonzero(order.kind == U)
        _bars(axes, window, order.rank[updates], start[updates], end[updates], KIND_COLOURS[U], LANE)
        index, _, ends = window.pieces(start[updates], np.maximum(end[updates], start[updates] + 1e-12))
        ranks = order.rank[updates][index]
        lines = [[(x, r - 0.5), (x, r + 0.5)] for x, r in zip(ends.tolist(), ranks.tolist(), strict=True)]
        often = len(lines) > 4 * order.num_ranks
        axes.add_collection(LineCollection(lines, colors=KIND_COLOURS[U], linewidths=0.8 if often else 2.2))
        seen.add("update action")
        if versions and not often:
            batch = order.microbatch[updates][index] // scene.answer.num_microbatches
            _version_names(axes, ends[ranks == 0], batch[ranks == 0] + 1)
    axes.set_xlim(0, window.width)
    axes.set_ylim(order.num_ranks - 0.45, -0.55)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return seen


def _actions(
    axes: Any, scene: Scene, window: Window, start: Array, compute: Array, points_per_s: float, lane_points: float
) -> set[str]:
    """Forwards and backwards, all bars of one look at once; what was drawn, by names of the legend."""
    order = scene.program.order
    tone, levels = _tones(scene)
    direction, labels = scene.copy, scene.labels()
    size = _number_sizes(labels, (compute - start) * points_per_s)
    shown = (compute > window.spans[0][0]) & (start < window.spans[-1][1])
    numbered = lane_points >= NUMBER_POINTS + 1.5 and int((shown & (size > 0)).sum()) <= MOST_NUMBERS
    hatched = points_per_s * float(np.mean(compute - start)) >= EDGE_POINTS
    seen: set[str] = {"hatched"} if hatched and order.copies > 1 else set()
    for (kind, colour), level, copy in product(KIND_COLOURS.items(), range(levels), range(order.copies)):
        here = np.flatnonzero((order.kind == kind) & (tone == level) & (direction == copy))
        index, begins, ends = window.pieces(start[here], compute[here])
        if kind == U or not len(index):
            continue
        seen.add(KIND_NAMES[kind])
        fill = shade(colour, 0.75 if copy else level / max(1, levels - 1))
        wide = (ends - begins) * points_per_s
        rank, action = order.rank[here][index], here[index]
        hatch = "////" if hatched and copy else None
        edge = float(np.median(wide)) >= EDGE_POINTS
        _rectangles(axes, rank, begins, ends, fill, edge=edge, hatch=hatch, hatch_colour=colour)
        if numbered:
            texts = [labels[at] for at in action.tolist()]
            _numbers(axes, texts, rank, (begins + ends) / 2, _number_sizes(texts, wide), ink(fill), copy > 0)
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


def _version_names(axes: Any, ends: Array, versions: Array) -> None:
    """Which version of its weights the first rank has from each update on."""
    for moment, version in zip(ends.tolist(), versions.tolist(), strict=True):
        axes.text(moment, -0.56, f"version {version}", fontsize=7, ha="right", va="bottom")


def _tones(scene: Scene) -> tuple[Array, int]:
    """(shade of every action, shades): by chunk, by slice of the sequence, or every other batch."""
    slices = scene.scenario.plan.sequence_slices
    if scene.streams:
        return scene.batch % 2, 2
    if slices > 1:
        return scene.program.order.microbatch % slices, slices
    chunk = scene.chunk
    return chunk, int(chunk.max()) + 1


def _bars(
    axes: Any, window: Window, rank: Array, start: Array, end: Array, colour: Any, height: float, drop: float = 0.0
) -> None:
    index, begins, ends = window.pieces(np.asarray(start, dtype=float), np.asarray(end, dtype=float))
    _rectangles(axes, rank[index], begins, ends, colour, height=height, drop=drop)


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
    hatch: str | None = None,
    hatch_colour: Any = None,
) -> None:
    """All bars of one look at once."""
    from matplotlib.collections import PolyCollection

    low, high = rank + drop - height / 2, rank + drop + height / 2
    corners = np.stack([begins, low, begins, high, ends, high, ends, low], axis=1).reshape(-1, 4, 2)
    look: dict[str, Any] = {"facecolors": [colour], "linewidths": 0.0}
    if hatch is not None:
        look |= {"hatch": hatch, "edgecolors": [hatch_colour], "linewidths": 0.4}
    elif edge:
        look |= {"edgecolors": "white", "linewidths": 0.5}
    axes.add_collection(PolyCollection(list(corners), **look), autolim=False)
