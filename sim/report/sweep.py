"""A sweep in a terminal: the best plan at each point, and what of it changes."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report import plans as say
from sim.report.terminal import assumptions, grouped, shared_line, title
from sim.search.axes import SIZE, Axis
from sim.search.candidate import SHOWN_FIELDS
from sim.search.sweep import INTERRUPTED, Sweep
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
    if not swept.finished:
        found = sum(point.infeasible != INTERRUPTED for point in swept.points)
        asked.append(f"\ninterrupted: only {found:,} of {len(swept.points):,} points were searched", "bold red")
    return Group(asked, "", *_points(swept), *_reasons(swept), *assumptions(swept.notes))


def swept_fields(swept: Sweep) -> list[str]:
    """Fields of the plan in which the winners of a sweep differ, without those that follow from what is swept."""
    plans = [point.best.scenario.plan for point in swept.points if point.best is not None]
    given = {axis.path for axis in swept.axes}
    if not say.differing(plans, ["num_gpus"]):
        given.add("plan.dp")  # it follows from the others where the number of GPUs is given
    return say.differing(plans, [name for name in SHOWN_FIELDS if f"plan.{name}" not in given])


def _points(swept: Sweep) -> list[RenderableType]:
    """A row a point; of the winner stands what differs from the one above."""
    found = {number: point.best for number, point in enumerate(swept.points) if point.best is not None}
    plans, answers = [each.scenario.plan for each in found.values()], [each.answer for each in found.values()]
    differ, numbers = swept_fields(swept), say.answer_columns(swept.objective, answers)
    if say.differing(plans, ["num_gpus"]) and all(axis.path != SIZE for axis in swept.axes):
        numbers["GPUs"] = [f"{answer.num_gpus:,}" for answer in answers]
    words = [axis.path.rpartition(".")[2].replace("_", " ") for axis in swept.axes]
    heads = [fill(each, 12, break_long_words=False) for each in words]
    table = plain_table(*heads, *numbers, *map(say.heading, differ), left=(), gap=1)
    rows = dict(zip(found, zip(*numbers.values(), strict=True), strict=True))
    length = len(swept.axes[-1].values)
    for number, point in enumerate(swept.points):
        at = [axis.show(value) for axis, value in zip(swept.axes, point.values, strict=True)]
        block = range(number - number % length, number)  # points before it with the same first value
        if len(at) > 1 and block:
            at[0] = ""
        if point.best is None:
            table.add_row(*at, Text("none", style="red"))
            continue
        changed = swept.changes(number) if any(each in found for each in block) else differ
        plan = point.best.scenario.plan
        fields = (say.field(plan, name) if name in changed else Text("·", "dim") for name in differ)
        table.add_row(*at, *rows[number], *fields)
    shared = [*say.shared_words(plans, say.fields_for(swept.scenario.model)), *say.shared_gpus(plans)] if plans else []
    heading: list[RenderableType] = [shared_line(shared)] if plans else []
    return [*heading, table, *([Text("· as in the row above", style="dim")] if differ else [])]


def _reasons(swept: Sweep) -> list[RenderableType]:
    """Why points have no plan, points of one reason together, the first and the last of them where they are many."""
    by_reason = grouped(
        (point.infeasible, ", ".join(map(Axis.show, swept.axes, point.values)))
        for point in swept.points
        if point.infeasible is not None
    )
    said: list[RenderableType] = [""] if by_reason else []
    for reason, where in list(by_reason.items())[:REASONS]:
        shown = where if len(where) <= SHOWN else [*where[: SHOWN - 1], f"… {where[-1]}"]
        said.append(f"none at {' and at '.join(shown)}: {reason}")
    left = len(by_reason) - REASONS
    return [*said, *([f"and {left:,} more reasons at other points (--json has all)"] if left > 0 else [])]


def fields_view(fields: Sequence[NumericField]) -> Table:
    """The numbers that a sweep may go over, with the scenario's own values."""
    axes = [Axis(each.path, each.full_path, each.unit, (), "listed") for each in fields]
    pairs = zip(fields, axes, strict=True)
    values = ["not set" if each.value is None else axis.show(each.value) for each, axis in pairs]
    table = columns_table({"field": [each.path for each in fields], "value": values}, left=("field", "value"))
    for column in table.columns:
        column.overflow, column.no_wrap = "fold", False
    return table
