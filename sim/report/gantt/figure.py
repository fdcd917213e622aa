"""Gantt charts by matplotlib: what every pipeline rank does when, and what it keeps in memory meanwhile.

Stretches of a step that are drawn apart are panels side by side, each with a time axis of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sim.arrays import Array
from sim.canvas import check_width, new_figure
from sim.engines.tasks import DATA, GRADIENTS
from sim.report.facts import microbatch_words, plan_degrees
from sim.report.figures import LOOKS, ink, open_panels, place_title, shade
from sim.report.gantt.chart import Bars, Spans, StepView, spans_of, step_bars, time_unit
from sim.schedules.passes import weight_versions
from sim.units import show, show_time

PLACES_PER_INCH = 24.0
"""Forwards side by side in an inch of axis that can still be told apart."""
LANES = 0.84
"""Width of the lanes, of the figure."""
LANE, THIN = 0.84, 0.13
"""Height of bars, and of what bars overlap, of a rank's row."""
NUMBER_POINTS, DIGIT = 6.0, 0.62
"""Font size of micro-batch numbers, and the width of a digit of it."""
EDGE_POINTS, VISIBLE_POINTS = 3.2, 0.4
"""Narrower bars have no edge; narrower sends are not drawn."""
GREY = "#444444"


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
    figure, (lanes, memory) = _panels(width_in, lanes_in + 2.75, spans, (lanes_in, 1.15))
    seen = draw_lanes(lanes, view, spans, LANES * width_in, lanes_in)
    _name_ranks(lanes, view, lanes_in)
    _draw_memory(memory, view, spans)
    _draw_time_axis(memory, spans, view.horizon, width_in)
    _place_legend(figure, legend_handles([view], seen), width_in)
    place_title(figure, f"{view.scenario.model.name}, {view.scenario.plan.schedule}: {view.words}", size=12, bold=True)
    _set_title(lanes[0], _subtitle(view), pad=6, color=GREY)
    return figure


def comparison_figure(views: Sequence[StepView], *, width_in: float = 11.0) -> Any:
    """The Gantt charts of several schedules, one below the other on one time axis, as a matplotlib figure.

    width_in : [inches]
    """
    check_width(width_in)
    spans = spans_of(views, LANES * width_in * PLACES_PER_INCH)
    heights = [float(np.clip(0.085 * view.program.order.num_ranks, 0.42, 0.95)) for view in views]
    figure, rows = _panels(width_in, sum(heights) + 0.31 * len(views) + 1.5, spans, heights)
    seen: set[str] = set()
    steps, end = [view.answer.step_time_s for view in views], spans[-1][1]
    for row, view, step, height in zip(rows, views, steps, heights, strict=True):
        # Of a stream without flush a stretch of its steady state is drawn.
        shift = max(0.0, view.horizon - step) if view.streams else 0.0
        seen |= draw_lanes(row, view, spans, 0.92 * width_in, height, shift)
        for panel in row:
            panel.axvline(step, color="black", linewidth=1.2)
            panel.set_yticks([])
        slower = "" if step <= min(steps) * (1 + 1e-9) else f", {step / min(steps) - 1:.1%} slower"
        cut = ", cut off" if step > end * (1 + 1e-9) else ""
        _set_title(row[0], _headline(view, slower + cut), pad=2)
    _draw_time_axis(rows[-1], spans, end, width_in)
    figure.supylabel("pipeline ranks, the first on top", fontsize=8)
    _place_legend(figure, legend_handles(views, seen), width_in)
    scenario, answer, several = views[0].scenario, views[0].answer, len(views) > 1
    name = f"{scenario.model.name} on {answer.num_gpus:,} × {scenario.cluster.gpu.name}"
    what = f"{name}: one step under {len(views)} schedule{'s' if several else ''}"
    ordered = "; fastest first" if several and steps == sorted(steps) else ""
    words = f"{what}\n{plan_degrees(scenario.plan)} · {microbatch_words(answer)}{ordered}"
    place_title(figure, words, size=12, bold=True)
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


def _set_title(panel: Any, words: str, *, pad: float, color: str = "black") -> None:
    """Put words above a panel, and above the next one where they are wider: their width moves no panel apart."""
    look = {"fontsize": 8.5, "parse_math": False}
    panel.set_title("\n".join(" " for _ in words.split("\n")), pad=pad + 3, **look)  # keeps the place
    said = panel.annotate(words, (0, 1), (0, pad), "axes fraction", "offset points", va="bottom", color=color, **look)
    said.set_in_layout(False)


def draw_lanes(
    row: Sequence[Any], view: StepView, spans: Spans, width_in: float, height_in: float, shift: float = 0.0
) -> set[str]:
    """Draw every rank's bars; return what was drawn, of LOOKS.

    row : Panels, one for each stretch of time, together `width_in` wide and each `height_in` high. [inches]
    shift : Time at which the drawing begins. [s]
    """
    ranks, labels, seen = view.program.order.num_ranks, np.array(view.labels()), set[str]()
    per_s = 72 * width_in / sum(end - begin for begin, end in spans)
    numbered = 72 * height_in / ranks >= NUMBER_POINTS + 3
    for each in step_bars(view, shift):
        wide = float(np.median(each.end - each.begin)) * per_s
        if each.what == "send" and wide <= VISIBLE_POINTS:
            continue
        for bars, fill in _shades(view, each):
            edge = bars.action is not None and wide >= EDGE_POINTS
            for panel, span in zip(row, spans, strict=True):
                here = np.flatnonzero((bars.end > span[0]) & (bars.begin < span[1]))
                if not len(here):
                    continue
                seen.add(each.what)
                begin, end, rank = bars.begin[here], bars.end[here], bars.rank[here]
                if each.what == "U":  # too short to be seen
                    panel.vlines(end, rank - 0.5, rank + 0.5, color=fill, linewidth=1.2)
                    continue
                _draw_bars(panel, bars, here, fill, edge)
                if numbered and bars.action is not None:
                    _number(panel, labels[bars.action[here]], np.clip(begin, *span), np.clip(end, *span), rank, per_s)
    _open_lanes(row, spans, ranks)
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
            ha="center", va="center", fontsize=7, color=GREY,
        )  # fmt: skip
        words.set_in_layout(False)


def _shades(view: StepView, bars: Bars) -> Iterator[tuple[Bars, Any]]:
    """Bars apart by colour: paler by chunk, slice or batch, and in the copy of the model that runs the other way."""
    colour = LOOKS[bars.what].colour
    if bars.action is None or bars.what == "U":
        yield bars, colour
        return
    pale = view.paleness()[bars.action]
    for share in np.unique(pale).tolist():
        here = pale == share
        part = Bars(bars.what, bars.rank[here], bars.begin[here], bars.end[here], bars.action[here])
        yield part, shade(colour, share)


def _draw_bars(panel: Any, bars: Bars, here: Array, colour: Any, edge: bool) -> None:
    """Draw some bars of one colour, as one shape. What overlaps others is a line at their foot."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    height, drop = (THIN, (LANE - THIN) / 2) if bars.overlapped else (1.0 if bars.what == "idle" else LANE, 0.0)
    top, begin, end = bars.rank[here] + drop - height / 2, bars.begin[here], bars.end[here]
    corners = np.stack([begin, top, begin, top + height, end, top + height, end, top, begin, top], axis=1)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(here))
    look = {"edgecolor": "white", "linewidth": 0.5} if edge else {"linewidth": 0.0}
    shape = PathPatch(Path(corners.reshape(-1, 2), codes), facecolor=colour, snap=True, **look)
    shape.set_in_layout(False)  # the panel clips it
    panel.add_artist(shape)


def _number(panel: Any, words: Array, begin: Array, end: Array, rank: Array, per_s: float) -> None:
    """Micro-batch numbers on the bars that are wide enough, in ink that suits the bars drawn last."""
    colour = ink(tuple(panel.patches[-1].get_facecolor()[:3]))
    fits = (end - begin) * per_s >= 1.2 + DIGIT * NUMBER_POINTS * np.char.str_len(words)
    for at in np.flatnonzero(fits):
        look = {"ha": "center", "va": "center", "color": colour, "fontsize": NUMBER_POINTS, "clip_on": True}
        panel.text((begin[at] + end[at]) / 2, rank[at], words[at], **look)


def _subtitle(view: StepView) -> str:
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
    return "\n".join([f"{asked} · {microbatch_words(answer)}{slices} a step", *notes]) + "\n"


def _name_ranks(row: Sequence[Any], view: StepView, lanes_in: float) -> None:
    """Rank numbers on the left; at the right how much of the step each is idle."""
    ranks = view.program.order.num_ranks
    every = int(np.ceil(0.15 * ranks / lanes_in))
    shown = [*range(0, ranks - every, every), ranks - 1]
    row[0].set_yticks(shown, shown, fontsize=8)
    row[0].set_ylabel("pipeline rank", fontsize=9)
    idle, (versions, _) = np.clip(1 - view.share, 0.0, 1.0), weight_versions(view.program.order)
    text = [f"{idle[rank]:.1%}" + (f" · {versions[rank]}" if view.streams else "") for rank in shown]
    right = row[-1].twinx()
    right.set_ylim(row[-1].get_ylim())
    right.set_yticks(shown, text, fontsize=8, color=GREY)
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    heading = "idle share\nof the step" if not view.streams else "idle · weight\nversions"
    right.text(1.004, 1.0, heading, transform=right.transAxes, fontsize=8, va="bottom", ha="left", color=GREY)


def _draw_memory(row: Sequence[Any], view: StepView, spans: Spans) -> None:
    """Activations kept on the first, the middle and the last rank, and on the fullest."""
    curves = view.kept()
    peaks = [float(kept.max(initial=0.0)) for _, kept in curves]
    last, fullest, top = len(curves) - 1, int(np.argmax(peaks)), max(peaks) or 1.0
    unit = show(top, "B").split()[1]
    scale = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}.get(unit, 1.0)
    styles = [("#000000", "-"), ("#777777", "-"), ("#000000", "--"), ("#D55E00", ":")]
    for panel, (begin, end) in zip(row, spans, strict=True):
        for rank, (colour, line) in zip(dict.fromkeys((0, last // 2, last, fullest)), styles, strict=False):
            times, kept = curves[rank]
            moments = np.concatenate([[0.0], times, [max(end, times[-1])]])
            amounts = np.concatenate([[0.0], kept, kept[-1:]]) / scale
            label = f"rank {rank}: up to {show(peaks[rank], 'B')}"
            panel.plot(moments, amounts, drawstyle="steps-post", color=colour, ls=line, lw=1.2, label=label)
        panel.set(xlim=(begin, end), ylim=(0, 1.42 * top / scale))
        open_panels(panel)
        panel.tick_params(axis="y", labelsize=8, length=3.5 * (panel is row[0]))
    for panel in row[1:]:
        panel.spines["left"].set_visible(False)
    row[0].yaxis.get_major_locator().set_params(nbins=4)
    row[0].set_ylabel(f"activations\nkept [{unit}]", fontsize=9)
    look = {"edgecolor": "none", "framealpha": 1.0, "borderpad": 0.1, "handlelength": 1.6, "borderaxespad": 0.2}
    legend = row[0].legend(loc="upper left", ncols=4, fontsize=8, **look)
    legend.set_in_layout(False)  # it may be wider than its panel, and lies over the next one
    row[0].set_zorder(1)


def _headline(view: StepView, beside: str) -> str:
    """One schedule of several, in a line."""
    plan, order, (versions, late) = view.scenario.plan, view.program.order, weight_versions(view.program.order)
    peak = max(use.activations for use in view.answer.memory)
    told = {
        f"{plan.num_chunks} chunks": plan.num_chunks > 1,
        f"{plan.sequence_slices} slices": plan.sequence_slices > 1,
        f"{order.copies} copies of the weights": order.copies > 1,
        f"{versions.max()} weight versions, gradients {late.max()} late": view.streams,
    }
    sizes = ", ".join(words for words, there in told.items() if there)
    detail = f"  ({sizes})" if sizes else ""
    return f"{plan.schedule}: {view.words}{beside}, up to {show(peak, 'B')} of activations{detail}"


def _draw_time_axis(row: Sequence[Any], spans: Spans, end: float, width_in: float) -> None:
    """Ticks at round moments of what is shown, in a unit of few digits."""
    from matplotlib.ticker import MaxNLocator

    factor, unit = time_unit(end)
    shown = sum(end - begin for begin, end in spans)
    for panel, (begin, stop) in zip(row, spans, strict=True):
        nbins = max(1, round(1.3 * width_in * (stop - begin) / shown))
        panel.xaxis.set_major_locator(MaxNLocator(nbins, steps=[1, 2, 5, 10]))
        panel.xaxis.set_major_formatter(lambda moment, _: f"{moment * factor + 0.0:.6g}")
        panel.tick_params(axis="x", labelsize=8, length=3)
    row[-1].set_xlabel(f"time [{unit}]", fontsize=9)


def legend_handles(views: Sequence[StepView], seen: set[str]) -> list[Any]:
    """A patch for everything that was drawn, and for what paler bars and strips mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colours = {LOOKS[what].name: LOOKS[what].colour for what in LOOKS if what in seen and what != "idle"}
    paler = {
        "paler: every other batch": any(view.streams for view in views),
        "paler: later slices of a sequence": any(view.scenario.plan.sequence_slices > 1 for view in views),
        "paler: later chunks of the rank": any(not view.streams and view.chunk.max() > 0 for view in views),
        "paler: from last rank to first": any(view.program.order.copies > 1 for view in views),
    }
    colours |= {words: "#C8C8C8" for words, there in paler.items() if there}
    handles: list[Any] = [Patch(color=colour, label=label) for label, colour in colours.items()]
    if any(view.on(DATA, GRADIENTS) for view in views):
        handles.append(Line2D([], [], color="#555555", linewidth=2, label="strips: beside compute"))
    return [*handles, Patch(color=LOOKS["idle"].colour, label=LOOKS["idle"].name)]


def _place_legend(figure: Any, handles: Sequence[Any], width_in: float) -> None:
    """Put the legend below the figure, in as many columns as fit by the letters of their labels, read row by row."""
    points = [35 + 4.5 * len(handle.get_label()) for handle in handles]
    fits = (n for n in range(len(handles), 0, -1) if sum(max(points[at::n]) for at in range(n)) <= 72 * width_in - 10)
    columns = next(fits, 1)
    by_column = [handle for at in range(columns) for handle in handles[at::columns]]
    look = {"frameon": False, "fontsize": 8, "columnspacing": 1.4, "handlelength": 1.8}
    figure.legend(handles=by_column, loc="outside lower left", ncols=columns, **look)
