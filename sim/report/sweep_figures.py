"""Figures of a sweep: lines over one number with the plan that wins below, a map over two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sim.report.figures import new_figure, open_panels, place_title, plain_axis
from sim.report.plans import COLUMNS, Amount, abbreviated, amount, differing, field, short_words
from sim.report.sweep import plan_letters
from sim.search.axes import GEOMETRIC, Axis
from sim.search.sweep import Sweep
from sim.search.table import SHOWN_FIELDS

WIDTH = 9.0
"""Width of a figure. [inches]"""
LINE, SECOND, NONE, CHANGED = "#0072B2", "#009E73", "#D55E00", "#F6D9A8"
"""Colours: step time, MFU, where nothing fits, fields of the plan that changed."""
WINNERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C564B", "#999999", "#332288")
FAR_APART = 20.0
"""Times the least value: values that span more stand on a logarithmic axis."""
NEAREST = 0.3
"""Of the mean distance of values: where two are nearer, none stands to scale."""
ABREAST = 90
"""Letters that stand side by side below a figure; more are slanted."""
LABELLED = 12
"""Points of an axis up to which each has its label; cells of a map are written in up to the square of that."""


def draw_sweep(swept: Sweep, width_in: float = WIDTH) -> Any:
    """A matplotlib figure of a sweep over one axis or two."""
    return _lines(swept, width_in) if len(swept.axes) == 1 else _map(swept, width_in)


def _lines(swept: Sweep, width_in: float) -> Any:
    (axis,) = swept.axes
    plans = [point.best.scenario.plan for point in swept.points if point.best is not None]
    differ = differing(plans, (name for name in SHOWN_FIELDS if axis.path != f"plan.{name}"))
    fields_in = 0.26 * max(1, len(differ))
    figure = new_figure(width_in, 4.6 + fields_in)
    time, mfu, fields = figure.subplots(3, 1, sharex=True, height_ratios=[2.6, 1.3, fields_in])
    where = _places(axis)
    # A point without a plan breaks the lines.
    name, counted = _counted(swept)
    values = _numbers(None if each is None else each.value for each in counted)
    time.plot(where, values, "o-", color=LINE, lw=1.8, ms=5, clip_on=False, zorder=3)
    shares = _numbers(None if point.best is None else 100 * point.best.answer.mfu for point in swept.points)
    mfu.plot(where, shares, "s-", color=SECOND, lw=1.6, ms=4, clip_on=False, zorder=3)
    time.set_ylabel(name)
    mfu.set_ylabel("MFU [%]")
    found = values[np.isfinite(values)]
    open_panels(time, mfu, grid="both")
    for panel in (time, mfu):
        panel.set_ylim(0, 1.08 * panel.get_ylim()[1])
        if not len(found):
            panel.set_yticks([])
    if len(found) and found.max() > FAR_APART * found.min():
        time.set_yscale("log")
        time.set_ylim(0.7 * found.min(), 1.4 * found.max())
        plain_axis(time.yaxis)
    none = [where[number] for number, point in enumerate(swept.points) if point.best is None]
    if none:
        time.plot(none, np.zeros(len(none)), "x", color=NONE, ms=9, mew=2, clip_on=False, label="no plan can be run",
                  transform=time.get_xaxis_transform())  # fmt: skip
        time.legend(frameon=False)
    _plan_fields(fields, swept, differ, where)
    ticks = _some(len(where), LABELLED)
    words = [axis.show(axis.values[n]) for n in ticks]
    slanted = {"rotation": 25, "ha": "right"} if sum(map(len, words)) > ABREAST else {}
    fields.set_xticks([where[n] for n in ticks], words, **slanted)
    fields.set_xlabel(axis.path + ("" if _evenly(axis) or len(where) < 3 else " (not to scale)"))
    place_title(figure, f"{_title(swept)}, and what of it changes")
    return figure


def _title(swept: Sweep) -> str:
    return f"{swept.scenario.name}: the best plan by {swept.objective.replace('_', ' ')}"


def _counted(swept: Sweep) -> tuple[str, list[Amount | None]]:
    """The axis of what the objective counts, and how much of it every point takes."""
    counted = [None if point.best is None else amount(swept.objective, point.best.answer) for point in swept.points]
    unknown = "cost [GPU-seconds a step]" if swept.objective == "cost" else "best step time [s]"
    return next((each.axis for each in counted if each is not None), unknown), counted


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if each is None else each for each in values], dtype=float)


def _plan_fields(panel: Any, swept: Sweep, differ: list[str], where: np.ndarray) -> None:
    """A row a field of the winning plan that is not the same everywhere, shaded where it changes."""
    gaps = np.diff(where)
    half = 0.5 * float(gaps.min()) if len(gaps) else 0.5
    small = len(where) > LABELLED or half < 0.5 * float(np.ptp(where)) / LABELLED
    for row, name in enumerate(differ):
        begun = False
        for number, point in enumerate(swept.points):
            if point.best is None:
                continue
            if name in swept.changes(number):
                panel.barh(row, 2 * half, left=where[number] - half, height=1.0, color=CHANGED, lw=0)
            if small and begun and name not in swept.changes(number):
                continue  # as before it
            begun = True
            text = field(point.best.scenario.plan, name)
            panel.text(where[number], row, text, ha="center", va="center", fontsize=6 if small else 8)
    panel.set_yticks(range(len(differ)), [COLUMNS[name] for name in differ], fontsize=8)
    panel.set_ylim(max(len(differ), 1) - 0.5, -0.5)
    edge = max(half, 0.04 * float(np.ptp(where)))
    panel.set_xlim(where[0] - edge, where[-1] + edge)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    if not differ:
        panel.set_yticks([])
        found = any(point.best is not None for point in swept.points)
        words = "one plan wins everywhere" if found else "no plan can be run anywhere"
        panel.text(0.5, 0.5, words, transform=panel.transAxes, ha="center", va="center")


def _map(swept: Sweep, width_in: float) -> Any:
    down, across = swept.axes
    shape = (len(down.values), len(across.values))
    winners = np.array([-1 if w is None else w for w in swept.winners()]).reshape(shape)
    letters = plan_letters(swept)
    plans = {winner: p.best.scenario.plan for p, winner in zip(swept.points, swept.winners(), strict=True) if p.best}
    differ = differing(plans.values(), SHOWN_FIELDS) or SHOWN_FIELDS
    shown = list(letters.items())[:24]
    figure = new_figure(width_in * 1.25, 3.4 + 0.25 * shape[0] + 0.085 * len(shown))
    heights = [2.6 + 0.25 * shape[0], 0.085 * len(shown) + 0.2]
    left, right, legend = figure.subplot_mosaic(
        [["time", "plan"], ["legend", "legend"]], height_ratios=heights
    ).values()
    _value_map(left, swept, shape)
    from matplotlib.colors import ListedColormap

    colours = [WINNERS[number % len(WINNERS)] for number in range(max(len(letters), 1))]
    picture = np.ma.masked_less(winners, 0)
    right.imshow(picture, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, alpha=0.55, aspect="auto",
                 origin="lower")  # fmt: skip
    named = np.argwhere(winners >= 0)
    if winners.size > LABELLED**2:  # one cell of each plan has its letter, amid the others
        named = np.array([_amid(np.argwhere(winners == number)) for number in letters])
    for row, column in named.reshape(-1, 2).tolist():
        right.text(column, row, letters[int(winners[row, column])], ha="center", va="center", fontsize=8)
    right.set_title("which plan it is", fontsize=10)
    for panel in (left, right):
        _ticks(panel, down, across)
        for row, column in zip(*np.where(winners < 0), strict=True):
            panel.text(column, row, "×", ha="center", va="center", color=NONE, fontsize=13)
    left.set_ylabel(down.path)
    lines = [f"{letter}: {', '.join(short_words(plans[number], differ))}" for number, letter in shown]
    lines += [f"and {len(letters) - len(shown)} more plans"] if len(letters) > len(shown) else []
    lines += ["×: no plan can be run"] if (winners < 0).any() else []
    lines += abbreviated(differ)
    legend.axis("off")
    half = -(-len(lines) // 2)
    for place, part in ((0.0, lines[:half]), (0.53, lines[half:])):
        legend.text(place, 1.0, "\n".join(part), va="top", fontsize=7.5, transform=legend.transAxes)
    place_title(figure, _title(swept))
    return figure


def _amid(cells: np.ndarray) -> np.ndarray:
    """The cell nearest to the middle of some."""
    nearest: np.ndarray = cells[np.argmin(np.abs(cells - np.median(cells, axis=0)).sum(axis=1))]
    return nearest


def _value_map(panel: Any, swept: Sweep, shape: tuple[int, int]) -> None:
    """What the objective counts, in colour, and in figures where the cells have room for them."""
    from matplotlib.colors import LogNorm

    name, counted = _counted(swept)
    values = _numbers(None if each is None else each.value for each in counted)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (1.0, 1.0)
    norm = LogNorm(low, high) if high > 1.001 * low else None
    picture = np.ma.masked_invalid(values.reshape(shape))
    image = panel.imshow(picture, cmap="viridis_r", norm=norm, aspect="auto", origin="lower")
    if values.size > LABELLED**2:
        panel.set_title(name, fontsize=10)
        if norm is not None:
            bar = panel.figure.colorbar(image, ax=panel, pad=0.02)
            plain_axis(bar.ax.yaxis)
        return
    carried = name.endswith(("[s]", "[GB]"))  # by every figure itself
    panel.set_title(f"{name.partition(' [')[0] if carried else name}, and MFU below it", fontsize=10)
    for number, (point, own) in enumerate(zip(swept.points, counted, strict=True)):
        if point.best is None or own is None:
            continue
        row, column = divmod(number, shape[1])
        here = own.value
        dark = high > low and np.log(here / low) > 0.45 * np.log(high / low)
        text = f"{own.text}\n{point.best.answer.mfu:.0%}"
        panel.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")


def _ticks(panel: Any, down: Axis, across: Axis) -> None:
    rows, columns = _some(len(down.values), LABELLED), _some(len(across.values), 8)
    panel.set_yticks(rows, [down.show(down.values[n]) for n in rows])
    panel.set_xticks(columns, [across.show(across.values[n]) for n in columns], rotation=25, ha="right")
    panel.set_xlabel(across.path)


def _places(axis: Axis) -> np.ndarray:
    """Where values stand: to scale where each then has room, else one after the other."""
    return _scaled(axis) if _evenly(axis) else np.arange(len(axis.values), dtype=float)


def _scaled(axis: Axis) -> np.ndarray:
    """By their logarithm where they span much, so that what is spaced by factors is even."""
    values = np.array(axis.values, dtype=float)
    far = values.min() > 0 and values.max() / values.min() > GEOMETRIC
    return np.log2(values) if far else values


def _evenly(axis: Axis) -> bool:
    """Whether values rise, and the nearest two are not much nearer than the others."""
    gaps = np.diff(_scaled(axis))
    return not len(gaps) or bool((gaps > 0).all() and gaps.min() >= NEAREST * gaps.mean())


def _some(count: int, most: int) -> list[int]:
    places: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return places
