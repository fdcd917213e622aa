"""Gantt charts by matplotlib: what every pipeline rank does when, what follows, and what it keeps in memory meanwhile.

Stretches of a step that are drawn apart are panels side by side, each with a time axis of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.canvas import check_width, new_figure
from sim.engines.tasks import DATA, GRADIENTS, ONCE
from sim.report.facts import microbatch_words, plan_degrees
from sim.report.figures import LOOKS, ink, place_title, shade
from sim.report.gantt.chart import Bars, Spans, StepView, spans_of, step_bars, time_unit
from sim.schedules.actions import KINDS, U
from sim.units import show, show_time

PLACES_PER_INCH = 24.0
"""Forwards side by side in an inch of axis that can still be told apart."""
LANES = 0.84
"""Width of the lanes, of the figure."""
LANE, THIN = 0.84, 0.13
"""Height of bars, and of what bars overlap, of a rank's row."""
NUMBER_POINTS, SMALLEST_POINTS, DIGIT = 6.5, 4.8, 0.62
"""Largest and smallest font size of micro-batch numbers, and the width of a digit of it."""
MOST_NUMBERS, MOST_BARS, HAIRS = 4000, 2000, 20_000
"""Where more numbers would fit, none is written; where there are more bars of one look, gaps that are shorter than this
part of the drawing are closed: each takes a moment to draw."""
EDGE_POINTS, VISIBLE_POINTS = 3.2, 0.4
"""Narrower bars have no edge, and are not listed in the legend."""


def gantt_figure(
    view: StepView, *, between: tuple[float | None, float | None] = (None, None), width_in: float = 11.0
) -> Any:
    """A Gantt chart of a step with its memory below, as a matplotlib figure.

    between : A stretch of the step; without, all of it, or its beginning and end where it is too long to be read. [s]
    width_in : [inches]
    """
    check_width(width_in)
    spans = spans_of([view], LANES * width_in * PLACES_PER_INCH, between)
    lanes_in = float(np.clip(0.34 * view.program.order.num_ranks, 0.7, 7.5))
    figure, (lanes, memory) = _panels(width_in, lanes_in + 2.75 + 0.35 * (width_in < 9), spans, (lanes_in, 1.15))
    seen = draw_lanes(lanes, view, spans, LANES * width_in, lanes_in)
    _name_ranks(lanes, view, lanes_in)
    _draw_memory(memory, view, spans, width_in)
    _draw_time_axis(memory, spans, view.horizon, width_in)
    _place_legend(figure, legend_handles(view, seen), width_in)
    what = f"{view.scenario.model.name}, {view.scenario.plan.schedule}: {_step_words(view, ',')}"
    place_title(figure, what, size=12 if width_in >= 8 else 10, bold=True)
    lanes[0].set_title(_subtitle(view, width_in), loc="left", fontsize=8.5, color="#444444")
    return figure


def _step_words(view: StepView, mark: str, slower: str = "") -> str:
    answer = view.answer
    return f"{view.period} {show_time(answer.step_time_s)}{slower}{mark} bubble {answer.bubble_fraction:.1%}"


def comparison_figure(views: Sequence[StepView], *, width_in: float = 11.0) -> Any:
    """The Gantt charts of several schedules, one below the other on one time axis, as a matplotlib figure.

    Parameters and raises as for `gantt_figure`.
    """
    check_width(width_in)
    spans = spans_of(views, LANES * width_in * PLACES_PER_INCH)
    heights = [float(np.clip(0.085 * view.program.order.num_ranks, 0.42, 0.95)) for view in views]
    figure, rows = _panels(width_in, sum(heights) + 0.31 * len(views) + 1.5, spans, heights)
    handles: dict[str, Any] = {}
    steps, end = [view.answer.step_time_s for view in views], spans[-1][1]
    for row, view, step, height in zip(rows, views, steps, heights, strict=True):
        # Of a stream without flush a stretch of its steady state is drawn.
        shift = max(0.0, view.horizon - step) if view.streams else 0.0
        seen = draw_lanes(row, view, spans, 0.92 * width_in, height, shift, versions=False)
        for handle in legend_handles(view, seen, durations=False):
            handles.setdefault(handle.get_label(), handle)
        if step > end * (1 + 1e-9):
            row[-1].text(end, -0.6, f"goes on to {show_time(step)} →", fontsize=7, ha="right", va="bottom")
        for panel in row:
            panel.axvline(step, color="black", linewidth=1.2)
            panel.set_yticks([])
        slower = "" if step <= min(steps) * (1 + 1e-9) else f" (+{step / min(steps) - 1:.1%})"
        row[0].set_title(_headline(view, slower, width_in), loc="left", fontsize=8.5 if width_in >= 8 else 7, pad=2)
    _draw_time_axis(rows[-1], spans, end, width_in)
    figure.supylabel("pipeline ranks, the first on top", fontsize=8)
    _place_legend(figure, list(handles.values()), width_in)
    scenario, answer, several = views[0].scenario, views[0].answer, len(views) > 1
    name = f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}"
    what = f"{name}: one step under {len(views)} schedule{'s' if several else ''}"
    ordered = "; fastest first" if several and steps == sorted(steps) else ""
    words = f"{what}\n{plan_degrees(scenario.plan)} · {microbatch_words(answer)}{ordered}"
    place_title(figure, words, size=12 if width_in >= 8 else 9, bold=True)
    return figure


def _panels(width_in: float, height_in: float, spans: Spans, heights: Sequence[float]) -> tuple[Any, Any]:
    """A figure, and its panels: a row for each height, a column for each stretch of time."""
    figure = new_figure(width_in, height_in)
    widths = [end - begin for begin, end in spans]
    rows = figure.subplots(
        len(heights), len(spans), sharex="col", sharey="row", squeeze=False, height_ratios=heights, width_ratios=widths
    )
    figure.get_layout_engine().set(h_pad=0.02, hspace=0.01, w_pad=0.09, wspace=0.0)
    return figure, rows


def draw_lanes(
    row: Sequence[Any],
    view: StepView,
    spans: Spans,
    width_in: float,
    height_in: float,
    shift: float = 0.0,
    versions: bool = True,
) -> set[str]:
    """Draw every rank's bars; return what was drawn wide enough to be seen, of LOOKS, and whether `hatched`.

    row : One for each stretch of time, together `width_in` wide and each `height_in` high. [inches]
    shift : Time at which the drawing begins. [s]
    versions : Name the versions of the weights where updates are actions.
    """
    order, labels = view.program.order, np.array(view.labels())
    per_s = 72 * width_in / sum(end - begin for begin, end in spans)
    shown = (view.compute_end > spans[0][0] + shift) & (view.start < spans[-1][1] + shift)
    fitting = int((_number_sizes(labels, (view.compute_end - view.start) * per_s)[shown] > 0).sum())
    numbered = 72 * height_in / order.num_ranks >= NUMBER_POINTS + 1.5 and fitting <= MOST_NUMBERS
    hatched = order.copies > 1 and per_s * float(np.mean(view.compute_end - view.start)) >= EDGE_POINTS
    seen = {"hatched"} if hatched else set()
    for each in step_bars(view, shift):
        wide = float(np.median(each.end - each.begin)) * per_s
        if each.what == "send" and wide <= VISIBLE_POINTS:
            continue
        for part, fill, other_way in _shades(view, each):
            hatch = LOOKS[each.what].colour if other_way and hatched else None
            if _draw_bars(row, spans, part, fill, edge=part.action is not None and wide >= EDGE_POINTS, hatch=hatch):
                seen.add(each.what)
            if numbered and part.action is not None and each.what != "U":
                _number(row, spans, part, labels[part.action], per_s, fill, other_way)
        if each.what == "U":
            _mark_updates(row, spans, view, each, versions)
    _open_lanes(row, spans, order.num_ranks)
    return seen


def _open_lanes(row: Sequence[Any], spans: Spans, ranks: int) -> None:
    """Limits and frames of the lanes' panels, with the time that is left out between two of them."""
    for panel, span in zip(row, spans, strict=True):
        panel.set(xlim=span, ylim=(ranks - 0.45, -0.55))
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="both", length=0)
    for panel, ((_, end), (begin, _)) in zip(row, pairwise(spans), strict=False):
        words = panel.annotate(
            f"{show_time(begin - end)} left out", (1, 0.5), (6.5, 0), "axes fraction", "offset points", rotation=90,
            ha="center", va="center", fontsize=7, color="#444444",
        )  # fmt: skip
        words.set_in_layout(False)


def _shades(view: StepView, bars: Bars) -> Iterator[tuple[Bars, Any, bool]]:
    """Bars apart by look: (those of one look, its colour, whether their copy of the model runs the other way)."""
    colour = LOOKS[bars.what].colour
    if bars.action is None or bars.what == "U":
        yield bars, colour, False
        return
    tone, levels = view.tones()
    for level, copy in product(range(levels), range(view.program.order.copies)):
        here = (tone[bars.action] == level) & (view.copy[bars.action] == copy)
        part = Bars(bars.what, bars.rank[here], bars.begin[here], bars.end[here], bars.action[here])
        yield part, shade(colour, 0.75 if copy else level / max(1, levels - 1)), copy > 0


def _draw_bars(
    row: Sequence[Any], spans: Spans, bars: Bars, colour: Any, *, edge: bool = False, hatch: str | None = None
) -> bool:
    """Draw bars of one look in every stretch; whether there are any. What overlaps others is a line at their foot."""
    from matplotlib.collections import PolyCollection

    height, drop = (THIN, (LANE - THIN) / 2) if bars.overlapped else (1.0 if bars.what == "idle" else LANE, 0.0)
    look: dict[str, Any] = {"facecolors": [colour], "linewidths": 0.0}
    if hatch is not None:
        look |= {"hatch": "////", "edgecolors": [hatch], "linewidths": 0.4}
    elif edge:
        look |= {"edgecolors": "white", "linewidths": 0.5}
    drawn = False
    for panel, (low, high) in zip(row, spans, strict=True):
        here = np.flatnonzero((bars.end > low) & (bars.begin < high))
        rank, begin, end = bars.rank[here], bars.begin[here], bars.end[here]
        if len(here) > MOST_BARS and not edge:
            rank, begin, end = joined(rank, begin, end)
        top, foot = rank + drop - height / 2, rank + drop + height / 2
        corners = np.stack([begin, top, begin, foot, end, foot, end, top], axis=1).reshape(-1, 4, 2)
        bodies = PolyCollection(list(corners), **look)
        bodies.set_in_layout(False)  # the panel clips them
        panel.add_collection(bodies, autolim=False)
        drawn |= bool(len(here))
    return drawn


def joined(rank: Array, begin: Array, end: Array) -> tuple[Array, Array, Array]:
    """Bars of one look with those as one between which nobody could see a gap: each takes a moment to draw."""
    order = np.lexsort((begin, rank))
    rank, begin, end = rank[order], begin[order], end[order]
    hair = float(end.max() - begin.min()) / HAIRS
    at = np.flatnonzero(np.append(True, (np.diff(rank) != 0) | (begin[1:] - end[:-1] > hair)))
    return rank[at], begin[at], np.maximum.reduceat(end, at)


def _number_sizes(labels: Array, wide: Array) -> Array:
    """Font size at which each label fits its bar, 0 where it does not. [points]"""
    size = np.minimum(NUMBER_POINTS, (wide - 1.2) / (DIGIT * np.char.str_len(labels)))
    return np.asarray(np.where(size >= SMALLEST_POINTS, size, 0.0))


def _number(row: Sequence[Any], spans: Spans, bars: Bars, words: Array, per_s: float, fill: Any, boxed: bool) -> None:
    """Micro-batch numbers on the bars that are wide enough."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": ink(fill), "clip_on": True}
    if boxed:  # hatching would cross the numbers
        look |= {"bbox": {"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none"}, "color": "black"}
    for panel, (low, high) in zip(row, spans, strict=True):
        begin, end = np.clip(bars.begin, low, high), np.clip(bars.end, low, high)
        size, middle = _number_sizes(words, (end - begin) * per_s), (begin + end) / 2
        for at in np.flatnonzero(size):
            panel.text(middle[at], bars.rank[at], words[at], fontsize=size[at], **look)


def _mark_updates(row: Sequence[Any], spans: Spans, view: StepView, bars: Bars, versions: bool) -> None:
    """A line at the end of every update, and which version of its weights the first rank has from then on."""
    inside = [(bars.end > low) & (bars.begin < high) for low, high in spans]
    often = sum(int(here.sum()) for here in inside) > 4 * view.program.order.num_ranks
    for panel, here in zip(row, inside, strict=True):
        ends, rank = bars.end[here], bars.rank[here]
        panel.vlines(ends, rank - 0.5, rank + 0.5, color=LOOKS["U"].colour, linewidth=0.8 if often else 2.2)
        if versions and not often and bars.action is not None:
            for moment, batch in zip(ends[rank == 0], view.batch[bars.action][here][rank == 0], strict=True):
                panel.text(moment, -0.56, f"version {batch + 1}", fontsize=7, ha="right", va="bottom")


def _subtitle(view: StepView, width_in: float) -> str:
    """The machine, the plan, and how the drawing is to be read."""
    plan, answer, notes = view.scenario.plan, view.answer, list[str]()
    slices = f" in {plan.sequence_slices} slices" if plan.sequence_slices > 1 else ""
    asked = f"{answer.num_gpus:,} × {view.scenario.cluster.gpu.name} · {plan_degrees(plan, chunks=True)}"
    if view.streams:
        notes.append("no flush: the first two batches are shown, later ones repeat")
        exposed = view.answer.timeline.exposed_reduce_s.max() if view.program.hide_grad_reduce else 0.0
        if exposed > 0:
            notes.append(f"each batch's time includes {show_time(float(exposed))} of exposed reduction, not drawn")
    if view.begin.max() > 0:
        notes.append("a rank begins its next step without waiting for the others, so grey shows each rank's own step")
    between = " · " if width_in >= 9 else "\n"
    return "\n".join([f"{asked}{between}{microbatch_words(answer)}{slices} a step", *notes]) + "\n"


def _name_ranks(row: Sequence[Any], view: StepView, lanes_in: float) -> None:
    """Rank numbers on the left; at the right how much of the step each is idle."""
    ranks = view.program.order.num_ranks
    every = int(np.ceil(0.15 * ranks / lanes_in))
    shown = [*range(0, ranks - every, every), ranks - 1]
    row[0].set_yticks(shown, [f"rank {rank}" if ranks <= 12 else str(rank) for rank in shown], fontsize=8)
    row[0].set_ylabel("" if ranks <= 12 else "pipeline rank", fontsize=9)
    idle, (versions, _) = np.clip(1 - view.share, 0.0, 1.0), view.versions()
    text = [f"{idle[rank]:.1%}" + (f" · {versions[rank]}" if view.streams else "") for rank in shown]
    right = row[-1].twinx()
    right.set_ylim(row[-1].get_ylim())
    right.set_yticks(shown, text, fontsize=8, color="#444444")
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    heading = "idle share\nof the step" if not view.streams else "idle · weight\nversions"
    right.text(1.004, 1.0, heading, transform=right.transAxes, fontsize=8, va="bottom", ha="left", color="#444444")


def _draw_memory(row: Sequence[Any], view: StepView, spans: Spans, width_in: float) -> None:
    """Activations kept on the first, the middle and the last rank, and on the fullest."""
    curves = view.kept()
    peaks = [float(kept.max(initial=0.0)) for _, kept in curves]
    last, fullest, top = len(curves) - 1, int(np.argmax(peaks)), max(peaks) or 1.0
    chosen = sorted({0, last // 2, last})
    if peaks[fullest] > 1.001 * max(peaks[rank] for rank in chosen):
        chosen = sorted({*chosen, fullest})
    styles = [("#000000", "-", 1.3), ("#777777", "-", 1.3), ("#000000", (0, (4, 1.5)), 1.0), ("#777777", ":", 1.3)]
    peak_s = float(curves[fullest][0][int(np.argmax(curves[fullest][1]))])
    for panel, (begin, end) in zip(row, spans, strict=True):
        for rank, (colour, line, width) in zip(chosen, styles, strict=False):
            times, kept = curves[rank]
            label = f"rank {rank}: up to {show(peaks[rank], 'B')}"
            moments, amounts = (
                np.concatenate([[0.0], times, [max(end, times[-1])]]),
                np.concatenate([[0.0], kept, kept[-1:]]),
            )
            panel.plot(moments, amounts, drawstyle="steps-post", color=colour, ls=line, lw=width, label=label)
        if begin <= peak_s <= end:
            panel.plot(peak_s, peaks[fullest], "v", color="#D55E00", markersize=5, clip_on=False)
        panel.set(xlim=(begin, end), ylim=(0, 1.42 * top))
        panel.spines[["top", "right"] if panel is row[0] else ["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", labelsize=8, length=3.5 * (panel is row[0]))
    unit = show(top, "B").split()[1]
    scale = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1.0)
    row[0].yaxis.set_major_formatter(lambda value, _: f"{value / scale:g}")
    row[0].yaxis.get_major_locator().set_params(nbins=4)
    row[0].set_ylabel(f"activations\nkept [{unit}]", fontsize=9)
    look = {"facecolor": "white", "edgecolor": "none", "framealpha": 1.0, "borderpad": 0.1, "handlelength": 1.6}
    legend = row[0].legend(loc="upper left", ncols=4, fontsize=8 if width_in >= 8 else 6.5, borderaxespad=0.2, **look)
    legend.set_in_layout(False)  # it may be wider than its panel, and lies over the next one
    row[0].set_zorder(1)


def _headline(view: StepView, slower: str, width_in: float) -> str:
    """One schedule of several, in a line."""
    plan, order, (versions, late) = view.scenario.plan, view.program.order, view.versions()
    peak = max(use.activations for use in view.answer.memory)
    told = {
        f"{plan.num_chunks} chunks": plan.num_chunks > 1,
        f"{plan.sequence_slices} slices": plan.sequence_slices > 1,
        f"{order.copies} copies of the weights": order.copies > 1,
        f"up to {versions.max()} weight versions, gradients up to {late.max()} late": view.streams,
    }
    name = plan.schedule.replace("$", r"\$")
    if re.fullmatch(r"\w+", name):
        name = rf"$\bf{{{name.replace('_', chr(92) + '_')}}}$"
    sizes = ", ".join(words for words, there in told.items() if there)
    detail = f"  ({sizes})" if sizes else ""
    space = "\n" if detail and width_in < 8 else ""
    return f"{name}  {_step_words(view, ' ·', slower)} · activations up to {show(peak, 'B')}{space}{detail}"


def _draw_time_axis(row: Sequence[Any], spans: Spans, end: float, width_in: float) -> None:
    """Ticks at round moments of what is shown, in a unit of few digits."""
    from matplotlib.ticker import MaxNLocator

    factor, unit = time_unit(end)
    shown = sum(end - begin for begin, end in spans)
    for panel, (begin, stop) in zip(row, spans, strict=True):
        nbins = max(1, round(1.3 * max(4, int(width_in)) * (stop - begin) / shown))
        panel.xaxis.set_major_locator(MaxNLocator(nbins, steps=[1, 2, 5, 10]))
        panel.xaxis.set_major_formatter(lambda moment, _: f"{moment * factor + 0.0:.6g}")
        panel.tick_params(axis="x", labelsize=8, length=3)
    row[-1].set_xlabel(f"time [{unit}]", fontsize=9)


def _patch(what: str, label: str = "") -> Any:
    from matplotlib.patches import Patch

    return Patch(color=LOOKS[what].colour, label=label or LOOKS[what].name)


def legend_handles(view: StepView, seen: set[str], *, durations: bool = True) -> list[Any]:
    """A patch for everything that was drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [_patch(kind) for kind in KINDS if kind in seen and kind != "U"]
    if "U" in seen:
        often = "micro-batch" if view.answer.timeline.updates > 1 else "batch"
        updates = (view.end - view.start)[view.program.order.kind == U]
        label = f"update after each {often}" + (f", {show_time(float(updates.max()))}" if durations else "")
        if durations and not view.program.hide_grad_reduce and (view.program.costs.reduce_s > 0).any():
            label += ", its reduction included"
        handles.append(Line2D([], [], color=LOOKS["U"].colour, linewidth=2, label=label))
    pale = shade("#555555", 1.0)
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
    lengths = {bars.what: float((bars.end - bars.begin).max()) for bars in view.on(ONCE)}
    strips = {bars.what for bars in view.on(DATA, GRADIENTS)}
    for what in ("send", "reduce", "tied", "update", "gather", "setup"):
        if what not in seen:
            continue
        length = f", {show_time(lengths[what])}" if durations and what in lengths else ""
        note = " (keeps the rank)" if what == "send" else " exposed" if what in strips and length else ""
        note += " (strip: beside compute)" if what in strips else ""
        handles.append(_patch(what, f"{LOOKS[what].name}{length}{note}"))
    return [*handles, _patch("idle")]


def _place_legend(figure: Any, handles: Sequence[Any], width_in: float) -> None:
    """Put the legend below the figure, in as many columns as fit by the letters of their labels, read row by row."""
    points = [35 + 4.5 * len(handle.get_label()) for handle in handles]
    fits = (n for n in range(len(handles), 0, -1) if sum(max(points[at::n]) for at in range(n)) <= 72 * width_in - 10)
    columns = next(fits, 1)
    by_column = [handle for at in range(columns) for handle in handles[at::columns]]
    look = {"frameon": False, "fontsize": 8, "columnspacing": 1.4, "handlelength": 1.8}
    figure.legend(handles=by_column, loc="outside lower left", ncols=columns, **look)
