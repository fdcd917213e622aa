"""The report to hand on: one file that needs nothing else, with sliders that are worked out in the page."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from sim.breakdown import CAUSES
from sim.errors import FlopcastError, InfeasiblePlan
from sim.estimate import Estimate
from sim.report import facts as say
from sim.report.gantt import gantt_figure, step_view
from sim.report.html.render import GROUP_PARTS, MEMORY_PARTS, Part, embedded, memory_bars, render
from sim.report.plans import plan_table
from sim.search import SearchResult
from sim.search.grid import Grid, GridAnswer, GridPoint, own_value, setting
from sim.specs import Profile
from sim.specs.frameworks import stack_words
from sim.specs.writing import whole_yaml
from sim.units import show, show_time

AXIS_NAMES = {
    "plan.tp": "Tensor parallel",
    "plan.cp": "Context parallel",
    "plan.pp": "Pipeline ranks",
    "plan.ep": "Expert parallel",
    "plan.num_chunks": "Chunks a rank",
    "plan.microbatch_size": "Micro-batch, sequences",
    "plan.zero_stage": "ZeRO stage",
    "training.global_batch_size": "Global batch, sequences",
    "training.sequence_length": "Sequence length, tokens",
    "cluster.inter_node_bandwidth": "Network of a GPU",
}
"""What axes are called; others by the last word of their path."""
DIGITS = 12
"""Significant, of embedded numbers."""


class Choice(NamedTuple):
    """A row of the table: one value of one axis, all else as in the scenario."""

    value: str
    own: bool
    follows: str
    verdict: str
    step: str = ""
    change: str = ""
    job: str = ""
    memory: str = ""


class Slider(NamedTuple):
    """An axis: its values in words, where the scenario stands, and what one change does."""

    name: str
    values: list[str]
    own: int
    choices: list[Choice]


class Sliders(NamedTuple):
    """All that a page needs of a grid.

    data : JSON that can stand in a page.
    script_hash : of the script, for the page's policy, which lets no other run.
    """

    axes: list[Slider]
    combinations: int
    possible: int
    groups: list[Part]
    memory: list[Part]
    data: str
    script: str
    script_hash: str


def sliders_of(grid: Grid) -> Sliders:
    """A grid as a page shows it."""
    causes = [cause for cause in CAUSES if any(point.answer and point.answer.seconds[cause] for point in grid.points)]
    groups = {say.GROUPS[cause] for cause in causes}
    script = (files("sim.report.html") / "templates" / "sliders.js").read_text(encoding="utf-8")
    return Sliders(
        axes=[_slider(grid, number) for number in range(len(grid.axes))],
        combinations=len(grid.points),
        possible=sum(point.answer is not None for point in grid.points),
        groups=[part for group, part in GROUP_PARTS.items() if group in groups],
        memory=[*MEMORY_PARTS.values()],
        data=in_page(grid_data(grid, causes)),
        script=script,
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def _slider(grid: Grid, number: int) -> Slider:
    axis, own = grid.axes[number], grid.at(grid.own)
    name = AXIS_NAMES.get(axis.path, axis.path.rpartition(".")[2].replace("_", " ").capitalize())
    choices = [_choice(axis.show(point.values[number]), point, own) for point in grid.along(number)]
    return Slider(name, [*map(axis.show, axis.values)], grid.own[number], choices)


def _choice(value: str, point: GridPoint, own: GridPoint) -> Choice:
    follows = ", ".join(each.removeprefix("plan.").replace("=", " ").replace("_", " ") for each in point.follows)
    here, base = point.answer, own.answer
    if here is None:
        return Choice(value, point is own, follows, f"cannot be: {point.ruled_out}")
    change = "" if base is None or point is own else f"{here.tokens_per_s / base.tokens_per_s - 1:+.1%}"
    numbers = (show(here.total_flop_per_s, "FLOP/s"), show(here.memory_bytes, "B"))
    step = show_time(here.step_time_s)
    return Choice(value, point is own, follows, _verdict(here), step, change.replace("-", "−"), *numbers)


def _verdict(answer: GridAnswer) -> str:
    """Whether it fits, and if not what takes most."""
    if not answer.overfull:
        return "fits"
    largest = max(answer.memory, key=lambda name: answer.memory[name])
    return f"does not fit; most is {largest.replace('_', ' ')}, {show(answer.memory[largest], 'B')}"


def grid_data(grid: Grid, causes: list[str]) -> dict[str, Any]:
    """The grid as plain data: sentences once, points as lists of numbers.

    A point that cannot be is the place of its reason among `texts`; another one is [step time, ends of its interval,
    FLOP/s, tokens/s, MFU, bytes by MEMORY, the place among `texts` of why it does not fit or -1, that of what follows,
    seconds by cause].
    """
    texts: dict[str, int] = {}

    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def numbers(point: GridPoint) -> Any:
        answer = point.answer
        if answer is None:
            return place(point.ruled_out)
        rates = (answer.total_flop_per_s, answer.tokens_per_s, answer.mfu)
        return [
            *map(_short, (answer.step_time_s, *answer.step_time_interval_s, *rates)),
            [*map(_short, say.memory_parts(answer.memory).values())],
            place(_verdict(answer)) if answer.overfull else -1,
            place("\n".join(point.follows)),
            [_short(answer.seconds[cause]) for cause in causes],
        ]

    return {
        "available": grid.scenario.cluster.gpu.usable_bytes,
        "causes": [
            [cause.replace("_", " "), say.GROUPS[cause], GROUP_PARTS[say.GROUPS[cause]].key] for cause in causes
        ],
        "memory": list(say.MEMORY),
        "axes": [
            {
                "values": [axis.show(value) for value in axis.values],
                "sets": [setting(axis, value) for value in axis.values],
                "own": axis.values.index(own_value(grid.scenario, axis)),
            }
            for axis in grid.axes
        ],
        "engine": "" if grid.engine == "dag" else grid.engine,
        "points": [numbers(point) for point in grid.points],
        "texts": list(texts),
    }


def _short(value: float) -> float:
    """A number that is as long in JSON as it need be."""
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def in_page(data: Any) -> str:
    """JSON that cannot leave the element it stands in, whatever is in it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


MOST_ACTIONS = 2_000_000
"""Most actions of a step that is drawn. For a longer step the page says so instead."""


def report_page(
    answer: Estimate, search: SearchResult | None = None, why_no_plans: str = "", grid: Grid | None = None
) -> str:
    """A page of HTML with the answer and all that it rests on.

    search : Of the same scenario, for the plans that would do better.
    why_no_plans : What the page says instead of them.
    grid : Around the scenario, for sliders.
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
    basis = answer.interval_basis.replace("The interval is", "It is", 1)
    verdict, searched = "None is faster than this plan", ""
    if search is not None:
        best, searched = search.best[0].answer.step_time_s, f"{search.plans_feasible:,} of {search.plans_priced:,}"
        if answer.step_time_s / best - 1 > 0.005:
            verdict = f"The best takes {show_time(best)}, this plan {show_time(answer.step_time_s)}"
    rows, available = say.falls_of(answer), answer.memory_available_bytes
    used = {row.group for row in rows}
    waited = answer.breakdown.seconds["pipeline_bubble"] + answer.breakdown.seconds["stage_imbalance"]
    return render(
        "report.html",
        sections=_sections(answer, search is not None, bool(why_no_plans), grid is not None),
        sliders=None if grid is None else sliders_of(grid),
        name=scenario.name,
        description=scenario.description,
        question=say.question_words(answer),
        plan=say.plan_words(answer),
        facts=say.headline(answer),
        remedy=remedy,
        peak=show(answer.peak_flop_per_s, "FLOP/s"),
        masked=answer.mfu > 1.005 * answer.breakdown.shares()["flop_at_peak"],
        falls=rows,
        groups=[(kind, say.LABELS[kind]) for kind in dict.fromkeys(say.GROUPS.values()) if kind in used],
        memory=memory_bars([(f"rank {row.rank}", row.parts, available) for row in say.memory_rows(answer)]),
        available=available,
        timeline=timeline,
        timeline_note=note,
        timeline_words=(
            f"Timeline of a step of {show_time(answer.step_time_s)}, of which the average GPU waits "
            f"{show_time(waited)} for other pipeline ranks. The numbers are in the first table."
        ),
        plans=None if search is None else plan_table(search),
        plans_note=why_no_plans if search is None else f"{verdict}. {searched} plans fit in memory.",
        assumptions=answer.assumptions,
        trust=f"The 90 % interval of the step time is {low} to {high}. {basis}",
        provenance=say.profile_origin(scenario.profile),
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


def residual_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """(part of the profile, median error of its fit on its own data, on data left out)."""
    parts: dict[str, Any] = dict.fromkeys((*profile.residuals, *profile.unseen))

    def share(table: dict[str, float], part: str) -> str:
        return f"{table[part]:.1%}" if part in table else ""

    return [(part, share(profile.residuals, part), share(profile.unseen, part)) for part in parts]
