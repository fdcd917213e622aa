"""The result of a search in a terminal: the best plans, what distinguishes them, and why not another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sim.estimate import Estimate
from sim.search import Candidate, SearchResult
from sim.search.comparison import losses_by_cause, seconds_apart
from sim.specs import ModelSpec, ParallelPlan, Scenario
from sim.table import Table
from sim.units import show, show_time, significant

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
    saved = f"{result.plans_restored:,} plans read from {result.folder}, " if result.plans_restored else ""
    took = f"{show_time(result.elapsed_s)} ({result.plans_per_s:,.0f} a second)"
    priced = f"{now:,} plans priced and memory-checked in {took}, " if now else ""
    title.append(f"  {scenario.model.name}, best plans by {result.objective.replace('_', ' ')}\n", style="not bold")
    title.append(
        f"{priced}{saved}{result.plans_feasible:,} fit in {show(result.memory_limit_bytes, 'B')} a GPU; ",
        style="dim",
    )
    if not result.confirmed:
        title.append("none is run exactly", style="dim")
    elif result.gap == 0.0:
        proves = "proves" if result.confirmed == 1 else "prove"
        title.append(f"{result.confirmed:,} run exactly {proves} that no other is better", style="dim")
    else:
        least = "" if result.gap is None else f"; another may be better by {result.gap:.2%} at most"
        title.append(f"{result.confirmed:,} run exactly{least}", style="dim")
    if not result.finished:
        looked = f"only {result.plans_priced:,} of {result.space.num_plans:,} plans were looked at"
        if result.plans_priced == result.space.num_plans:
            looked = f"all plans were priced, but only the best {result.confirmed} run on the exact engine"
        goes_on = "; the same command goes on" if result.folder else ""
        title.append(f"\ninterrupted: {looked}; better ones may be among the rest{goes_on}", style="bold red")
    return title


def _best(result: SearchResult, width: int) -> tuple[Text, Table]:
    plans = [each.scenario.plan for each in result.best]
    line, differ = _apart(plans, result.space.scenario.model)
    first, fastest = result.best[0].worth(result.objective), result.best[0].answer
    answers = [each.answer for each in result.best]
    losses = [f"{each.worth(result.objective) / first - 1:+.1%}" for each in result.best]
    counted = [found for found in (spent(result.objective, answer) for answer in answers) if found]
    shown = {
        "": [str(number) for number in range(1, len(plans) + 1)],
        **{_heading_of(name): [_field(plan, name) for plan in plans] for name in differ},
        "step\ntime": [show_time(answer.step_time_s) for answer in answers],
        **({counted[0][0]: [amount for _, amount in counted]} if counted else {}),
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
    return line, table


def _apart(plans: Sequence[ParallelPlan], model: ModelSpec) -> tuple[Text, list[str]]:
    """What plans share, in a line, and the fields in which they differ."""
    columns = columns_for(model)
    differ = [name for name in ("num_gpus", *columns) if len({getattr(plan, name) for plan in plans}) > 1]
    shared = [f"{columns[name]} {_field(plans[0], name)}" for name in columns if name not in differ]
    shared += [gpus(plans[0].num_gpus)] if "num_gpus" not in differ else []
    return (Text("All of them: ", style="bold") + Text(" · ".join(shared)) if shared else Text("")), differ


def _heading_of(name: str) -> str:
    return "GPUs" if name == "num_gpus" else HEADINGS.get(name, COLUMNS[name])


def _field(plan: ParallelPlan, name: str) -> str:
    return f"{plan.num_gpus:,}" if name == "num_gpus" else cell(getattr(plan, name))


def spent(objective: str, answer: Estimate) -> tuple[str, str] | None:
    """Heading and value of what an objective counts; None where step time and memory, which are shown anyway, say it.

    Of the whole run where its tokens are known, else of a step.
    """
    days = None if answer.training_time_s is None else answer.training_time_s / 86400
    if objective == "days" and days is not None:
        return "days", significant(days)
    if objective == "cost" and days is not None:
        return "GPU\ndays", significant(days * answer.num_gpus)
    if objective == "cost":
        return "GPU-s\na step", significant(answer.step_time_s * answer.num_gpus)
    return None


def _off(candidate: Candidate) -> str:
    """How far the price is below the exact step."""
    return f"{max(0.0, candidate.difference) / (1 + candidate.difference):.1%}"


def _columns_needed(shown: Mapping[str, Sequence[str]]) -> int:
    """Of a terminal, by columns that stand a space apart."""
    widest = (max(len(word) for word in (*heading.split("\n"), *cells)) for heading, cells in shown.items())
    return sum(widest) + len(shown) - 1


def gpus(number: int) -> str:
    """`1 GPU`, `1,024 GPUs`."""
    return f"{number:,} GPU{'s' * (number != 1)}"


def cell(value: object) -> str:
    """A value of a plan's field in words."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def pareto_view(result: SearchResult, most: int = 30) -> Group:
    """Plans that no other beats in step time, memory, GPUs and cost, by the closed form."""
    front = result.pareto()
    if not len(front):
        return Group(Text("Pareto front", style="bold"), "No plan that is priced fits.")
    # Evenly over the front where it is longer than a screen.
    shown = front[np.unique(np.linspace(0, len(front) - 1, min(most, len(front))).round().astype(int))]
    plans, priced = [each.plan for each in result.scenarios_at(shown)], result.prices.at(shown)
    line, differ = _apart(plans, result.space.scenario.model)
    steps, cost = run_cost(result.space.scenario)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    own = [name for name in differ if name != "num_gpus"]
    for heading in ("GPUs", "step\ntime", "memory", cost.replace(" ", "\n", 1), *map(_heading_of, own)):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan, seconds, nbytes in zip(plans, priced.step_time_s.tolist(), priced.memory_bytes.tolist(), strict=True):
        spending = significant(seconds * steps * plan.num_gpus)
        fields = (_field(plan, name) for name in own)
        table.add_row(f"{plan.num_gpus:,}", show_time(seconds), show(nbytes, "B"), spending, *fields)
    title = Text("Pareto front", style="bold")
    title.append(
        "  (none is as good in step time, memory, GPUs and cost and better in one; by the closed form, "
        f"{len(shown)} of {len(front)} plans)",
        style="not bold dim",
    )
    return Group(title, line, table)


def run_cost(scenario: Scenario) -> tuple[float, str]:
    """(what GPUs times step time are multiplied by, the unit of that): of the whole run where its tokens are known."""
    training = scenario.training
    if training.tokens is None:
        return 1.0, "GPU-seconds a step"
    return training.tokens / training.tokens_per_step / 86400, "GPU-days of the run"


def largest(causes: Mapping[str, float], least: float, most: int = 3, unit: str = "s") -> str:
    """The largest seconds, or bytes, by cause in words, either sign."""
    ranked = sorted(causes.items(), key=lambda item: -abs(item[1]))[:most]
    seen = [f"{cause.replace('_', ' ')} {signed(amount, unit)}" for cause, amount in ranked if abs(amount) >= least]
    return ", ".join(seen)


def signed(amount: float, unit: str = "s") -> str:
    """`+1.2 s` or `-300 ms`, `+1.2 GB`."""
    return f"{'-' if amount < 0 else '+'}{show_time(abs(amount)) if unit == 's' else show(abs(amount), unit)}"


@dataclass(frozen=True, slots=True)
class Apart:
    """What an answer takes more than the best, by cause, largest first: what the objective counts.

    whole : of the best.
    """

    what: str
    causes: Mapping[str, float]
    whole: float
    unit: str


def apart(result: SearchResult, answer: Estimate) -> Apart:
    """Seconds by cause, of as many GPUs where cost counts; bytes by purpose where memory does."""
    best = result.best[0].answer
    if result.objective == "memory_headroom":
        here, there = best.largest.to_dict(), answer.largest.to_dict()
        parts = {name: there[name] - here[name] for name in here if name != "total"}
        ranked = dict(sorted(parts.items(), key=lambda item: -item[1]))
        return Apart("Memory of the fullest GPU by purpose", ranked, here["total"], "B")
    what = "Cost by cause, in seconds of the best plan's GPUs" if result.objective == "cost" else "Step time by cause"
    return Apart(what, losses_by_cause(result, answer), best.step_time_s, "s")


def short_words(plan: ParallelPlan, names: Sequence[str]) -> str:
    """Some fields of a plan with as few letters as a figure has room for."""
    labels = {"microbatch_size": "mbs ", "num_chunks": "v ", "schedule": ""}
    return ", ".join(f"{labels.get(name, COLUMNS[name] + ' ')}{cell(getattr(plan, name))}" for name in names)


def abbreviated(names: Sequence[str]) -> list[str]:
    """What the letters of `short_words` stand for."""
    letters = {"num_chunks": "v: chunks of a rank", "microbatch_size": "mbs: sequences of a micro-batch"}
    return ["; ".join(words for name, words in letters.items() if name in names)] if {*letters} & {*names} else []


def plan_line(answer: Estimate, beside: Estimate | None = None) -> str:
    """A plan in one line, with its GPUs where they are not as many as another's."""
    plan, columns = answer.scenario.plan, columns_for(answer.scenario.model)
    line = ", ".join(f"{label} {cell(getattr(plan, name))}" for name, label in columns.items())
    return line if beside is None or beside.num_gpus == answer.num_gpus else f"{gpus(answer.num_gpus)}: {line}"
