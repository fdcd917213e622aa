"""A sweep in a terminal and as figures: the best plan at each value, what of it changes, a grid for two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from sim.canvas import new_figure
from sim.report import plans as say
from sim.report.figures import open_panels, place_title, plain_axis
from sim.report.terminal import assumptions, grouped, shared_line, title
from sim.search.axes import GEOMETRIC, SIZE, Axis
from sim.search.candidate import SHOWN_FIELDS
from sim.search.sweep import INTERRUPTED, Sweep
from sim.specs import ParallelPlan
from sim.specs.fields import NumericField
from sim.table import Table, columns_table, plain_table

REASONS, SHOWN = 12, 8
"""Reasons that are told why points have no plan, and points that are named with each."""


def sweep_view(swept: Sweep) -> Group:
    """What was swept, the answers, and notes."""
    scenario = swept.scenario
    names = " and ".join(axis.path for axis in swept.axes)
    best = f"best plan by {swept.objective.replace('_', ' ')} over {names}"
    asked = title(scenario.name, f"  {scenario.model.name}, {best}")
    body = _lines(swept) if len(swept.axes) == 1 else _grid(swept)
    if not swept.finished:
        found = sum(point.infeasible != INTERRUPTED for point in swept.points)
        asked.append(f"\ninterrupted: only {found:,} of {len(swept.points):,} points were searched", "bold red")
    return Group(asked, "", *body, *_reasons(swept), *assumptions(swept.notes))


def _lines(swept: Sweep) -> list[RenderableType]:
    """A row a point; of the winner stands what differs from the one above."""
    (axis,) = swept.axes
    found = {number: point.best for number, point in enumerate(swept.points) if point.best is not None}
    plans = [each.scenario.plan for each in found.values()]
    answers = [each.answer for each in found.values()]
    several = bool(say.differing(plans, ["num_gpus"]))
    # dp follows from the others where the number of GPUs is given.
    names = [name for name in SHOWN_FIELDS if f"plan.{name}" != axis.path and (name != "dp" or several)]
    differ, numbers = say.differing(plans, names), say.answer_columns(swept.objective, answers)
    if several and axis.path != SIZE:
        numbers["GPUs"] = [f"{answer.num_gpus:,}" for answer in answers]
    name = fill(axis.path.rpartition(".")[2].replace("_", " "), 12, break_long_words=False)
    table = plain_table(name, *numbers, *map(say.heading, differ), left=(), gap=1)
    rows = dict(zip(found, zip(*numbers.values(), strict=True), strict=True))
    for number, point in enumerate(swept.points):
        if point.best is None:
            table.add_row(axis.show(point.values[0]), Text("none", style="red"))
            continue
        plan, changed = point.best.scenario.plan, differ if number == next(iter(found)) else swept.changes(number)
        fields = (say.field(plan, name) if name in changed else Text("·", "dim") for name in differ)
        table.add_row(axis.show(point.values[0]), *rows[number], *fields)
    parts: list[RenderableType] = [_shared(swept, plans)] if plans else []
    return [*parts, table, *([Text("· as in the row above", style="dim")] if differ else [])]


def _shared(swept: Sweep, plans: Sequence[ParallelPlan]) -> Text:
    """What all winners have in common."""
    return shared_line([*say.shared_words(plans, say.fields_for(swept.scenario.model)), *say.shared_gpus(plans)])


def _grid(swept: Sweep) -> list[RenderableType]:
    """Step times, the first axis down and the second across, each with the letter of its plan."""
    down, across = swept.axes
    winners, letters, counted = swept.winners(), plan_letters(swept), _counted(swept)[1]
    cells = [
        Text("none", style="red") if each is None else Text(f"{each.text} {letters[winner]}")
        for each, winner in zip(counted, winners, strict=True)
    ]
    table, wide = plain_table("", *map(across.show, across.values), left=()), len(across.values)
    for row, value in enumerate(down.values):
        table.add_row(down.show(value), *cells[row * wide : (row + 1) * wide])
    plans = {n: p.best.scenario.plan for n, p in zip(winners, swept.points, strict=True) if p.best is not None}
    if not plans:
        return [table]
    differ = say.differing(plans.values(), SHOWN_FIELDS)
    columns = {say.heading(name): [say.field(plans[number], name) for number in letters] for name in differ}
    legend = columns_table({"": list(letters.values()), **columns}, gap=1, wrap=("",))
    by = "" if swept.objective == "step_time" else f" by {swept.objective.replace('_', ' ')}"
    name = next(each.heading for each in counted if each is not None)
    name = "step time" if name == "step" else name
    heads = Text(f"{name[0].upper()}{name[1:]} of the best plan{by}; down {down.path}, across {across.path}")
    return [heads, table, "", _shared(swept, list(plans.values())), legend]


def plan_letters(swept: Sweep) -> dict[int | None, str]:
    """A letter for each plan that wins somewhere: A to Z, then AA and on."""
    numbers = sorted({winner for winner in swept.winners() if winner is not None})
    return {number: say.letter(number) for number in numbers}


def _reasons(swept: Sweep) -> list[RenderableType]:
    """Why points have no plan, points of one reason together, the first and the last of them where they are many."""
    by_reason = grouped(
        (point.infeasible, ", ".join(map(Axis.show, swept.axes, point.values)))
        for point in swept.points
        if point.infeasible is not None
    )
    said: list[RenderableType] = [""] if by_reason else []
    for reason, where in list(by_reason.items())[:REASONS]:
        shown = where if len(where) <= SHOWN else [*where[: SHOWN - 1], f"… {where[-1]}"]
        said.append(f"none at {' and at '.join(shown)}: {reason}")
    left = len(by_reason) - REASONS
    return [*said, *([f"and {left:,} more reasons at other points (--json has all)"] if left > 0 else [])]


def fields_view(fields: Sequence[NumericField]) -> Table:
    """The numbers that a sweep may go over, with the scenario's own values."""
    axes = [Axis(each.path, each.full_path, each.unit, (), "listed") for each in fields]
    pairs = zip(fields, axes, strict=True)
    values = ["not set" if each.value is None else axis.show(each.value) for each, axis in pairs]
    table = columns_table({"field": [each.path for each in fields], "value": values}, left=("field", "value"))
    for column in table.columns:
        column.overflow, column.no_wrap = "fold", False
    return table


WIDTH = 9.0
"""Width of a figure. [inches]"""
LINE, SECOND, NONE, CHANGED = "#0072B2", "#009E73", "#D55E00", "#F6D9A8"
"""Colours: step time, MFU, where nothing fits, fields of the plan that changed."""
FAR_APART = 20.0
"""Times the least value: values that span more stand on a logarithmic axis."""
NEAREST = 0.3
"""Share of the mean distance between values below which the axis is not to scale."""
ABREAST = 90
"""Letters that stand side by side below a figure; more are slanted."""
NAMED = 24
"""Plans that are told below a map."""
LABELLED = 12
"""Points of an axis up to which each has its label; cells of a map are written in up to the square of that."""


def draw_sweep(swept: Sweep, width_in: float = WIDTH) -> Any:
    """A matplotlib figure of a sweep over one axis or two."""
    return _line_chart(swept, width_in) if len(swept.axes) == 1 else _map(swept, width_in)


def _line_chart(swept: Sweep, width_in: float) -> Any:
    (axis,) = swept.axes
    plans = [point.best.scenario.plan for point in swept.points if point.best is not None]
    differ = say.differing(plans, (name for name in SHOWN_FIELDS if axis.path != f"plan.{name}"))
    fields_in = 0.26 * max(1, len(differ))
    figure = new_figure(width_in, 4.6 + fields_in)
    time, mfu, fields = figure.subplots(3, 1, sharex=True, height_ratios=[2.6, 1.3, fields_in])
    # Values stand to scale where each then has room, else one after the other.
    even = _evenly(axis)
    where = _scaled(axis) if even else np.arange(len(axis.values), dtype=float)
    name, counted = _counted(swept)  # a point without a plan breaks the lines
    values = np.array([np.nan if each is None else each.value for each in counted])
    shares = np.array([np.nan if point.best is None else 100 * point.best.answer.mfu for point in swept.points])
    time.plot(where, values, "o-", color=LINE, lw=1.8, ms=5, clip_on=False, zorder=3)
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
        time.set(yscale="log", ylim=(0.7 * found.min(), 1.4 * found.max()))
        plain_axis(time.yaxis)
    none = where[np.isnan(values)]
    if len(none):
        time.plot(none, np.zeros(len(none)), "x", color=NONE, ms=9, mew=2, clip_on=False, label="no plan can be run",
                  transform=time.get_xaxis_transform())  # fmt: skip
        time.legend(frameon=False)
    _plan_fields(fields, swept, differ, where)
    ticks = _spread_evenly(len(where), LABELLED)
    words = [axis.show(axis.values[n]) for n in ticks]
    slanted = {"rotation": 25, "ha": "right"} if sum(map(len, words)) > ABREAST else {}
    fields.set_xticks([where[n] for n in ticks], words, **slanted)
    fields.set_xlabel(axis.path + ("" if even or len(where) < 3 else " (not to scale)"))
    place_title(figure, f"{_title(swept)}, and what of it changes")
    return figure


def _title(swept: Sweep) -> str:
    return f"{swept.scenario.name}: the best plan by {swept.objective.replace('_', ' ')}"


def _counted(swept: Sweep) -> tuple[str, list[say.Amount | None]]:
    """The axis of what the objective counts, and how much of it every point takes."""
    counted = [None if point.best is None else say.amount(swept.objective, point.best.answer) for point in swept.points]
    unknown = "cost [GPU-seconds a step]" if swept.objective == "cost" else "best step time [s]"
    return next((each.axis for each in counted if each is not None), unknown), counted


def _plan_fields(panel: Any, swept: Sweep, differ: list[str], where: np.ndarray) -> None:
    """A row a field of the winning plan that is not the same everywhere, shaded where it changes."""
    half = 0.5 * float(np.diff(where).min()) if len(where) > 1 else 0.5
    small = len(where) > LABELLED or half < 0.5 * float(np.ptp(where)) / LABELLED
    found = {number: point.best.scenario.plan for number, point in enumerate(swept.points) if point.best is not None}
    for row, name in enumerate(differ):
        for number, plan in found.items():
            changed = name in swept.changes(number)
            if changed:
                panel.barh(row, 2 * half, left=where[number] - half, height=1.0, color=CHANGED, lw=0)
            if changed or not small or number == next(iter(found)):  # else it is as before it
                look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6 if small else 8}
                panel.text(where[number], row, say.field(plan, name), **look)
    panel.set_yticks(range(len(differ)), [say.COLUMNS[name] for name in differ], fontsize=8)
    panel.set_ylim(max(len(differ), 1) - 0.5, -0.5)
    edge = max(half, 0.04 * float(np.ptp(where)))
    panel.set_xlim(where[0] - edge, where[-1] + edge)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    if not differ:
        panel.set_yticks([])
        words = "one plan wins everywhere" if found else "no plan can be run anywhere"
        panel.text(0.5, 0.5, words, transform=panel.transAxes, ha="center", va="center")


def _map(swept: Sweep, width_in: float) -> Any:
    """What the objective counts in colour, in each cell its figures and the letter of its plan, and below the plans."""
    (down, across), letters = swept.axes, plan_letters(swept)
    winners = np.array([-1 if winner is None else winner for winner in swept.winners()])
    winners = winners.reshape(len(down.values), len(across.values))
    lines = _plan_lines(swept, letters)
    heights = [2.6 + 0.25 * len(winners), 0.2 + 0.075 * len(lines)]
    figure = new_figure(width_in, 0.8 + sum(heights))
    panel, below = figure.subplots(2, 1, height_ratios=heights)
    _cells(panel, swept, winners, letters)
    for grid, draw in ((winners, panel.vlines), (winners.T, panel.hlines)):  # between regions of plans
        line, place = np.nonzero(grid[:, 1:] != grid[:, :-1])
        draw(place + 0.5, line - 0.5, line + 0.5, color="white", lw=2.5)
    rows, columns = _spread_evenly(len(down.values), LABELLED), _spread_evenly(len(across.values), LABELLED)
    panel.set_yticks(rows, [down.show(down.values[n]) for n in rows])
    panel.set_xticks(columns, [across.show(across.values[n]) for n in columns], rotation=25, ha="right")
    panel.set(xlabel=across.path, ylabel=down.path)
    below.axis("off")
    half = -(-len(lines) // 2)
    for where, part in ((0.0, lines[:half]), (0.53, lines[half:])):
        below.text(where, 1.0, "\n".join(part), va="top", fontsize=7.5, transform=below.transAxes)
    place_title(figure, _title(swept))
    return figure


def _cells(panel: Any, swept: Sweep, winners: np.ndarray, letters: Mapping[int | None, str]) -> None:
    """Colours, and figures where the cells have room for them; else a letter amid the cells of each plan."""
    from matplotlib.colors import LogNorm

    name, counted = _counted(swept)
    values = np.array([np.nan if each is None else each.value for each in counted]).reshape(winners.shape)
    low, high = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (1.0, 1.0)
    norm = LogNorm(low, high) if high > 1.001 * low else None
    image = panel.imshow(np.ma.masked_invalid(values), cmap="viridis_r", norm=norm, aspect="auto", origin="lower")
    small = values.size <= LABELLED**2
    named = {} if small else {number: np.argwhere(winners == number) for number in letters}
    amid = {tuple(cells[np.argmin(np.abs(cells - np.median(cells, axis=0)).sum(axis=1))]) for cells in named.values()}
    for place, point, own in zip(np.ndindex(winners.shape), swept.points, counted, strict=True):
        look: dict[str, Any] = {"ha": "center", "va": "center"}
        if point.best is None or own is None:
            panel.text(*place[::-1], "×", color=NONE, fontsize=13, **look)
        elif small or place in amid:
            letter = letters[int(winners[place])]
            text = f"{own.text} {letter}\n{point.best.answer.mfu:.0%}" if small else letter
            dark = high > low and np.log(own.value / low) > 0.45 * np.log(high / low)
            panel.text(*place[::-1], text, color="white" if dark else "black", fontsize=8, **look)
    if not small and norm is not None:
        plain_axis(panel.figure.colorbar(image, ax=panel, pad=0.02).ax.yaxis)
    carried = name.endswith(("[s]", "[GB]"))  # by every figure itself
    figures = f"{name.partition(' [')[0] if carried else name} with its plan, and MFU below it"
    panel.set_title(figures if small else name, fontsize=10)


def _plan_lines(swept: Sweep, letters: Mapping[int | None, str]) -> list[str]:
    """What the letters stand for."""
    plans = {winner: p.best.scenario.plan for p, winner in zip(swept.points, swept.winners(), strict=True) if p.best}
    differ = say.differing(plans.values(), SHOWN_FIELDS) or SHOWN_FIELDS
    lines = [f"{letter}: {', '.join(say.short_words(plans[number], differ))}" for number, letter in letters.items()]
    lines = lines if len(lines) <= NAMED else [*lines[:NAMED], f"and {len(lines) - NAMED} more plans"]
    lines += ["×: no plan can be run"] if any(point.best is None for point in swept.points) else []
    return [*lines, *say.abbreviated(differ)]


def _scaled(axis: Axis) -> np.ndarray:
    """The values of an axis, as logarithms if they span much, so that equal factors are equally far apart."""
    values = np.array(axis.values, dtype=float)
    far = values.min() > 0 and values.max() / values.min() > GEOMETRIC
    return np.log2(values) if far else values


def _evenly(axis: Axis) -> bool:
    """Whether values rise, and the nearest two are not much nearer than the others."""
    gaps = np.diff(_scaled(axis))
    return not len(gaps) or bool((gaps > 0).all() and gaps.min() >= NEAREST * gaps.mean())


def _spread_evenly(count: int, most: int) -> list[int]:
    places: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return places
