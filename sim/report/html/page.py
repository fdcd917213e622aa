"""The report to hand on: one file that needs nothing else."""

from __future__ import annotations

from sim.errors import FlopcastError, InfeasiblePlan
from sim.estimate import Estimate
from sim.report import facts as say
from sim.report.gantt import gantt_figure, step_view
from sim.report.html.render import answer_data, embedded, render
from sim.report.plans import plan_table
from sim.search import SearchResult
from sim.specs import Profile
from sim.specs.frameworks import stack_words
from sim.specs.writing import whole_yaml
from sim.units import show_time

MOST_ACTIONS = 2_000_000
"""Most actions of a step that is drawn. For a longer step the page says so instead."""


def report_page(answer: Estimate, search: SearchResult | None = None, why_no_plans: str = "") -> str:
    """A page of HTML with the answer and all that it rests on.

    search : Of the same scenario, for the plans that would do better.
    why_no_plans : What the page says instead of them.
    """
    from sim import __version__

    scenario = answer.scenario
    timeline, note = _timeline(answer)
    remedy = ""
    try:
        answer.require_fit()
    except InfeasiblePlan as error:
        remedy = str(error)
    low, high = map(show_time, answer.step_time_interval_s)
    waited = answer.breakdown.seconds["pipeline_bubble"] + answer.breakdown.seconds["stage_imbalance"]
    return render(
        "report.html",
        **answer_data(answer),
        sections=_sections(answer, search is not None, bool(why_no_plans)),
        description=scenario.description,
        remedy=remedy,
        masked=answer.mfu > 1.005 * answer.breakdown.shares()["flop_at_peak"],
        timeline=timeline,
        timeline_note=note,
        timeline_words=(
            f"Timeline of a step of {show_time(answer.step_time_s)}, of which the average GPU waits "
            f"{show_time(waited)} for other pipeline ranks. The numbers are in the first table."
        ),
        plans=None if search is None else plan_table(search),
        plans_note=why_no_plans if search is None else _verdict(answer, search),
        trust=f"The 90 % interval of the step time is {low} to {high}. "
        + answer.interval_basis.replace("The interval is", "It is", 1),
        provenance=say.profile_origin(scenario.profile),
        residuals=residual_rows(scenario.profile),
        version=__version__,
        engine_name=answer.engine,
        profile=scenario.profile.name,
        stack=stack_words(scenario.stack),
        yaml=whole_yaml(scenario),
    )


def _verdict(answer: Estimate, search: SearchResult) -> str:
    """How much the best plan of a search is faster, and how many plans were looked at."""
    best, verdict = search.best[0].answer.step_time_s, "None is faster than this plan"
    if answer.step_time_s / best - 1 > 0.005:
        verdict = f"The best takes {show_time(best)}, this plan {show_time(answer.step_time_s)}"
    return f"{verdict}. {search.plans_feasible:,} of {search.plans_priced:,} plans fit in memory."


def _sections(answer: Estimate, plans: bool, no_plans: bool) -> dict[str, str]:
    """Titles of the page's sections by the place in it that a link leads to."""
    titles = {
        "time": "From peak to what is achieved",
        "memory": "Memory by pipeline rank",
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
    note = "What each pipeline rank of one replica does, and the activations that it keeps. What is left out repeats."
    return embedded(figure), note


def residual_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """(part of the profile, median error of its fit on its own data, on data left out)."""
    own, unseen = (
        {part: f"{error:.1%}" for part, error in each.items()} for each in (profile.residuals, profile.unseen)
    )
    return [(part, own.get(part, ""), unseen.get(part, "")) for part in {**own, **unseen}]
