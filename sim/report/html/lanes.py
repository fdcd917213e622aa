"""A step's timeline as paths of an SVG: one path a kind of work, so that tens of thousands of bars stay small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.engines import Timeline
from sim.report.figures import window_of
from sim.report.legend import time_unit
from sim.report.palette import AFTER_COLOURS, KIND_COLOURS, KIND_NAMES, SEND_COLOUR
from sim.report.scene import AFTER, Bar, Scene
from sim.report.window import Window, played_window
from sim.schedules import Order
from sim.schedules.actions import U
from sim.units import show_time

Array = np.ndarray
WIDTH = 1000.0
"""Of the drawing, in its own units."""
WIDTH_IN = 9.0
"""What that is taken to be in inches where the part of the step that is shown is chosen."""
TALLEST = 22.0
"""Of a rank's row, where there are few."""
MOST_RANKS, MOST_BARS = 32, 16_000
"""Rows, and bars in them; of a longer pipeline evenly spread ranks are shown, the first and the last among them."""
BAR, THIN = 0.86, 0.172
"""Of a rank's row, the height of its bars and of what runs beside them."""


@dataclass(frozen=True, slots=True)
class Layer:
    """All bars of one kind: lines as thick as a bar, or as thin as what runs beside one."""

    name: str
    colour: str
    path: str
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """A timeline, ready for a template. Places in the drawing's own units.

    ranks : (number, top of its row).
    ticks : (place, label).
    breaks : (begin, width, label) of what is left out.
    """

    width: float
    height: float
    row: float
    bar: float
    layers: tuple[Layer, ...]
    idle: str
    ranks: tuple[tuple[int, float], ...]
    ticks: tuple[tuple[float, str], ...]
    unit: str
    breaks: tuple[tuple[float, float, str], ...]
    all_ranks: int


def draw_timeline(scene: Scene) -> Drawing:
    """The lanes of the ranks over the part of the step that can be read."""
    order, window = scene.program.order, window_of([scene], WIDTH_IN)
    scale = WIDTH / window.width
    chosen = _ranks_shown(order, scene.start, scene.end, window, 1 + bool((scene.end > scene.compute_end).any()))
    row = min(TALLEST, 480.0 / len(chosen))
    place_of = np.full(order.num_ranks, -1)
    place_of[chosen] = np.arange(len(chosen))

    def path(rank: Array, begin: Array, end: Array, middle: float = BAR / 2) -> str:
        here = np.flatnonzero(place_of[rank] >= 0)
        index, begins, ends = window.pieces(begin[here], end[here])
        return _lines(begins * scale, ends * scale, (place_of[rank[here][index]] + middle) * row)

    streams, stop = scene.streams, min(scene.horizon, window.spans[-1][1])
    zero = np.zeros(order.num_ranks) if streams else scene.begin
    limit = np.full(order.num_ranks, stop) if streams else zero + scene.answer.step_time_s
    idle = path(np.arange(order.num_ranks), zero, limit)
    layers = []
    for kind, colour in KIND_COLOURS.items():
        of_kind = np.flatnonzero(order.kind == kind)
        if len(of_kind) and (kind != U or streams):
            bars = path(order.rank[of_kind], scene.start[of_kind], scene.compute_end[of_kind])
            layers.append(Layer(KIND_NAMES[kind], colour, bars))
    sends = np.flatnonzero(scene.end > scene.compute_end)
    if len(sends):
        bars = path(order.rank[sends], scene.compute_end[sends], scene.end[sends])
        layers.append(Layer("send", SEND_COLOUR, bars))
    beside = scene.reductions()
    for what, name in AFTER.items():
        after = [bar for bar in scene.after() if bar.what == what]
        layers.append(Layer(name, AFTER_COLOURS[what], _of_bars(after, path)))
        if what == "reduce" and beside:
            layers.append(Layer("", AFTER_COLOURS[what], _of_bars(beside, path, BAR - THIN / 2), thin=True))
    drawn = tuple(layer for layer in layers if layer.path)
    return _drawing(window, row, drawn, idle, [(int(rank), float(place_of[rank] * row)) for rank in chosen], order)


def _drawing(
    window: Window, row: float, layers: tuple[Layer, ...], idle: str, ranks: list[tuple[int, float]], order: Order
) -> Drawing:
    """The lanes with their time axis."""
    scale = WIDTH / window.width
    factor, unit = time_unit(window.spans[-1][1])
    places, moments = window.ticks(8)
    torn = [(begin - 0.02 * window.width, end + 0.02 * window.width) for begin, end, _ in window.breaks]
    ticks = [
        (float(place * scale), f"{moment * factor:.6g}")
        for place, moment in zip(places, moments, strict=True)
        if not any(begin <= place <= end for begin, end in torn)
    ]
    breaks = [
        (begin * scale, (end - begin) * scale, f"{show_time(left)} left out") for begin, end, left in window.breaks
    ]
    return Drawing(
        WIDTH,
        row * len(ranks),
        row,
        BAR * row,
        layers,
        idle,
        tuple(ranks),
        tuple(ticks),
        unit,
        tuple(breaks),
        order.num_ranks,
    )


def draw_played(timeline: Timeline) -> Drawing:
    """What an engine played of a step; repetitions that it left out are not in it."""
    start, end, order = timeline.start, timeline.end, timeline.program.order
    assert start is not None
    assert end is not None
    window = played_window(start, end, order.fold is not None)
    scale = WIDTH / window.width
    chosen = _ranks_shown(order, start, end, window)
    row = min(TALLEST, 480.0 / len(chosen))
    place_of = np.full(order.num_ranks, -1)
    place_of[chosen] = np.arange(len(chosen))

    def lines(rank: Array, begin: Array, stop: Array) -> str:
        index, begins, ends = window.pieces(begin, stop)
        return _lines(begins * scale, ends * scale, (place_of[rank[index]] + BAR / 2) * row)

    layers = []
    for kind, colour in KIND_COLOURS.items():
        these = np.flatnonzero((order.kind == kind) & (place_of[order.rank] >= 0))
        if len(these):
            layers.append(Layer(KIND_NAMES[kind], colour, lines(order.rank[these], start[these], end[these])))
    idle = lines(chosen, 0.0 * chosen, 0.0 * chosen + window.spans[-1][1])
    return _drawing(
        window, row, tuple(layers), idle, [(int(rank), float(place_of[rank] * row)) for rank in chosen], order
    )


def _ranks_shown(order: Order, start: Array, end: Array, window: Window, bars: int = 1) -> Array:
    """Ranks that have a row, where an action has so many bars."""
    shown = sum(int(((end > begin) & (start < stop)).sum()) for begin, stop in window.spans)
    most = max(2, int(min(MOST_RANKS, MOST_BARS * order.num_ranks / max(bars * shown, 1))))
    return np.unique(np.linspace(0, order.num_ranks - 1, min(order.num_ranks, most)).round().astype(int))


def _of_bars(bars: list[Bar], path: Callable[..., str], *place: float) -> str:
    if not bars:
        return ""
    rank, begin, end = (np.array(each) for each in zip(*((bar.rank, bar.begin, bar.end) for bar in bars), strict=True))
    return path(rank, begin, end, *place)


def _lines(begins: Array, ends: Array, middles: Array) -> str:
    """Level lines as one path; those too short for the eye are made just visible."""
    lengths = np.maximum(ends - begins, 0.15)
    return "".join(
        f"M{x:.1f} {y:.4g}h{length:.2f}"
        for x, y, length in zip(begins.tolist(), middles.tolist(), lengths.tolist(), strict=True)
    )
