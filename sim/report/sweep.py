"""A sweep in a terminal: the best plan at each value, what of it changes, and a grid where there are two axes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.plans import (
    amount,
    answer_columns,
    differing,
    field,
    fields_for,
    heading,
    letter,
    shared_gpus,
    shared_words,
)
from sim.report.terminal import assumptions, grouped, shared_line, title
from sim.search.axes import SIZE, Axis
from sim.search.sweep import INTERRUPTED, Sweep, SweepPoint
from sim.search.table import SHOWN_FIELDS
from sim.specs import ParallelPlan
from sim.specs.fields import NumericField
from sim.table import Table, columns_table, plain_table

REASONS, SHOWN = 12, 8
"""Reasons that are told why points have no plan, and points that are named with each."""


def sweep_view(swept: Sweep) -> Group:
    """What was swept, the answers, and notes."""
    scenario = swept.scenario
    names = " and ".join(axis.path for axis in swept.axes)
    best = f"best plan by {swept.objective.replace('_', ' ')} over {names}"
    asked = title(scenario.name, f"  {scenario.model.name}, {best}")
    body = _lines(swept) if len(swept.axes) == 1 else _grid(swept)
    if not swept.finished:
        found = sum(point.infeasible != INTERRUPTED for point in swept.points)
        asked.append(f"\ninterrupted: only {found:,} of {len(swept.points):,} points were searched", "bold red")
    return Group(asked, "", *body, *_reasons(swept), *assumptions(swept.notes))


def _lines(swept: Sweep) -> list[RenderableType]:
    """A row a point; of the winner stands what differs from the one above."""
    (axis,) = swept.axes
    found = {number: point.best for number, point in enumerate(swept.points) if point.best is not None}
    plans = [each.scenario.plan for each in found.values()]
    answers = [each.answer for each in found.values()]
    several = bool(differing(plans, ["num_gpus"]))
    # dp follows from the others where the number of GPUs is given.
    names = [name for name in SHOWN_FIELDS if f"plan.{name}" != axis.path and (name != "dp" or several)]
    differ = differing(plans, names)
    numbers = {
        **answer_columns(swept.objective, answers),
        **({"GPUs": [f"{answer.num_gpus:,}" for answer in answers]} if several and axis.path != SIZE else {}),
    }
    table = plain_table(_folded(axis.path), *numbers, *map(heading, differ), left=(), gap=1)
    rows = dict(zip(found, zip(*numbers.values(), strict=True), strict=True))
    first = next(iter(found), None)
    for number, point in enumerate(swept.points):
        if point.best is None:
            table.add_row(axis.show(point.values[0]), Text("none", style="red"))
            continue
        plan, changed = point.best.scenario.plan, differ if number == first else swept.changes(number)
        fields = (field(plan, name) if name in changed else Text("·", "dim") for name in differ)
        table.add_row(axis.show(point.values[0]), *rows[number], *fields)
    parts: list[RenderableType] = [_shared(swept, plans)] if plans else []
    return [*parts, table, *([Text("· as in the row above", style="dim")] if differ else [])]


def _shared(swept: Sweep, plans: Sequence[ParallelPlan]) -> Text:
    """What all winners have in common."""
    return shared_line([*shared_words(plans, fields_for(swept.scenario.model)), *shared_gpus(plans)])


def _grid(swept: Sweep) -> list[RenderableType]:
    """Step times, the first axis down and the second across, each with the letter of its plan."""
    down, across = swept.axes
    winners, letters = swept.winners(), plan_letters(swept)
    table = plain_table("", *map(across.show, across.values), left=())
    for row, value in enumerate(down.values):
        here = range(row * len(across.values), (row + 1) * len(across.values))
        table.add_row(down.show(value), *(_cell_of(swept, swept.points[n], letters.get(winners[n], "")) for n in here))
    plans = {n: p.best.scenario.plan for n, p in zip(winners, swept.points, strict=True) if p.best is not None}
    if not plans:
        return [table]
    differ = differing(plans.values(), SHOWN_FIELDS)
    columns = {heading(name): [field(plans[number], name) for number in letters] for name in differ}
    legend = columns_table({"": list(letters.values()), **columns}, gap=1, wrap=("",))
    by = "" if swept.objective == "step_time" else f" by {swept.objective.replace('_', ' ')}"
    counted = next(amount(swept.objective, point.best.answer) for point in swept.points if point.best is not None)
    name = "step time" if counted.heading == "step" else counted.heading
    heads = Text(f"{name[0].upper()}{name[1:]} of the best plan{by}; down {down.path}, across {across.path}")
    return [heads, table, "", _shared(swept, list(plans.values())), legend]


def plan_letters(swept: Sweep) -> dict[int | None, str]:
    """A letter for each plan that wins somewhere: A to Z, then AA and on."""
    numbers = sorted({winner for winner in swept.winners() if winner is not None})
    return {number: letter(number) for number in numbers}


def _cell_of(swept: Sweep, point: SweepPoint, letter: str) -> Text:
    if point.best is None:
        return Text("none", style="red")
    return Text(f"{amount(swept.objective, point.best.answer).text} {letter}")


def _reasons(swept: Sweep) -> list[RenderableType]:
    """Why points have no plan, points of one reason together."""
    by_reason = grouped(
        (point.infeasible, ", ".join(map(Axis.show, swept.axes, point.values)))
        for point in swept.points
        if point.infeasible is not None
    )
    if not by_reason:
        return []
    said = [f"none at {_some(where)}: {reason}" for reason, where in by_reason.items()]
    left = len(said) - REASONS
    return ["", *said[:REASONS], *([f"and {left:,} more reasons at other points (--json has all)"] if left > 0 else [])]


def _some(where: Sequence[str]) -> str:
    """Points where something holds, the first and the last where they are many."""
    shown = where if len(where) <= SHOWN else [*where[: SHOWN - 1], f"… {where[-1]}"]
    return " and at ".join(shown)


def _folded(path: str) -> str:
    """The last name of a path, on lines of at most some twelve letters."""
    lines = [""]
    for word in path.rpartition(".")[2].split("_"):
        lines += [""] if len(lines[-1]) + len(word) > 11 and lines[-1] else []
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def fields_view(fields: Sequence[NumericField]) -> Table:
    """The numbers that a sweep may go over, with the scenario's own values."""
    axes = [Axis(each.path, each.full_path, each.unit, (), "listed") for each in fields]
    values = [
        "not set" if each.value is None else axis.show(each.value) for each, axis in zip(fields, axes, strict=True)
    ]
    table = columns_table({"field": [each.path for each in fields], "value": values}, left=("field", "value"))
    for column in table.columns:
        column.overflow, column.no_wrap = "fold", False
    return table
