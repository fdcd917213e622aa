"""How answers show themselves in Jupyter: a small page each, readable on light and dark, and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sim.canvas import new_figure
from sim.errors import SpecError, nearest
from sim.estimate import Estimate
from sim.report.facts import GROUPS, falls_of
from sim.report.html.page import answer_data, plan_table, render
from sim.report.search_figures import draw_pareto, draw_sweep
from sim.search import SearchResult
from sim.units import show, show_time


def estimate_figure(answer: Estimate, what: str = "breakdown", width_in: float = 9.0) -> Any:
    """An estimate as a picture.

    what : breakdown: the way from peak to what is achieved. timeline: a Gantt chart of the step.
    """
    if what == "timeline":
        from sim.report.gantt import gantt_figure, step_view

        return gantt_figure(step_view(answer), width_in=width_in)
    if what != "breakdown":
        raise SpecError(f"no picture {what!r} of an estimate{nearest(what, ('breakdown', 'timeline'))}")
    from matplotlib.patches import Patch

    falls = falls_of(answer)
    figure = new_figure(width_in, 0.3 * len(falls) + 1.5)
    axes = figure.subplots()
    axes.barh(0, 100.0, color="#777777", height=0.72)
    for place, row in enumerate(falls, start=1):
        left, share = 100 * row.begin, 100 * row.width
        axes.barh(place, share, left=left, color=GROUPS[row.group].colour, height=0.72)
        beside, side = (left - 1, "right") if left + share > 78 else (left + share + 1, "left")
        axes.text(beside, place, f"{show_time(row.seconds)}, {share:.1f}%", va="center", ha=side, fontsize=8)
    names = ["peak", *(row.cause.replace("_", " ") for row in falls[:-1]), "at peak rate"]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel(f"share of the step, and of the {show(answer.peak_flop_per_s, 'FLOP/s')} at peak [%]", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    used = (GROUPS[name] for name in dict.fromkeys(row.group for row in falls))
    handles = [Patch(color=group.colour, label=group.label) for group in used]
    figure.legend(handles=handles, loc="outside lower left", ncols=6, frameon=False, fontsize=8, handlelength=1.2)
    title = f"{answer.scenario.name}: step {show_time(answer.step_time_s)}, MFU {answer.mfu:.1%}"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", parse_math=False)
    return figure


def search_html(result: SearchResult) -> str:
    """The best plans."""
    scenario, limit = result.space.scenario, show(result.memory_limit_bytes, "B")
    note = (
        f"best plans by {result.objective.replace('_', ' ')}; {result.plans_feasible:,} of {result.plans_priced:,} "
        f"plans fit in {limit} per GPU"
    )
    told = {"name": scenario.name, "model": scenario.model.name, "assumptions": result.assumptions}
    return render("search.html", **told, note=note, plans=plan_table(result))


VIEWS: Mapping[str, tuple[Callable[[Any], str], Callable[..., Any]]] = {
    "Estimate": (lambda answer: render("estimate.html", **answer_data(answer)), estimate_figure),
    "SearchResult": (search_html, draw_pareto),
    "Sweep": (lambda swept: str(swept.to_frame().to_html(index=False)), draw_sweep),
}
"""What makes an answer's self-contained HTML, and what draws it with options, by the name of the answer's type."""
