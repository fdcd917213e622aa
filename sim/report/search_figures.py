"""Figures of a search: its plans by time and memory, what each value of each axis costs, and a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.canvas import new_figure
from sim.report.facts import GROUP_OF, GROUPS
from sim.report.figures import open_panels, place_labels, place_title, plain_axis
from sim.report.plans import COLUMNS, HEADINGS, amount, cell, field, run_cost
from sim.report.search_questions import swept_fields
from sim.search import SearchResult
from sim.search.explain import losses_by_cause
from sim.search.sweep import Sweep, ValueCost

WIDTH = 9.0
"""Width of a figure. [inches]"""
LINE, NONE, CHANGED = "#0072B2", "#D55E00", "#F6D9A8"
"""Colours of what is counted, of where nothing fits, and of fields of the plan that changed."""
CLOUD = 20_000
"""Plans drawn behind a front."""
LABELLED = 12
"""Values of an axis up to which each has its label."""
FAR_APART = 20.0
"""Times the least value: values that span more stand on a logarithmic axis."""


def _shades(number: int) -> list[Any]:
    """Colours from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](share) for share in np.linspace(0, 0.8, number)]


def draw_pareto(result: SearchResult, width_in: float = WIDTH) -> Any:
    """Plans by step time and memory, those that none beats in time, memory and GPUs, and the best by the exact engine.

    Beside it, if there are several numbers of GPUs, what the fastest plan of each costs.
    """
    from matplotlib.patheffects import withStroke

    gpus, front = result.column("num_gpus"), result.pareto()
    sizes = np.unique(gpus[front])
    shades, several = _shades(len(sizes)), len(sizes) > 1
    figure = new_figure(width_in, 4.8)
    left, *right = figure.subplots(1, 1 + several, squeeze=False)[0]
    seconds, nbytes, limit = (
        result.prices.step_time_s,
        result.prices.memory_bytes / 1e9,
        result.memory_limit_bytes / 1e9,
    )
    for there, colour, label in ((~result.fits, "#CCCCCC", "does not fit"), (result.fits, "#8EC3E6", "fits")):
        shown = np.flatnonzero(there)
        shown = shown[:: max(1, len(shown) // CLOUD)]
        left.plot(nbytes[shown], seconds[shown], ".", ms=2, color=colour, label=label, zorder=0, rasterized=True)
    ends: list[tuple[float, float, str]] = []
    for size, shade in zip(sizes.tolist(), shades, strict=True):
        own = front[gpus[front] == size]
        own = own[np.argsort(nbytes[own])]
        label = "" if ends else "no plan beats it in time, memory and GPUs"
        left.step(nbytes[own], seconds[own], "o-", where="post", color=shade, lw=1.2, ms=4, label=label)
        ends.append((float(nbytes[own[-1]]), float(seconds[own[-1]]), f"{size:,} GPUs"))
    exact = [(each.answer.largest.total / 1e9, each.answer.step_time_s) for each in result.best]
    left.plot(*zip(*exact, strict=True), "D", ms=4, color=NONE, label=f"best {len(exact)}, by the exact engine")
    left.axvline(limit, color="0.3", lw=1, ls="--")
    left.set(xscale="log", xlabel="memory of the fullest GPU [GB]; dashed: its limit", ylabel="step time [s]")
    slowest = 2 * seconds[front].max() if len(front) else seconds.max()
    left.set(yscale="log", xlim=(None, min(4 * limit, 1.2 * nbytes.max())), ylim=(0.85 * seconds.min(), slowest))
    for axis in (left.xaxis, left.yaxis):
        plain_axis(axis)
    open_panels(left)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8, markerscale=2)
    name = result.space.scenario.name
    place_title(figure, f"{name}: {result.plans_priced:,} plans, by the closed form", bold=True)
    if several:
        _draw_costs(right[0], result, front, sizes, shades)
        halo = withStroke(linewidth=2.5, foreground="white")
        place_labels(left, ends, shades, size=7, path_effects=[halo], zorder=4)
    return figure


def _draw_costs(panel: Any, result: SearchResult, front: np.ndarray, sizes: np.ndarray, shades: Sequence[Any]) -> None:
    """What the fastest plan of each number of GPUs takes and costs; hollow if another one is faster and cheaper."""
    gpus, seconds = result.column("num_gpus"), result.prices.step_time_s
    steps, unit = run_cost(result.space.scenario)
    times = np.array([seconds[front[gpus[front] == size]].min() * steps for size in sizes])
    costs = times * sizes
    for time, cost, shade in zip(times, costs, shades, strict=True):
        beaten = bool(((times < time) & (costs <= cost) | (times <= time) & (costs < cost)).any())
        panel.plot(time, cost, "o", color=shade, mfc="none" if beaten else shade, ms=6)
    known = result.space.scenario.training.tokens is not None
    panel.set(xscale="log", yscale="log", xlabel=f"time of the {'run [days]' if known else 'step [s]'}")
    panel.set_ylabel(f"cost [{unit}]")
    panel.set_title("fastest plan of each number of GPUs\n(hollow: another is faster and cheaper)", fontsize=9)
    panel.margins(0.12)
    for axis in (panel.xaxis, panel.yaxis):
        plain_axis(axis)
    open_panels(panel)
    place_labels(panel, [(*at, f"{size:,}") for *at, size in sorted(zip(times, costs, sizes, strict=True))])


def draw_sensitivity(result: SearchResult, costs: Sequence[ValueCost], width_in: float = 1.2 * WIDTH) -> Any:
    """A panel an axis: the loss of the best plan with each value, coloured by what most of it is."""
    from matplotlib.patches import Patch

    axes = list(dict.fromkeys(each.axis for each in costs))
    columns = min(3, len(axes))
    rows = -(-len(axes) // columns)
    figure = new_figure(width_in, 0.6 + 2.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    used: dict[str, str] = {}
    for panel, axis in zip(panels, axes, strict=False):
        _draw_losses(panel, result, [each for each in costs if each.axis == axis], used)
        panel.set_title(HEADINGS[axis], fontsize=10)
    for panel in panels[len(axes) :]:
        panel.axis("off")
    handles = [Patch(color=colour, label=what) for what, colour in used.items()]
    look: dict[str, Any] = {"ncols": 4, "frameon": False, "fontsize": 8, "title": "most of it", "title_fontsize": 9}
    figure.legend(handles=handles, loc="outside lower center", **look)
    best = result.best[0].scenario.plan
    title = (
        f"{result.space.scenario.name}: what each value loses by {result.objective.replace('_', ' ')} against the best "
        f"plan (tp {best.tp}, pp {best.pp}, micro-batch {best.microbatch_size}); ×: none fits"
    )
    place_title(figure, title)
    return figure


def _draw_losses(panel: Any, result: SearchResult, rows: Sequence[ValueCost], used: dict[str, str]) -> None:
    """A bar a value, cut off at a loss of 100 %; `used` has the colours that were taken, by what they stand for."""
    losses = [each.why.loss for each in rows if each.why.loss is not None]
    top, many = min(1.0, max([0.05, *losses])), len(rows) >= 9
    for place, each in enumerate(rows):
        answer, loss = each.why.answer, each.why.loss
        if answer is None or loss is None:
            panel.plot(place, 0, "x", color=NONE, ms=7, mew=2, clip_on=False)
            continue
        what, colour = "", "0.6"
        if loss > 0:
            causes = losses_by_cause(result, answer)
            what, colour, _ = GROUPS[GROUP_OF[max(causes, key=lambda name: causes[name])]]
            used[what] = colour
        panel.bar(place, 100 * min(loss, top), color=colour, width=0.75)
        label = "best" if each.is_best else f"{100 * loss:+.{0 if abs(loss) > 0.1 else 1}f}"
        look: dict[str, Any] = {"weight": "bold" if each.is_best else "normal", "fontsize": 5.5 if many else 7}
        height = 100 * max(min(loss, top), 0) + 2 * top
        panel.text(place, height, label, ha="center", va="bottom", rotation=90 if many else 0, **look)
    panel.set_xticks(range(len(rows)), [cell(each.value) for each in rows], fontsize=7, rotation=60 if many else 0)
    panel.set_ylim(min(0.0, 110 * min([0.0, *losses])), (130 if many else 115) * top)
    panel.set_ylabel("loss [%]", fontsize=8)
    panel.tick_params(axis="y", labelsize=7)
    open_panels(panel)


def draw_sweep(swept: Sweep, width_in: float = WIDTH) -> Any:
    """What the objective counts along the last axis, a line a value of the first of two.

    Values stand one after the other. Over one axis a strip below shows what of the plan changes.
    """
    *lines, axis = swept.axes
    counted = [None if point.best is None else amount(swept.objective, point.best.answer) for point in swept.points]
    values = np.array([np.nan if each is None else each.value for each in counted]).reshape(-1, len(axis.values))
    differ = [] if lines else swept_fields(swept)
    heights = [3.2, *([0.26 * len(differ)] if differ else [])]
    figure = new_figure(width_in, 1.2 + sum(heights))
    top, *strip = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for row, shade in zip(range(len(values)), _shades(len(values)) if lines else [LINE], strict=True):
        label = f"{lines[0].path} {lines[0].show(lines[0].values[row])}" if lines else ""
        top.plot(values[row], "o-", color=shade, lw=1.8, ms=5, clip_on=False, zorder=3, label=label)
    found = values[np.isfinite(values)]
    if len(found) and found.max() > FAR_APART * found.min():
        top.set_yscale("log")
        plain_axis(top.yaxis)
    else:
        top.set_ylim(0, 1.08 * top.get_ylim()[1])
    none = np.flatnonzero(np.isnan(values).all(axis=0))
    if len(none):
        place = {"clip_on": False, "transform": top.get_xaxis_transform()}
        top.plot(none, np.zeros(len(none)), "x", color=NONE, ms=9, mew=2, label="no plan can be run", **place)
    if lines or len(none):
        top.legend(frameon=False, fontsize=8)
    top.set_ylabel(next((each.axis for each in counted if each is not None), "no plan can be run"))
    open_panels(top, grid="both")
    for panel in strip:
        _draw_changes(panel, swept, differ)
    last = (top, *strip)[-1]
    ticks = np.unique(
        np.linspace(0, len(axis.values) - 1, min(len(axis.values), LABELLED)).round().astype(int)
    ).tolist()
    last.set_xticks(ticks, [axis.show(axis.values[at]) for at in ticks])
    last.set_xlabel(axis.path)
    changes = "" if lines else ", and what of it changes" if differ else "; one plan wins everywhere"
    objective = swept.objective.replace("_", " ")
    place_title(figure, f"{swept.scenario.name}: the best plan by {objective}{changes if len(found) else ''}")
    return figure


def _draw_changes(panel: Any, swept: Sweep, differ: Sequence[str]) -> None:
    """A row a field of the winning plan, shaded where it changes."""
    found = {number: point.best.scenario.plan for number, point in enumerate(swept.points) if point.best is not None}
    small = len(swept.points) > LABELLED
    for row, name in enumerate(differ):
        for number, plan in found.items():
            changed = name in swept.changes(number)
            if changed:
                panel.barh(row, 1.0, left=number - 0.5, height=1.0, color=CHANGED, lw=0)
            if changed or not small or number == next(iter(found)):  # else it is as before it
                panel.text(number, row, field(plan, name), ha="center", va="center", fontsize=6 if small else 8)
    panel.set_yticks(range(len(differ)), [COLUMNS[name] for name in differ], fontsize=8)
    panel.set(xlim=(-0.5, len(swept.points) - 0.5), ylim=(len(differ) - 0.5, -0.5))
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
