"""How answers show themselves in Jupyter: as in a terminal, and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from sim.canvas import new_figure
from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.report.facts import GROUPS, falls_of
from sim.report.search import search_view
from sim.report.search_figures import draw_pareto, draw_sweep
from sim.report.text import estimate_view, opening
from sim.units import show, show_time


def estimate_figure(answer: Estimate, what: str = "breakdown", width_in: float = 9.0) -> Any:
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
        axes.barh(place, 100 * row.width, left=100 * row.begin, color=GROUPS[row.group].colour, height=0.72)
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
    handles = [Patch(color=GROUPS[group].colour, label=GROUPS[group].label) for group in used]
    figure.legend(handles=handles, loc="outside lower left", ncols=6, frameon=False, fontsize=8, handlelength=1.2)
    title = f"{answer.scenario.name}: step {show_time(answer.step_time_s)}, MFU {answer.mfu:.1%}"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", parse_math=False)
    return figure


def _terminal(*parts: Any) -> str:
    from sim.report.page import as_html

    return as_html(parts)


VIEWS: Mapping[str, tuple[Callable[[Any], str], Callable[..., Any]]] = {
    "Estimate": (lambda answer: _terminal(opening(answer), partial(estimate_view, answer)), estimate_figure),
    "SearchResult": (lambda result: _terminal(partial(search_view, result, None)), draw_pareto),
    "Sweep": (lambda swept: str(swept.to_frame().to_html(index=False)), draw_sweep),
}
"""What makes an answer's self-contained HTML, and what draws it with options, by the name of the answer's type."""
