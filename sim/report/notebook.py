"""How answers show themselves in Jupyter: as in a terminal, and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sim.breakdown import CAUSES
from sim.canvas import new_figure
from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.report.facts import GROUP_OF, GROUPS, SMALLEST, Kind
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

    shares, seconds = answer.breakdown.shares(), answer.breakdown.seconds
    falls = [cause for cause in CAUSES if cause != "flop_at_peak" and shares[cause] >= SMALLEST]
    figure = new_figure(width_in, 0.3 * len(falls) + 1.8)
    axes = figure.subplots()
    axes.barh(0, 100.0, color="#777777", height=0.72)
    left, used = 100.0, dict[str, Kind]()
    for place, cause in enumerate((*falls, "flop_at_peak"), start=1):
        share, group = 100 * shares[cause], GROUPS[GROUP_OF[cause]]
        left = 0.0 if cause == "flop_at_peak" else max(left - share, 0.0)
        used[group.label] = group
        axes.barh(place, share, left=left, color=group.colour, height=0.72)
        inside = left + share > 78
        beside, side = (left - 1, "right") if inside else (left + share + 1, "left")
        axes.text(beside, place, f"{show_time(seconds[cause])}, {share:.1f}%", va="center", ha=side, fontsize=8)
    names = ["peak", *(cause.replace("_", " ") for cause in falls), "at peak rate"]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"share of the step, and of the {show(answer.peak_flop_per_s, 'FLOP/s')} at peak [%]", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [Patch(color=group.colour, label=label) for label, group in used.items()]
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
