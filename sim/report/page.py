"""Answers as HTML: what a terminal shows, and pictures; the report to hand on is one file that needs nothing else.

All text is escaped; nothing reaches out to a network.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import partial
from html import escape
from io import StringIO
from typing import Any

from sim.canvas import as_png
from sim.errors import FlopcastError, InfeasiblePlan
from sim.estimate import Estimate
from sim.report.facts import profile_origin, question_words
from sim.report.gantt import gantt_figure, step_view
from sim.report.notebook import estimate_figure
from sim.report.search import search_view
from sim.report.terminal import console
from sim.report.text import estimate_view, opening
from sim.search import SearchResult
from sim.specs.writing import whole_yaml
from sim.table import facts_table, rows_table
from sim.units import show_time

MOST_ACTIONS = 100_000
"""Most actions of a step that is drawn. For a longer step the page says so instead."""
COLUMNS, PAGE_DPI = 112, 150
"""Width of text in pages, and resolution of their figures, which are read on large screens."""
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1.5rem; }}
pre {{ font: .85rem/1.35 ui-monospace, monospace; overflow-x: auto; }}
img {{ max-width: 100%; background: white; }}
@media print {{ section {{ break-inside: avoid; }} pre {{ white-space: pre-wrap; font-size: 7pt; }} }}
</style>
</head>
"""


def as_html(parts: Iterable[Any]) -> str:
    """What a terminal would show of some parts, each something that rich can show or a function of the width."""
    out = console(record=True, width=COLUMNS, file=StringIO())
    for part in parts:
        out.print(part(COLUMNS) if callable(part) else part)
    text = out.export_html(inline_styles=True, code_format='<pre tabindex="0" aria-label="Answer">{code}</pre>')
    return text.replace("#7f7f7f", "#767676")  # pale words have a contrast of 4.5 to 1 on paper


def report_page(answer: Estimate, search: SearchResult | None = None, why_no_plans: str = "") -> str:
    """A page of HTML with the answer and all that it rests on.

    search : Of the same scenario, for the plans that would do better.
    why_no_plans : What the page says instead of them.
    """
    remedy = ""
    try:
        answer.require_fit()
    except InfeasiblePlan as error:
        remedy = f"<p><strong>{escape(str(error))}</strong></p>"
    peak = f"The step by cause, {show_time(answer.step_time_s)} in all; the next section has the numbers."
    sections = {
        "": as_html([opening(answer)]) + remedy,
        "From peak to what is achieved": _picture(estimate_figure(answer), peak),
        "The step in numbers": as_html([partial(estimate_view, answer, verbose=True)]),
        "Timeline of a step": _timeline(answer),
    }
    if search is not None:
        found = as_html([partial(search_view, search, None, verbose=True)])
        sections[f"Other plans on {answer.num_gpus:,} GPUs"] = found
    elif why_no_plans:
        sections["Other plans"] = f"<p>{escape(why_no_plans)}</p>"
    sections |= {"How far to trust it": _trust(answer), "How to reproduce it": _scenario(answer)}
    name = escape(answer.scenario.name)
    about = "".join(f"<p>{escape(each)}</p>" for each in (question_words(answer), answer.scenario.description) if each)
    body = "\n".join(
        f"<section>\n{f'<h2>{title}</h2>' if title else ''}\n{text}\n</section>" for title, text in sections.items()
    )
    head = HEAD.format(title=f"{name} · flopcast")
    return f"{head}<body>\n<header><h1>{name}</h1>{about}</header>\n<main>\n{body}\n</main>\n</body>\n</html>\n"


def _picture(figure: Any, words: str) -> str:
    """A figure as an image that stands in the page itself, with what it shows in words."""
    data = b64encode(as_png(figure, PAGE_DPI)).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(words)}">'


def _timeline(answer: Estimate) -> str:
    """The Gantt chart and the sentence above it; without one, why there is none."""
    if answer.timeline.start is None:
        return f"<p>Engine {escape(answer.engine)} gives totals, not a time for every action.</p>"
    if answer.scenario.plan.num_stages * answer.num_microbatches > MOST_ACTIONS:
        return "<p>The step has too many actions to be drawn one by one.</p>"
    try:
        figure = gantt_figure(step_view(answer.scenario, answer.engine, answer))
    except FlopcastError as error:
        return f"<p>{escape(str(error))}</p>"
    note = "What each pipeline rank of one replica does, and the activations that it keeps."
    waited = answer.breakdown.seconds["pipeline_bubble"] + answer.breakdown.seconds["stage_imbalance"]
    words = f"The average GPU waits {show_time(waited)} for other pipeline ranks."
    return f"<p>{note}</p>{_picture(figure, words)}"


def _trust(answer: Estimate) -> str:
    """What the interval rests on, where the profile's values come from, and how well they were fitted."""
    profile = answer.scenario.profile
    low, high = map(show_time, answer.step_time_interval_s)
    basis = answer.interval_basis.replace("The interval is", "It is", 1)
    origin = facts_table((label, "", value) for label, value in profile_origin(profile))
    fits = {**profile.residuals, **profile.unseen}
    errors = [
        [f"{each[part]:.1%}" if part in each else "" for part in fits] for each in (profile.residuals, profile.unseen)
    ]
    table = rows_table(("Fit of", "median error", "on unseen data"), zip(fits, *errors, strict=True))
    said = f"<p>The 90 % interval of the step time is {low} to {high}. {escape(basis)}</p>"
    return said + as_html([origin, *(["", table] if fits else [])])


def _scenario(answer: Estimate) -> str:
    """The whole scenario, and how to ask again."""
    from sim import __version__

    yaml, engine = whole_yaml(answer.scenario), "" if answer.engine == "dag" else f" --engine {answer.engine}"
    lines = yaml.count("\n")
    return (
        "<p>Save the scenario below as <code>scenario.yaml</code>; it contains every preset. Then run, with flopcast "
        f"{__version__}:</p>\n<pre>flopcast estimate scenario.yaml{engine}</pre>\n<details><summary>The scenario "
        f'({lines} lines)</summary>\n<pre tabindex="0" aria-label="Scenario">{escape(yaml)}</pre></details>'
    )
