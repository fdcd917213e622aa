"""The result of a search in a terminal: the best plans, what distinguishes them, and why not another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sim.estimate import Estimate
from sim.search import Candidate, SearchResult
from sim.search.steps import seconds_apart
from sim.specs import ModelSpec, ParallelPlan, Scenario
from sim.table import Table
from sim.units import show, show_time

HEADINGS = {"microbatch_size": "mbs", "recompute": "re-\ncom-\npute", "sequence_parallel": "seq.\npar."}
"""Of columns whose names are wider than what stands in them."""
COLUMNS = {
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "dp": "dp",
    "ep": "ep",
    "num_chunks": "chunks",
    "microbatch_size": "micro-batch",
    "schedule": "schedule",
    "recompute": "recompute",
    "sequence_parallel": "seq. par.",
    "zero_stage": "ZeRO",
}


def columns_for(model: ModelSpec) -> dict[str, str]:
    """COLUMNS that say something of the model's plans: expert parallelism only where there are experts."""
    return {name: label for name, label in COLUMNS.items() if name != "ep" or model.num_experts}


OPTIONAL = ("MFU", "for-\nmula\noff")
"""What a terminal goes without, in this order, if the rest then stands side by side; MFU follows from the step time."""
WIDE = 112
"""Columns of a terminal that also has room for what each plan loses to the first."""


def search_view(result: SearchResult, own: Text | None = None, width: int = 80) -> Group:
    """What was searched, then the best plans; what they share stands above the table, what is said of the own below."""
    notes = Padding("\n".join(f"• {note}" for note in result.assumptions), (0, 0, 0, 2), expand=False)
    said: list[RenderableType] = [] if own is None else ["", own]
    return Group(_heading(result), "", *_best(result, width), *said, "", Text("Assumptions", style="bold"), notes)


def _heading(result: SearchResult) -> Text:
    scenario = result.space.scenario
    title = Text(scenario.name, style="bold")
    now = result.plans_priced - result.plans_restored
    saved = f"{result.plans_restored:,} read from {result.folder}, " if result.plans_restored else ""
    title.append(f"  {scenario.model.name}, best plans by {result.objective.replace('_', ' ')}\n", style="not bold")
    title.append(
        f"{now:,} plans priced and memory-checked in {show_time(result.elapsed_s)} "
        f"({result.plans_per_s:,.0f} a second), {saved}{result.plans_feasible:,} fit in "
        f"{show(result.memory_limit_bytes, 'B')} a GPU; ",
        style="dim",
    )
    if result.gap == 0.0:
        title.append(f"{result.confirmed:,} run exactly prove that no other is better", style="dim")
    else:
        least = "" if result.gap is None else f"; another may be better by {result.gap:.2%} at most"
        title.append(f"{result.confirmed:,} run exactly{least}", style="dim")
    if not result.finished:
        title.append(
            f"\ninterrupted: only {result.plans_priced:,} of {result.space.num_plans:,} plans were looked at; better "
            f"ones may be among the rest{'; the same command goes on' if result.folder else ''}",
            style="bold red",
        )
    return title


def _best(result: SearchResult, width: int) -> tuple[Text | Padding, Table]:
    plans = [each.scenario.plan.model_dump(mode="json") for each in result.best]
    columns = columns_for(result.space.scenario.model)
    differ = [name for name in columns if len({str(plan[name]) for plan in plans}) > 1]
    sizes = {each.answer.num_gpus for each in result.best}
    shared = [f"{columns[name]} {cell(plans[0][name])}" for name in columns if name not in differ]
    shared += [f"{sizes.copy().pop():,} GPUs"] if len(sizes) == 1 else []
    first, fastest = result.best[0].worth(result.objective), result.best[0].answer
    answers = [each.answer for each in result.best]
    losses = [f"{each.worth(result.objective) / first - 1:+.1%}" for each in result.best]
    shown = {
        "": [str(number) for number in range(1, len(plans) + 1)],
        **({"GPUs": [f"{answer.num_gpus:,}" for answer in answers]} if len(sizes) > 1 else {}),
        **{HEADINGS.get(name, columns[name]): [cell(plan[name]) for plan in plans] for name in differ},
        "step\ntime": [show_time(answer.step_time_s) for answer in answers],
        "to\nbest": ["", *losses[1:]],
        "MFU": [f"{answer.mfu:.1%}" for answer in answers],
        "memory": [show(answer.largest.total, "B") for answer in answers],
        "for-\nmula\noff": [_off(each) for each in result.best],
    }
    fewer = dict(shown)
    for heading in OPTIONAL:
        if _columns_needed(fewer) > width:
            del fewer[heading]
    shown = fewer if _columns_needed(fewer) <= width else shown
    if width >= WIDE:
        shown["time against the first, mostly"] = [
            largest(seconds_apart(answer, fastest), 0.001 * fastest.step_time_s, 2) for answer in answers
        ]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(shown):
        words = heading.startswith("time against")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words,
                         style="dim" if number == 0 else None)  # fmt: skip
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    line = Text("All of them: ", style="bold") + Text(" · ".join(shared)) if shared else Text("")
    return line, table


def _off(candidate: Candidate) -> str:
    """How far the price is below the exact step."""
    return f"{max(0.0, candidate.difference) / (1 + candidate.difference):.1%}"


def _columns_needed(shown: Mapping[str, Sequence[str]]) -> int:
    """Of a terminal, by columns that stand a space apart."""
    widest = (max(len(word) for word in (*heading.split("\n"), *cells)) for heading, cells in shown.items())
    return sum(widest) + len(shown) - 1


def cell(value: object) -> str:
    """A value of a plan's field in words."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def pareto_view(result: SearchResult, most: int = 30) -> Group:
    """Plans that no other beats in step time, memory and GPUs, by the closed form."""
    front = result.pareto()
    # Evenly over the front where it is longer than a screen.
    shown = front[np.unique(np.linspace(0, len(front) - 1, min(most, len(front))).round().astype(int))]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("GPUs", "step time", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("plan")
    for place in shown.tolist():
        scenario = result.scenario_at(place)
        seconds, nbytes = float(result.step_time_s[place]), float(result.memory_bytes[place])
        table.add_row(f"{scenario.plan.num_gpus:,}", show_time(seconds), show(nbytes, "B"), _line(scenario))
    title = Text("Pareto front", style="bold")
    title.append(
        f"  (step time by the closed form, memory, GPUs: {len(shown)} of {len(front)} plans)", style="not bold dim"
    )
    return Group(title, table)


def largest(causes: Mapping[str, float], least: float, most: int = 3) -> str:
    """The largest seconds by cause in words, either sign."""
    ranked = sorted(causes.items(), key=lambda item: -abs(item[1]))[:most]
    seen = [f"{cause.replace('_', ' ')} {signed(seconds)}" for cause, seconds in ranked if abs(seconds) >= least]
    return ", ".join(seen)


def signed(seconds: float) -> str:
    """`+1.2 s` or `-300 ms`."""
    return f"{'-' if seconds < 0 else '+'}{show_time(abs(seconds))}"


def short_words(plan: ParallelPlan, names: Sequence[str]) -> str:
    """Some fields of a plan with as few letters as a figure has room for."""
    labels = {"microbatch_size": "mbs ", "num_chunks": "v ", "schedule": ""}
    return ", ".join(f"{labels.get(name, COLUMNS[name] + ' ')}{cell(getattr(plan, name))}" for name in names)


def plan_line(answer: Estimate) -> str:
    """A plan in one line."""
    return _line(answer.scenario)


def _line(scenario: Scenario) -> str:
    columns = columns_for(scenario.model)
    return ", ".join(f"{label} {cell(getattr(scenario.plan, name))}" for name, label in columns.items())
