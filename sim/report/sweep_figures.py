"""Figures of a sweep: lines over one number with the plan that wins below, a map over two."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.report.figures import new_figure
from sim.report.search import COLUMNS, cell, short_words
from sim.report.sweep import plan_letters
from sim.search.among import FIELDS
from sim.search.axes import GEOMETRIC, Axis
from sim.search.sweep_result import Sweep
from sim.units import show_time

WIDTH = 9.0
"""Inches."""
LINE, SECOND, NONE, CHANGED = "#0072B2", "#009E73", "#D55E00", "#F6D9A8"
"""Colours: step time, MFU, where nothing fits, fields of the plan that changed."""
WINNERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C564B", "#999999", "#332288")
LABELLED = 12
"""Points of an axis up to which each has its label; cells of a map are written in up to the square of that."""


def draw_sweep(swept: Sweep, width_in: float = WIDTH) -> Any:
    """A matplotlib figure of a sweep over one axis or two."""
    return _lines(swept, width_in) if len(swept.axes) == 1 else _map(swept, width_in)


def _lines(swept: Sweep, width_in: float) -> Any:
    (axis,) = swept.axes
    plans = [point.best.scenario.plan for point in swept.points if point.best is not None]
    names = [name for name in FIELDS if axis.path != f"plan.{name}"]
    differ = [name for name in names if len({getattr(plan, name) for plan in plans}) > 1]
    strip = 0.26 * max(1, len(differ))
    figure = new_figure(width_in, 4.6 + strip)
    time, mfu, fields = figure.subplots(3, 1, sharex=True, height_ratios=[2.6, 1.3, strip])
    where = _places(axis)
    # A point without a plan breaks the lines.
    answers = [None if point.best is None else point.best.answer for point in swept.points]
    seconds = [np.nan if answer is None else answer.step_time_s for answer in answers]
    time.plot(where, seconds, "o-", color=LINE, lw=1.8, ms=5)
    shares = [np.nan if answer is None else 100 * answer.mfu for answer in answers]
    mfu.plot(where, shares, "s-", color=SECOND, lw=1.6, ms=4)
    time.set_ylabel("best step time [s]")
    mfu.set_ylabel("MFU [%]")
    for panel in (time, mfu):
        panel.set_ylim(0, 1.08 * panel.get_ylim()[1])
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, lw=0.6)
    none = [where[number] for number, point in enumerate(swept.points) if point.best is None]
    if none:
        time.plot(none, np.zeros(len(none)), "x", color=NONE, ms=9, mew=2, clip_on=False, label="no plan can be run")
        time.legend(frameon=False)
    _strip(fields, swept, differ, where)
    ticks = _some(len(where), LABELLED)
    fields.set_xticks([where[n] for n in ticks], [axis.show(axis.values[n]) for n in ticks])
    fields.set_xlabel(axis.path)
    scenario = swept.scenario
    figure.suptitle(
        f"{scenario.name}: the best plan by {swept.objective.replace('_', ' ')}, and what of it changes",
        x=0.01, ha="left", fontsize=11,
    )  # fmt: skip
    return figure


def _strip(panel: Any, swept: Sweep, differ: list[str], where: np.ndarray) -> None:
    """A row a field of the winning plan that is not the same everywhere, shaded where it changes."""
    gaps = np.diff(where)
    half = 0.5 * float(gaps.min(initial=1.0))
    small = len(where) > LABELLED or half < 0.5 * float(np.ptp(where)) / LABELLED
    for row, name in enumerate(differ):
        for number, point in enumerate(swept.points):
            if point.best is None:
                continue
            if name in swept.changes(number):
                panel.barh(row, 2 * half, left=where[number] - half, height=1.0, color=CHANGED, lw=0)
            text = cell(getattr(point.best.scenario.plan, name))
            panel.text(where[number], row, text, ha="center", va="center", fontsize=6 if small else 8)
    panel.set_yticks(range(len(differ)), [COLUMNS[name] for name in differ], fontsize=8)
    panel.set_ylim(max(len(differ), 1) - 0.5, -0.5)
    panel.set_xlim(where[0] - half, where[-1] + half)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    if not differ:
        panel.set_yticks([])
        panel.text(0.5, 0.5, "one plan wins everywhere", transform=panel.transAxes, ha="center", va="center")


def _map(swept: Sweep, width_in: float) -> Any:
    down, across = swept.axes
    shape = (len(down.values), len(across.values))
    seconds = np.array([np.nan if p.best is None else p.best.answer.step_time_s for p in swept.points]).reshape(shape)
    winners = np.array([-1 if w is None else w for w in swept.winners()]).reshape(shape)
    letters = plan_letters(swept)
    plans = {winner: p.best.scenario.plan for p, winner in zip(swept.points, swept.winners(), strict=True) if p.best}
    differ = [name for name in FIELDS if len({str(getattr(plan, name)) for plan in plans.values()}) > 1]
    shown = list(letters.items())[:24]
    figure = new_figure(width_in * 1.25, 3.4 + 0.25 * shape[0] + 0.085 * len(shown))
    heights = [2.6 + 0.25 * shape[0], 0.085 * len(shown) + 0.2]
    left, right, legend = figure.subplot_mosaic(
        [["time", "plan"], ["legend", "legend"]], height_ratios=heights
    ).values()
    _time_map(left, seconds, swept)
    from matplotlib.colors import ListedColormap

    colours = [WINNERS[number % len(WINNERS)] for number in range(max(len(letters), 1))]
    picture = np.ma.masked_less(winners, 0)
    right.imshow(picture, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, alpha=0.55, aspect="auto",
                 origin="lower")  # fmt: skip
    if winners.size <= LABELLED**2:
        for (row, column), winner in np.ndenumerate(winners):
            if winner >= 0:
                right.text(column, row, letters[int(winner)], ha="center", va="center", fontsize=8)
    right.set_title("which plan it is", fontsize=10)
    for panel in (left, right):
        _ticks(panel, down, across)
        for row, column in zip(*np.where(winners < 0), strict=True):
            panel.text(column, row, "×", ha="center", va="center", color=NONE, fontsize=13)
    left.set_ylabel(down.path)
    lines = [f"{letter}: {short_words(plans[number], differ)}"
             for number, letter in shown]  # fmt: skip
    lines += [f"and {len(letters) - len(shown)} more plans"] if len(letters) > len(shown) else []
    lines += ["×: no plan can be run"] if (winners < 0).any() else []
    legend.axis("off")
    half = -(-len(lines) // 2)
    for place, part in ((0.0, lines[:half]), (0.53, lines[half:])):
        legend.text(place, 1.0, "\n".join(part), va="top", fontsize=7.5, transform=legend.transAxes)
    figure.suptitle(f"{swept.scenario.name}: the best plan by {swept.objective.replace('_', ' ')}",
                    x=0.01, ha="left", fontsize=11)  # fmt: skip
    return figure


def _time_map(panel: Any, seconds: np.ndarray, swept: Sweep) -> None:
    from matplotlib.colors import LogNorm

    finite = seconds[np.isfinite(seconds)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (1.0, 1.0)
    norm = LogNorm(low, high) if high > 1.001 * low else None
    panel.imshow(np.ma.masked_invalid(seconds), cmap="viridis_r", norm=norm, aspect="auto", origin="lower")
    panel.set_title("best step time, and MFU below it", fontsize=10)
    if seconds.size > LABELLED**2:
        return
    for number, point in enumerate(swept.points):
        if point.best is None:
            continue
        row, column = divmod(number, seconds.shape[1])
        here = seconds[row, column]
        dark = high > low and np.log(here / low) > 0.45 * np.log(high / low)
        text = f"{show_time(here)}\n{point.best.answer.mfu:.0%}"
        panel.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")


def _ticks(panel: Any, down: Axis, across: Axis) -> None:
    rows, columns = _some(len(down.values), LABELLED), _some(len(across.values), 8)
    panel.set_yticks(rows, [down.show(down.values[n]) for n in rows])
    panel.set_xticks(columns, [across.show(across.values[n]) for n in columns], rotation=25, ha="right")
    panel.set_xlabel(across.path)


def _places(axis: Axis) -> np.ndarray:
    """Where values stand: by their logarithm where they span much, so that what is spaced by factors is even."""
    values = np.array(axis.values, dtype=float)
    far = values.min() > 0 and values.max() / values.min() > GEOMETRIC
    return np.log2(values) if far else values


def _some(count: int, most: int) -> list[int]:
    places: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return places
