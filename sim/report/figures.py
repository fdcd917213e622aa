"""What figures have in common: files checked before the work is done, titles, frames, axes, labels.

The colours are Okabe and Ito's, which colour-blind readers tell apart; brown reductions are unlike a pale forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.canvas import check_width as check_width
from sim.canvas import new_figure as new_figure
from sim.canvas import write_figure


class Look(NamedTuple):
    """How one kind of work is named in a legend, written in a terminal, and coloured."""

    name: str
    letter: str
    colour: str


LOOKS = {
    "F": Look("forward", "F", "#0072B2"),
    "B": Look("backward", "B", "#E69F00"),
    "I": Look("input gradient", "I", "#D55E00"),
    "W": Look("weight gradient", "W", "#009E73"),
    "U": Look("update", "U", "#3B3B3B"),
    "send": Look("send", "", "#8C8C8C"),
    "reduce": Look("gradient reduction", "r", "#8C564B"),
    "tied": Look("tied embedding's reduction", "t", "#C49C94"),
    "update": Look("update", "u", "#3B3B3B"),
    "gather": Look("weight gather", "g", "#CC79A7"),
    "setup": Look("host, once a step", "h", "#999999"),
    "idle": Look("idle", "·", "#EFEFEF"),
}
"""Kinds of actions, a send that keeps its rank, what follows a rank's last action, and nothing."""
PALEST = 0.62
"""How much white the palest shade of a colour holds."""


Colour = str | tuple[float, float, float]
"""A colour as `#rrggbb`, or as red, green and blue from 0 to 1."""


def _rgb(colour: Colour) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] if isinstance(colour, str) else colour)


def shade(colour: str, share: float) -> tuple[float, float, float]:
    """The colour, paler by a share of 0 (itself) to 1 (the palest). Red, green and blue from 0 to 1."""
    base = _rgb(colour)
    red, green, blue = (base + (1 - base) * PALEST * share).tolist()
    return red, green, blue


def luminance(colour: Colour) -> float:
    """Relative luminance of a colour, 0 (black) to 1 (white): WCAG 2.2's definition."""
    shares = _rgb(colour)
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def ink(colour: Colour) -> str:
    """Black or white, whichever has the better contrast (WCAG 2.2's ratio) on this colour."""
    return "#000000" if (luminance(colour) + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


LABEL_PLACES = (
    (0, 5, "center", "bottom"), (0, -5, "center", "top"), (5, 0, "left", "center"), (-5, 0, "right", "center"),
    (4, 4, "left", "bottom"), (-4, -4, "right", "top"), (4, -4, "left", "top"), (-4, 4, "right", "bottom"),
)  # fmt: skip
"""Where a word may stand, best first: points to the right and up, and how it is aligned."""


def save(figure: Any, path: Path) -> None:
    """Write a figure."""
    write_figure(figure, path, 150)


def place_title(figure: Any, title: str, size: float = 11, bold: bool = False) -> None:
    """The title of a figure, at its left edge; a dollar sign in a name is no formula."""
    weight = "bold" if bold else "normal"
    figure.suptitle(title, x=0.01, ha="left", fontsize=size, fontweight=weight, parse_math=False)


def open_panels(*panels: Any, grid: str = "") -> None:
    """Panels without a frame above and at the right, and with a pale grid along `x`, `y` or `both` axes."""
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        if grid:
            panel.grid(axis=grid, alpha=0.25, lw=0.6)


def label_panel(panel: Any, title: str, x: str, y: str, **limits: Any) -> None:
    """Name a panel and its axes, set their scales and limits, and put a legend where something is labelled."""
    panel.set(xlabel=x, ylabel=y, **limits)
    panel.set_title(title, fontsize=10)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, fontsize=8)


def plain_axis(axis: Any) -> None:
    """A logarithmic axis with numbers as people write them, and not too many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high > 8 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value) if high >= 1e4 else f"{value:,.4g}"))
    axis.set_minor_formatter(NullFormatter())


def tick(value: float) -> str:
    """A number at an axis, short: 500, 2k, 80M."""
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g}{letter}"
    return f"{value:.4g}"


def _along(corners: np.ndarray, apart: float = 2.0) -> np.ndarray:
    """Points along a line on the page, `apart` from each other. [pixels]"""
    far = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
    steps = np.linspace(0.0, far[-1], int(far[-1] / apart) + 2)
    return np.column_stack([np.interp(steps, far, each) for each in corners.T])


def place_labels(
    panel: Any,
    labels: Sequence[tuple[float, float, str]],
    colours: Sequence[Any] = (),
    size: float = 7.5,
    reach: int = 1,
    **options: Any,
) -> None:
    """Write each label beside its point, over none of them and no line; one for which there is no room is left out.

    panel : With its limits and scales set.
    labels : The first have the first choice.
    colours : Of each label; black without.
    size : Of the letters. [points]
    reach : How many times as far away a label may stand, with a line to its point, where it has no room beside it.
    **options : Of `annotate`.
    """
    from matplotlib.text import Text

    panel.figure.draw_without_rendering()  # only then is known where anything stands
    own = panel.transData.transform(np.array([label[:2] for label in labels], dtype=float).reshape(-1, 2))
    drawn = (line for line in panel.lines if line.get_linestyle() != "None" and line.get_transform() == panel.transData)
    there = np.concatenate([own, *(_along(panel.transData.transform(line.get_xydata())) for line in drawn)])
    legend = panel.get_legend()
    taken: list[Any] = [legend.get_window_extent()] if legend else []
    frame = panel.get_window_extent()
    for number, (x, y, words) in enumerate(labels):
        colour = colours[number] if len(colours) else "black"
        for far, (right, up, horizontal, vertical) in product(range(1, reach + 1), LABEL_PLACES):
            line = {"arrowstyle": "-", "color": "#999999", "lw": 0.6} if far > 2 else None
            text = panel.annotate(words, (x, y), (far * right, far * up), textcoords="offset points", ha=horizontal,
                                  va=vertical, fontsize=size, color=colour, arrowprops=line, **options)  # fmt: skip
            text.get_window_extent()  # places it; with the line, which ends at the point, the extent is no label's
            box = Text.get_window_extent(text).padded(1)
            free = not box.count_contains(there) and not box.count_overlaps(taken)
            if free and frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1:
                taken.append(box)
                break
            text.remove()
