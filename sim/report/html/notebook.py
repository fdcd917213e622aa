"""How answers show themselves in Jupyter: a small page each, readable on light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sim.engines import Timeline
from sim.estimate import Estimate
from sim.report.estimate_figures import estimate_figure, profile_figure
from sim.report.facts import falls_of, headline, memory_rows, plan_words, profile_origin, question_words
from sim.report.gantt.figure import timeline_figure, timeline_title
from sim.report.html.render import embedded, memory_chart, render
from sim.report.plans import plan_table
from sim.report.search_figures import search_figure
from sim.report.sweep import draw_sweep
from sim.search import SearchResult
from sim.search.sweep import Sweep
from sim.specs import Profile
from sim.units import show


class View(NamedTuple):
    """How answers of one type are displayed.

    html : (answer) -> self-contained HTML, safe to put into a page.
    plot : (answer, **options) -> a matplotlib figure.
    """

    html: Callable[[Any], str]
    plot: Callable[..., Any]


def estimate_html(answer: Estimate) -> str:
    """Headline, the way from peak to what is achieved; memory and assumptions folded away."""
    return render(
        "estimate.html",
        name=answer.scenario.name,
        question=question_words(answer),
        plan=plan_words(answer),
        facts=headline(answer),
        peak=show(answer.peak_flop_per_s, "FLOP/s"),
        falls=falls_of(answer),
        memory=memory_chart(memory_rows(answer), answer.memory_available_bytes),
        available=answer.memory_available_bytes,
        assumptions=answer.assumptions,
    )


def timeline_html(timeline: Timeline) -> str:
    """The lanes of the ranks, as far as the engine played them."""
    image = "" if timeline.start is None else embedded(timeline_figure(timeline))
    return render("timeline.html", title=timeline_title(timeline), image=image, engine=timeline.engine)


def search_html(result: SearchResult) -> str:
    """The best plans."""
    limit = show(result.memory_limit_bytes, "B")
    note = (
        f"best plans by {result.objective.replace('_', ' ')}; {result.plans_feasible:,} of {result.plans_priced:,} "
        f"plans fit in {limit} per GPU"
    )
    if not result.finished:
        note += f". Interrupted: {result.space.num_plans - result.plans_priced:,} plans were not looked at"
    return render(
        "search.html",
        name=result.space.scenario.name,
        model=result.space.scenario.model.name,
        note=note,
        plans=plan_table(result),
        assumptions=result.assumptions,
    )


def sweep_html(swept: Sweep) -> str:
    """The best plan of every point, a row each."""
    return str(swept.to_frame().to_html(index=False))


def profile_html(profile: Profile) -> str:
    """Values by part, and where they come from."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, part, value in profile.values():
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        groups.setdefault(part, []).append((name, shown))
    return render(
        "profile.html",
        name=profile.name,
        gpu=profile.gpu,
        groups=groups,
        facts=profile_origin(profile)[1:],  # the title has the name
        residuals=[(part, f"{error:.1%}", part in profile.poor_fits) for part, error in profile.residuals.items()],
    )


VIEWS: Mapping[str, View] = {
    "Estimate": View(estimate_html, estimate_figure),
    "Timeline": View(timeline_html, timeline_figure),
    "SearchResult": View(search_html, search_figure),
    "Sweep": View(sweep_html, draw_sweep),
    "Profile": View(profile_html, profile_figure),
}
"""The view of each type of answer, by the type's name."""
