"""The report to hand on: one file that needs nothing else."""

from __future__ import annotations

from typing import Any

from sim.errors import FlopcastError, InfeasiblePlan
from sim.estimate import Estimate
from sim.report.facts import GROUPS, LABELS, falls_of, headline, memory_rows, plan_words, profile_origin, question_words
from sim.report.gantt import gantt_figure, step_view
from sim.report.html.bars import memory_chart
from sim.report.html.render import embedded, render
from sim.report.html.sliders import sliders_of
from sim.report.plans import plan_table
from sim.search import SearchResult
from sim.search.grid import Grid
from sim.specs import Profile
from sim.specs.frameworks import stack_words
from sim.specs.writing import whole_yaml
from sim.units import show, show_time

MOST_ACTIONS = 2_000_000
"""Most actions of a step that is drawn. For a longer step the page says so instead."""


def report_page(
    answer: Estimate, search: SearchResult | None = None, why_no_plans: str = "", grid: Grid | None = None
) -> str:
    """A page of HTML with the answer and all that it rests on.

    Parameters
    ----------
    search : SearchResult, optional
        Of the same scenario, for the plans that would do better.
    why_no_plans : str
        What the page says instead of them.
    grid : Grid, optional
        Around the scenario, for sliders.
    """
    from sim import __version__

    scenario = answer.scenario
    timeline, note = _timeline(answer)
    remedy = ""
    try:
        answer.require_fit()
    except InfeasiblePlan as error:
        remedy = str(error)
    rows = falls_of(answer)
    used = {row.group for row in rows}
    waited = answer.breakdown.seconds["pipeline_bubble"] + answer.breakdown.seconds["stage_imbalance"]
    return render(
        "report.html",
        sections=_sections(answer, search is not None, bool(why_no_plans), grid is not None),
        sliders=None if grid is None else sliders_of(grid),
        name=scenario.name,
        description=scenario.description,
        question=question_words(answer),
        plan=plan_words(answer),
        facts=headline(answer),
        remedy=remedy,
        peak=show(answer.peak_flop_per_s, "FLOP/s"),
        masked=answer.mfu > 1.005 * answer.breakdown.shares()["flop_at_peak"],
        falls=rows,
        groups=[(kind, LABELS[kind]) for kind in dict.fromkeys(GROUPS.values()) if kind in used],
        memory=memory_chart(memory_rows(answer), answer.memory_available_bytes),
        available=answer.memory_available_bytes,
        timeline=timeline,
        timeline_note=note,
        timeline_words=(
            f"Timeline of a step of {show_time(answer.step_time_s)}, of which the average GPU waits "
            f"{show_time(waited)} for other pipeline ranks. The numbers are in the first table."
        ),
        plans=None if search is None else plan_table(search),
        plans_note=why_no_plans if search is None else _search_note(answer, search),
        assumptions=answer.assumptions,
        trust=_trust(answer),
        provenance=profile_origin(scenario.profile),
        residuals=residual_rows(scenario.profile),
        version=__version__,
        engine_name=answer.engine,
        profile=scenario.profile.name,
        stack=stack_words(scenario.stack),
        yaml=whole_yaml(scenario),
    )


def _sections(answer: Estimate, plans: bool, no_plans: bool, sliders: bool) -> dict[str, str]:
    """Titles of the page's sections by the place in it that a link leads to."""
    titles = {
        "time": "From peak to what is achieved",
        "memory": "Memory by pipeline rank",
        "what-if": "What if" if sliders else "",
        "timeline": "Timeline of a step",
        "plans": f"Other plans on {answer.num_gpus:,} GPUs" if plans else "Other plans" if no_plans else "",
        "assumptions": "Assumptions",
        "trust": "How far to trust it",
        "reproduce": "How to reproduce it",
    }
    return {place: title for place, title in titles.items() if title}


def _timeline(answer: Estimate) -> tuple[str, str]:
    """The address of the Gantt chart, and the sentence above it; without one, why there is none."""
    if answer.timeline.start is None:
        return "", f"Engine {answer.engine} gives totals, not a time for every action."
    if answer.scenario.plan.num_stages * answer.num_microbatches > MOST_ACTIONS:
        return "", "The step has too many actions to be drawn one by one."
    try:
        figure = gantt_figure(step_view(answer.scenario, answer.engine, answer))
    except FlopcastError as error:
        return "", str(error)
    note = "What each pipeline rank of one replica does, and the activations that it keeps. The part left out repeats."
    return embedded(figure), note


def _search_note(answer: Estimate, search: SearchResult) -> str:
    best = search.best[0].answer
    gain = answer.step_time_s / best.step_time_s - 1
    own = show_time(answer.step_time_s)
    verdict = "None is faster than this plan"
    if gain > 0.005:
        verdict = f"The best takes {show_time(best.step_time_s)}, this plan {own}"
    return f"{verdict}. {search.plans_feasible:,} of {search.plans_priced:,} plans fit in memory."


def _trust(answer: Estimate) -> str:
    """The validation record behind the interval, in a sentence."""
    low, high = answer.step_time_interval_s
    basis = answer.interval_basis.replace("The interval is", "It is", 1)
    return f"The 90 % interval of the step time is {show_time(low)} to {show_time(high)}. {basis}"


def residual_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """(part of the profile, median error of its fit on its own data, on data left out)."""
    parts: dict[str, Any] = dict.fromkeys((*profile.residuals, *profile.unseen))

    def share(table: dict[str, float], part: str) -> str:
        return f"{table[part]:.1%}" if part in table else ""

    return [(part, share(profile.residuals, part), share(profile.unseen, part)) for part in parts]
