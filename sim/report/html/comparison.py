"""The report of several scenarios side by side, as one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple

from sim.breakdown import CAUSES
from sim.errors import FlopcastError, InfeasiblePlan
from sim.estimate import Estimate
from sim.report.facts import (
    GROUPS,
    headline,
    memory_parts,
    plan_words,
    profile_origin,
    question_words,
    seconds_by_group,
)
from sim.report.html.page import residual_rows
from sim.report.html.render import GROUP_PARTS, bar_chart, memory_bars, render
from sim.report.plans import letter
from sim.report.terminal import grouped
from sim.report.text import differing_rows
from sim.search.comparison import seconds_apart
from sim.specs.writing import whole_yaml
from sim.uncertainty import interval_factors, least_told_apart
from sim.units import show, show_time

SECTIONS = {
    "answers": "Answers",
    "time": "Where the time goes",
    "memory": "Memory of the fullest rank",
    "inputs": "What differs in the scenarios",
    "assumptions": "Assumptions",
    "trust": "How far to trust it",
    "reproduce": "How to reproduce it",
}
"""Titles of the page's sections by the place in it that a link leads to."""
MOST_UPRIGHT = 4
"""Columns that fit on upright paper."""
_AMOUNTS = {
    "Step time": "step_time_s",
    "Tokens": "tokens_per_s",
    "Whole job": "total_flop_per_s",
    "Per GPU, model": "model_flop_per_s_per_gpu",
    "Per GPU, hardware": "hardware_flop_per_s_per_gpu",
    "Training": "training_time_s",
}
"""Lines of the headline that are as uncertain as the step time, and the estimate's attribute of each."""


class Asked(NamedTuple):
    """A scenario of a comparison: what its column is called, and its answer, or the mistake for which it has none."""

    label: str
    answer: Estimate | None
    mistake: FlopcastError | None = None

    @property
    def problem(self) -> tuple[str, ...]:
        """What is wrong with it, and why with what would help; empty where nothing is."""
        if self.answer is None:
            return "has no answer", str(self.mistake)
        try:
            self.answer.require_fit()
        except InfeasiblePlan as error:
            return "does not fit", str(error).removeprefix("the plan does not fit: ")
        return ()


class Cell(NamedTuple):
    """A value of a table, what is written beside it, and how far it is from the first scenario's."""

    value: str
    note: str = ""
    change: str = ""
    wrong: bool = False


class Cause(NamedTuple):
    """A row of the table by cause: seconds of each answer, and how many more than the first. [s]

    bars : of the differences: (class, begin, width) in percent of an axis with the first in its middle.
    """

    name: str
    meaning: str
    seconds: list[str]
    apart: list[str]
    bars: list[tuple[str, float, float]]


def comparison_page(asked: Sequence[Asked]) -> str:
    """A page of HTML with the answers to several questions, and what sets them apart.

    asked : Some of them answered. Those that are not, and those that do not fit, have their reason on the page.
    """
    from sim import __version__

    named = [(letter(number), each) for number, each in enumerate(asked)]
    answered = [(name, each.answer) for name, each in named if each.answer is not None]
    answers = [answer for _, answer in answered]
    fields, folded = differing_rows([answer.scenario for answer in answers])
    fullest = [_fullest(answer) for answer in answers]
    fullest = [_fullest(answer) for answer in answers]
    shared, own = assumptions_of(answers)
    bases = grouped((answer.interval_basis, name) for name, answer in answered)
    profiles = {answer.scenario.profile.name: answer.scenario.profile for answer in answers}
    return render(
        "comparison.html",
        title=" · ".join(each.label for each in asked),
        asked=named,
        words={name: (question_words(answer), plan_words(answer)) for name, answer in answered},
        labels={name: each.label for name, each in named if each.answer is not None},
        sections=SECTIONS,
        facts=fact_rows(asked),
        problems=[(name, *each.problem) for name, each in named if each.problem],
        unlike=len({answer.scenario.training.tokens_per_step for answer in answers}) > 1,
        steps=bar_chart(
            [(name, seconds_by_group(answer.breakdown.seconds), None) for name, answer in answered],
            GROUP_PARTS,
            show_time,
        ),
        unit=_scale(answers)[0],
        causes=cause_rows(answers),
        memory=memory_bars([(name, *use) for (name, _), use in zip(answered, fullest, strict=True)]),
        memory_rows=_memory_rows(fullest),
        fields=fields,
        folded=folded,
        shared=shared,
        own=[(name, lines) for (name, _), lines in zip(answered, own, strict=True)],
        intervals=[(name, *map(show_time, answer.step_time_interval_s)) for name, answer in answered],
        bases=[(", ".join(names), basis) for basis, names in bases.items()],
        profiles=[(profile_origin(profile), residual_rows(profile)) for profile in profiles.values()],
        scenarios=[(name, whole_yaml(answer.scenario)) for name, answer in answered],
        wide=len(asked) > MOST_UPRIGHT,
        version=__version__,
        engine_name=answers[0].engine,
    )


def fact_rows(asked: Sequence[Asked]) -> list[tuple[str, list[Cell | None]]]:
    """Questions and the answer of each scenario, with how far it is from the first; None where there is no answer."""
    answers = [each.answer for each in asked]
    base = next(answer for answer in answers if answer is not None)
    told = {fact.name for answer in answers if answer is not None for fact in headline(answer)}
    rows: list[tuple[str, list[Cell | None]]] = [
        ("GPUs", [None if answer is None else Cell(f"{answer.num_gpus:,}") for answer in answers])
    ]
    for name in dict.fromkeys(("Step time", "How sure", *_AMOUNTS, "Memory")):
        if name in told:
            rows.append((name, [None if answer is None else _cell(name, answer, base) for answer in answers]))
    return rows


def _cell(name: str, answer: Estimate, base: Estimate) -> Cell:
    """A line of an answer's headline; one that it leaves out and another has is said all the same."""
    change = ""
    if name == "Memory":
        change = _signed(answer.largest.total / base.largest.total - 1)
    elif name in _AMOUNTS:
        here, there = getattr(answer, _AMOUNTS[name]), getattr(base, _AMOUNTS[name])
        if here is not None and there is not None:
            clear = "clear" if is_clear(here / there, answer, base) else "not clear"
            change = f"{_signed(here / there - 1)}, {clear}"
    change = "" if answer is base else change
    fact = next((fact for fact in headline(answer) if fact.name == name), None)
    if fact is not None:
        return Cell(fact.value, f"does not fit: {answer.need}" if fact.wrong else fact.note, change, fact.wrong)
    if name == "Per GPU, hardware":
        return Cell(show(answer.hardware_flop_per_s_per_gpu, "FLOP/s"), "nothing computed again", change)
    return Cell("–", change=change)


def is_clear(ratio: float, one: Estimate, other: Estimate) -> bool:
    """Whether two numbers of such a ratio differ by more than the intervals of the two step times account for."""
    factors = [interval_factors(each.scenario, each.breakdown.shares()) for each in (one, other)]
    return max(ratio, 1 / ratio) > least_told_apart(*factors)


def _signed(share: float) -> str:
    return f"{share:+.1%}".replace("-", "−")


def _scale(answers: Sequence[Estimate]) -> tuple[str, float, int]:
    """Unit, factor and decimals in which steps by cause are written: five digits of the longest, so that sums show."""
    longest = max(answer.step_time_s for answer in answers)
    unit, factor = ("s", 1.0) if longest >= 1 else ("ms", 1e3)
    return unit, factor, max(0, 4 - floor(log10(longest * factor)))


def cause_rows(answers: Sequence[Estimate]) -> list[Cause]:
    """The steps by cause, and their differences to the first; the last row is their sum."""
    _, factor, decimals = _scale(answers)
    tables = [answer.breakdown.seconds for answer in answers]
    changes = [seconds_apart(answer, answers[0]) for answer in answers[1:]]
    most = max((abs(value) for each in changes for value in each.values()), default=0.0) or 1.0

    def apart(value: float) -> str:
        text = f"{value * factor:+,.{decimals}f}"  # nothing has no sign
        return text.replace("-", "−") if any(digit in "123456789" for digit in text) else text[1:]

    def row(name: str, meaning: str, seconds: Sequence[float], more: Sequence[float], group: str = "") -> Cause:
        widths = [50 * value / most if group else 0.0 for value in more]
        bars = [(group, 50 + min(width, 0.0), abs(width)) for width in widths]
        return Cause(name, meaning, [f"{value * factor:,.{decimals}f}" for value in seconds], [*map(apart, more)], bars)

    rows = [
        row(name.replace("_", " "), meaning, [t[name] for t in tables], [c[name] for c in changes], GROUPS[name])
        for name, meaning in CAUSES.items()
        if any(each[name] for each in tables)
    ]
    steps = [answer.step_time_s for answer in answers]
    return [*rows, row("step", "", steps, [step - steps[0] for step in steps[1:]])]


def _fullest(answer: Estimate) -> tuple[dict[str, float], float]:
    """Bytes of the fullest rank by part, and of the GPU."""
    use = answer.largest.to_dict()
    del use["total"]
    return memory_parts(use), answer.memory_available_bytes


def _memory_rows(tables: Sequence[tuple[dict[str, float], float]]) -> list[tuple[str, list[str]]]:
    """Gigabytes by part, their sum, and what there is."""
    parts = {name: [table[name] for table, _ in tables] for name in tables[0][0]}
    parts["sum"] = [sum(table.values()) for table, _ in tables]
    parts["of the GPU"] = [available for _, available in tables]
    return [(name, [f"{value / 1e9:,.2f}" for value in values]) for name, values in parts.items()]


def assumptions_of(answers: Sequence[Estimate]) -> tuple[list[str], list[list[str]]]:
    """Assumptions that all answers share, and of each those that are its own or not of all."""
    shared = [line for line in answers[0].assumptions if all(line in answer.assumptions for answer in answers)]
    return shared, [[line for line in answer.assumptions if line not in shared] for answer in answers]
