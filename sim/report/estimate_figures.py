"""Figures of an estimate, and of what links reach by a profile."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.canvas import new_figure
from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.report.facts import LABELS, falls_of
from sim.report.figures import GROUP_COLOURS, open_panels
from sim.specs import Profile
from sim.units import show, show_time

WIDTH_IN = 9.0


def estimate_figure(answer: Estimate, what: str = "breakdown", width_in: float = WIDTH_IN) -> Any:
    """An estimate as a picture.

    what : breakdown: the way from peak to what is achieved. timeline: a Gantt chart of the step.
    """
    if what == "timeline":
        from sim.report.gantt import gantt_figure, step_view

        return gantt_figure(step_view(answer.scenario, answer.engine, answer), width_in=width_in)
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
        beside, side = (100 * row.begin - 1, "right") if inside else (end + 1, "left")
        axes.text(beside, place, text, va="center", ha=side, fontsize=8)
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
    open_panels(axes)
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"profile {profile.name}, made for {profile.gpu}", loc="left", fontsize=11, fontweight="bold")
    return figure
