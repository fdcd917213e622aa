"""A chart as paths of an SVG: one path a kind of work, so that tens of thousands of bars stay small."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Array
from sim.report.gantt.chart import Chart
from sim.report.palette import LOOKS
from sim.units import show_time

WIDTH = 1000.0
"""Width of the drawing, in its own units."""
PLACES = 0.84 * 9.0 * 24.0
"""Forwards side by side that can still be told apart: as many as in a figure nine inches wide."""
TALLEST = 22.0
"""Height of a rank's row, where there are few."""
MOST_RANKS, MOST_BARS = 32, 16_000
"""Rows, and bars in them; of a longer pipeline evenly spread ranks are shown, the first and the last among them."""
BAR, THIN = 0.86, 0.172
"""Height of bars and of what they overlap, of a rank's row."""


@dataclass(frozen=True, slots=True)
class Layer:
    """All bars of one kind: lines as thick as a bar, or as thin as what bars overlap."""

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


def draw_chart(chart: Chart) -> Drawing:
    """The lanes of the ranks with their time axis."""
    window, scale = chart.window, WIDTH / chart.window.width
    chosen = _ranks_shown(chart)
    row = min(TALLEST, 480.0 / len(chosen))
    place_of = np.full(chart.num_ranks, -1)
    place_of[chosen] = np.arange(len(chosen))
    layers = []
    for bars in chart.bars:
        index, begins, ends = chart.pieces(bars)
        place = place_of[bars.rank[index]]
        middle, here = BAR - THIN / 2 if bars.overlapped else BAR / 2, place >= 0
        path = _lines(begins[here] * scale, ends[here] * scale, (place[here] + middle) * row)
        look = LOOKS[bars.what]
        layers.append(Layer("" if bars.overlapped else look.name, look.colour, path, bars.overlapped))
    idle, *others = layers
    ticks, unit = window.ticks(8, window.spans[-1][1], clear=0.02 * window.width)
    return Drawing(
        width=WIDTH,
        height=row * len(chosen),
        row=row,
        bar=BAR * row,
        layers=tuple(layer for layer in others if layer.path),
        idle=idle.path,
        ranks=tuple((rank, row * number) for number, rank in enumerate(chosen.tolist())),
        ticks=tuple((tick.place * scale, tick.label) for tick in ticks),
        unit=unit,
        breaks=tuple(
            (begin * scale, (end - begin) * scale, f"{show_time(left)} left out") for begin, end, left in window.breaks
        ),
    )


def _ranks_shown(chart: Chart) -> Array:
    """Ranks that have a row, so many that their bars can be drawn."""
    actions = sum(len(chart.pieces(bars)[0]) for bars in chart.bars if bars.action is not None)
    bars_each = 1 + any(bars.what == "send" for bars in chart.bars)
    most = max(2, int(min(MOST_RANKS, MOST_BARS * chart.num_ranks / max(bars_each * actions, 1))))
    return np.unique(np.linspace(0, chart.num_ranks - 1, min(chart.num_ranks, most)).round().astype(int))


def _lines(begins: Array, ends: Array, middles: Array) -> str:
    """Level lines as one path; those too short for the eye are made just visible."""
    lengths = np.maximum(ends - begins, 0.15)
    return "".join(
        f"M{x:.1f} {y:.4g}h{length:.2f}"
        for x, y, length in zip(begins.tolist(), middles.tolist(), lengths.tolist(), strict=True)
    )
