"""Pictures of answers: where peak goes, plans against each other, what links reach."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.engines import Timeline
from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.report.figures import new_figure
from sim.report.html.parts import LABELS, falls_of
from sim.report.legend import draw_time_axis, mark_breaks, time_unit
from sim.report.palette import KIND_COLOURS, KIND_NAMES
from sim.report.window import played_window
from sim.search import SearchResult
from sim.specs import Profile
from sim.units import show, show_time

GROUP_COLOURS = {
    "useful": "#009E73",
    "kernels": "#E69F00",
    "recompute": "#CC79A7",
    "network": "#0072B2",
    "waiting": "#8C8C8C",
    "optimizer": "#D55E00",
}
WIDTH_IN = 9.0


def estimate_figure(answer: Estimate, what: str = "breakdown", width_in: float = WIDTH_IN) -> Any:
    """An estimate as a picture.

    Parameters
    ----------
    what : str
        breakdown: the way from peak to what is achieved. timeline: a Gantt chart of the step.

    Raises
    ------
    SpecError
        Another picture, or a width out of range.
    """
    if what == "timeline":
        from sim.report.gantt import gantt_figure
        from sim.report.scene import show_step

        return gantt_figure(show_step(answer.scenario, answer.engine, answer), width_in=width_in)
    if what != "breakdown":
        raise SpecError(f"no picture {what!r} of an estimate{nearest(what, ('breakdown', 'timeline'))}")
    from matplotlib.patches import Patch

    rows = falls_of(answer)
    figure = new_figure(width_in, 0.3 * len(rows) + 1.5)
    axes = figure.subplots()
    names = ["peak", *(row.cause.replace("_", " ") for row in rows[:-1]), "at peak rate"]
    places = np.arange(len(names))
    axes.barh(0, 100.0, color="#777777", height=0.72)
    for place, row in zip(places[1:], rows, strict=True):
        axes.barh(place, 100 * row.width, left=100 * row.begin, color=GROUP_COLOURS[row.group], height=0.72)
        end = 100 * (row.begin + row.width)
        text = f"{show_time(row.seconds)}, {row.width:.1%}"
        inside = end > 78
        axes.text(
            100 * row.begin - 1 if inside else end + 1,
            place,
            text,
            va="center",
            ha="right" if inside else "left",
            fontsize=8,
        )
    axes.set_yticks(places, names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"share of the step, and of the {show(answer.peak_flop_per_s, 'FLOP/s')} at peak [%]", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    used = dict.fromkeys(row.group for row in rows)
    handles = [Patch(color=GROUP_COLOURS[group], label=LABELS[group]) for group in used]
    figure.legend(handles=handles, loc="outside lower left", ncols=6, frameon=False, fontsize=8, handlelength=1.2)
    title = f"{answer.scenario.name}: step {show_time(answer.step_time_s)}, MFU {answer.mfu:.1%}"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", parse_math=False)
    return figure


def timeline_figure(timeline: Timeline, width_in: float = WIDTH_IN) -> Any:
    """What the engine played: every rank's actions. Repetitions that it left out are left out here too.

    Raises
    ------
    SpecError
        The engine gives totals only, or a width out of range.
    """
    start, end = timeline.start, timeline.end
    if start is None or end is None:
        raise SpecError(f"engine {timeline.engine} gives totals, not a time for every action; use dag, des or shared")
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    order = timeline.program.order
    window = played_window(start, end, order.fold is not None)
    figure = new_figure(width_in, float(np.clip(0.28 * order.num_ranks, 0.8, 6.0)) + 1.3)
    axes = figure.subplots()
    handles = []
    for kind, colour in KIND_COLOURS.items():
        here = np.flatnonzero(order.kind == kind)
        if len(here):
            index, begins, ends = window.pieces(start[here], end[here])
            x, y = (begins, ends), order.rank[here][index]
            corners = np.stack(
                [np.stack([x[a], y + dy], axis=-1) for a, dy in ((0, -0.42), (1, -0.42), (1, 0.42), (0, 0.42))], axis=1
            )
            axes.add_collection(PolyCollection(list(corners), facecolors=colour, linewidths=0))
            handles.append(Patch(color=colour, label=KIND_NAMES[kind]))
    axes.set_xlim(0, window.width)
    axes.set_ylim(order.num_ranks - 0.5, -0.5)
    axes.set_ylabel("pipeline rank", fontsize=9)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    mark_breaks(axes, window, labelled=True)
    draw_time_axis(axes, window, window.spans[-1][1], about=int(width_in))
    axes.set_title(timeline_title(timeline), loc="left", fontsize=10, fontweight="bold")
    figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=8, handlelength=1.2)
    return figure


def timeline_title(timeline: Timeline) -> str:
    """What was played, in a line."""
    order = timeline.program.order
    folded = "; repetitions left out" if order.fold is not None else ""
    return f"{order.schedule}: step {show_time(timeline.step_time)}, engine {timeline.engine}{folded}"


def search_figure(result: SearchResult, width_in: float = WIDTH_IN) -> Any:
    """Every plan that was priced by step time and memory, those that none beats, and the best few."""
    figure = new_figure(width_in, 0.52 * width_in)
    axes = figure.subplots()
    factor, unit = time_unit(float(np.median(result.step_time_s)))
    seconds, gigabytes = result.step_time_s * factor, result.memory_bytes / 1e9
    fits = result.memory_bytes <= result.memory_limit_bytes
    axes.plot(gigabytes[~fits], seconds[~fits], ".", ms=2, color="#CCCCCC", label="does not fit", rasterized=True)
    axes.plot(gigabytes[fits], seconds[fits], ".", ms=2, color="#56B4E9", label="fits", rasterized=True)
    front = result.pareto()
    front = front[np.argsort(gigabytes[front])]
    axes.plot(
        gigabytes[front],
        seconds[front],
        "o",
        ms=3.5,
        color="#0072B2",
        label="no plan beats it in time, memory and GPUs",
    )
    exact = [(each.answer.largest.total / 1e9, each.answer.step_time_s * factor) for each in result.best]
    axes.plot(*zip(*exact, strict=True), "D", ms=5, color="#D55E00", label=f"best {len(exact)}, by the exact engine")
    axes.axvline(result.memory_limit_bytes / 1e9, color="#333333", lw=1, ls="--")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(None, min(12 * result.memory_limit_bytes / 1e9, 1.2 * gigabytes.max()))  # far beyond nothing is told
    axes.set_ylim(0.8 * seconds.min(), 2 * seconds[gigabytes < axes.get_xlim()[1]].max())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,g}")
    axes.set_xlabel("memory of the fullest GPU [GB]; dashed: what it has", fontsize=9)
    axes.set_ylabel(f"step time [{unit}]", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8, markerscale=1.5)
    title = f"{result.space.scenario.name}: {result.plans_priced:,} plans"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", parse_math=False)
    return figure


def profile_figure(profile: Profile, width_in: float = WIDTH_IN) -> Any:
    """What the links reach, by the bytes a rank moves; latency is on top of it."""
    figure = new_figure(width_in, 0.42 * width_in)
    axes = figure.subplots()
    volume = np.geomspace(1e4, 1e10, 200)
    for name, colour in (("nvlink", "#0072B2"), ("network", "#D55E00")):
        for operation, line in (("all_reduce", "-"), ("all_gather", "--"), ("reduce_scatter", ":")):
            if operation != "all_reduce" and operation not in getattr(profile, name).operations:
                continue
            link = getattr(profile, name).of(operation)
            reached = link.efficiency / (1 + (link.half_volume_bytes / volume) ** link.exponent)
            axes.semilogx(volume, 100 * reached, line, color=colour, label=f"{name}, {operation.replace('_', '-')}")
    axes.set_ylim(0, 100)
    axes.set_xlabel("bytes that each rank moves", fontsize=9)
    axes.set_ylabel("of the link's bandwidth [%]", fontsize=9)
    axes.grid(color="#DDDDDD", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"profile {profile.name}, made for {profile.gpu}", loc="left", fontsize=11, fontweight="bold")
    return figure
