"""Templates to text, bars to SVG, and the report to hand on: one file that needs nothing else.

What is put into a template is escaped; nothing reaches out to a network.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from typing import Any, NamedTuple

from sim.canvas import as_png
from sim.errors import FlopcastError, InfeasiblePlan
from sim.estimate import Estimate
from sim.report import facts
from sim.report import plans as say
from sim.report.figures import ink
from sim.report.gantt import gantt_figure, step_view
from sim.search import SearchResult
from sim.specs import Profile
from sim.specs.frameworks import stack_words
from sim.specs.writing import whole_yaml
from sim.units import show, show_time

THEMES = {
    "light": {"paper": "#ffffff", "ink": "#1b1f24", "wrong": "#a83c00", "accent": "#005a9c"},
    "dark": {"paper": "#15181c", "ink": "#e4e7eb", "wrong": "#ff9a62", "accent": "#7cc4ff"},
    "print": {"paper": "#ffffff", "ink": "#000000", "wrong": "#000000", "accent": "#000000"},
}
"""Colours of a page: background, text, warnings, and controls or what has the focus."""
DIM = 0.68
"""How opaque text is that matters less."""
MEMORY = dict(zip(facts.MEMORY, ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#8C8C8C"), strict=True))
"""Colours of what memory holds, Okabe and Ito's."""
MOST_ACTIONS = 100_000
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
        provenance=facts.profile_origin(scenario.profile),
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
    if answer.scenario.plan.num_stages * answer.num_microbatches > MOST_ACTIONS:
        return "", "The step has too many actions to be drawn one by one."
    try:
        figure = gantt_figure(step_view(answer))
    except FlopcastError as error:
        return "", str(error)
    note = "What each pipeline rank of one replica does, and the activations that it keeps."
    return f"data:image/png;base64,{b64encode(as_png(figure, PAGE_DPI)).decode()}", note


def residual_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """(part of the profile, median error of its fit on its own data, on data left out)."""
    own, unseen = (
        {part: f"{error:.1%}" for part, error in each.items()} for each in (profile.residuals, profile.unseen)
    )
    return [(part, own.get(part, ""), unseen.get(part, "")) for part in {**own, **unseen}]


PAGE_DPI = 150
"""Resolution of figures in pages, which are read on large screens."""


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sim.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": show_time,
        "quantity": show,
        "percent": lambda share, digits=1: f"{share:.{digits}%}",
        "words": lambda name: str(name).replace("_", " "),
        "ink_on": ink,
    }
    environment.globals |= {
        "dim": DIM,
        "group_colours": {name: group.colour for name, group in facts.GROUPS.items()},
        "memory_colours": MEMORY,
        "memory_parts": list(MEMORY),
        "themes": THEMES,
    }
    return environment


def render(template: str, **data: Any) -> str:
    """The text of a template of this package with its data in it."""
    return str(_environment().get_template(template).render(**data))


class Bar(NamedTuple):
    """A row: pieces (class, number, begin, width) and a limit in percent of the axis, and its numbers in words."""

    label: str
    segments: list[tuple[str, int, float, float]]
    value: str
    words: str
    mark: float
    wrong: bool


def memory_bars(answer: Estimate) -> list[Bar]:
    """Memory by what it holds, a bar a pipeline rank, on the axis that the fullest rank or the GPU's memory fills.

    A part's number identifies it in grey, too.
    """
    rows, limit = facts.memory_rows(answer), answer.memory_available_bytes
    most = max(limit, *(parts["total"] for _, parts in rows))
    bars = []
    for rank, parts in rows:
        at, segments, nbytes = 0.0, [], parts.pop("total")
        for key, (name, amount) in enumerate(parts.items(), start=1):
            segments.append((f"m-{name}", key, at, 100 * amount / most))
            at += 100 * amount / most
        heard = ", ".join(f"{name} {show(amount, 'B')}" for name, amount in parts.items() if amount)
        total = show(nbytes, "B")
        words = f"{total}: {heard}, of the GPU's {show(limit, 'B')}"
        bars.append(Bar(f"rank {rank}", segments, total, words, 100 * limit / most, nbytes > limit))
    return bars


def plan_table(result: SearchResult) -> dict[str, Any]:
    """What all of the best plans have, and columns of the rest."""
    plans = [each.scenario.plan for each in result.best]
    shared = say.shared_words(plans, say.fields_for(result.space.scenario.model))
    return {"shared": shared, "columns": say.best_columns(result)}


def answer_data(answer: Estimate) -> dict[str, Any]:
    """What every page of an estimate shows: the question, the headline, the way from peak, memory, assumptions."""
    falls = facts.falls_of(answer)
    used = {row.group for row in falls}
    step, *others = facts.headline(answer, {"model": "Per GPU, model", "hardware": "Per GPU, hardware"})
    return {
        "name": answer.scenario.name,
        "question": facts.question_words(answer),
        "plan": facts.plan_words(answer),
        "facts": [step, facts.Fact("How sure", facts.factors(answer), facts.grade_words(answer)), *others],
        "peak": show(answer.peak_flop_per_s, "FLOP/s"),
        "falls": falls,
        "groups": [(name, group.label) for name, group in facts.GROUPS.items() if name in used],
        "memory": memory_bars(answer),
        "available": answer.memory_available_bytes,
        "assumptions": answer.assumptions,
    }
