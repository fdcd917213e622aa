"""A sweep in a terminal: the best plan at each value, what of it changes, and a grid where there are two axes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sim.report.search import COLUMNS, HEADINGS, cell, columns_for, gpus, spent
from sim.search.axes import SIZE, Axis
from sim.search.candidate import Candidate
from sim.search.sweep import INTERRUPTED, Sweep, SweepPoint
from sim.search.table import FIELDS
from sim.specs import ParallelPlan
from sim.specs.fields import NumericField
from sim.table import Table
from sim.units import show, show_time

REASONS, SHOWN = 12, 8
"""Reasons that are told why points have no plan, and points that are named with each."""


def sweep_view(swept: Sweep) -> Group:
    """What was swept, the answers, and notes."""
    scenario = swept.scenario
    title = Text(scenario.name, style="bold")
    names = " and ".join(axis.path for axis in swept.axes)
    title.append(f"  {scenario.model.name}, best plan by {swept.objective.replace('_', ' ')} over {names}", "not bold")
    body = _lines(swept) if len(swept.axes) == 1 else _grid(swept)
    if not swept.finished:
        found = sum(point.infeasible != INTERRUPTED for point in swept.points)
        title.append(f"\ninterrupted: only {found:,} of {len(swept.points):,} points were searched", "bold red")
    reasons = _reasons(swept)
    notes = Padding("\n".join(f"• {note}" for note in swept.notes), (0, 0, 0, 2), expand=False)
    return Group(title, "", *body, *reasons, "", Text("Assumptions", style="bold"), notes)


def _lines(swept: Sweep) -> list[RenderableType]:
    """A row a point; of the winner stands what differs from the one above."""
    (axis,) = swept.axes
    found = [point.best.scenario.plan for point in swept.points if point.best is not None]
    sizes = {plan.num_gpus for plan in found}
    # dp follows from the others where the number of GPUs is given.
    names = [name for name in FIELDS if f"plan.{name}" != axis.path and (name != "dp" or len(sizes) > 1)]
    differ = [name for name in names if len({str(getattr(plan, name)) for plan in found}) > 1]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(_folded(axis.path), justify="right", no_wrap=True)
    counted = next((spent(swept.objective, point.best.answer) for point in swept.points if point.best), None)
    several = len(sizes) > 1 and axis.path != SIZE
    headings = [
        "step\ntime",
        *([counted[0]] if counted else []),
        "MFU",
        "memory",
        *(["GPUs"] if several else []),
        *(HEADINGS.get(name, COLUMNS[name]) for name in differ),
    ]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    begun = False
    for number, point in enumerate(swept.points):
        if point.best is None:
            table.add_row(axis.show(point.values[0]), Text("none", style="red"))
            continue
        answer, plan = point.best.answer, point.best.scenario.plan
        changed = swept.changes(number) if begun else tuple(differ)
        table.add_row(
            axis.show(point.values[0]),
            show_time(answer.step_time_s),
            *([own[1]] if (own := spent(swept.objective, answer)) else []),
            f"{answer.mfu:.1%}",
            show(answer.largest.total, "B"),
            *([f"{answer.num_gpus:,}"] if several else []),
            *(cell(getattr(plan, name)) if name in changed else Text("·", "dim") for name in differ),
        )
        begun = True
    parts: list[RenderableType] = []
    if found:
        parts.append(_shared(swept, found, differ))
    parts.append(table)
    if len(differ):
        parts.append(Text("· as in the row above", style="dim"))
    return parts


def _shared(swept: Sweep, plans: Sequence[ParallelPlan], differ: Sequence[str]) -> Text:
    """What all winners have in common."""
    columns = columns_for(swept.scenario.model)
    names = [name for name in columns if name not in differ and len({getattr(plan, name) for plan in plans}) == 1]
    words = [f"{columns[name]} {cell(getattr(plans[0], name))}" for name in names]
    words += [gpus(plans[0].num_gpus)] if len({plan.num_gpus for plan in plans}) == 1 else []
    return Text("All of them: ", style="bold") + Text(" · ".join(words), style="not bold")


def _grid(swept: Sweep) -> list[RenderableType]:
    """Step times, the first axis down and the second across, each with the letter of its plan."""
    down, across = swept.axes
    winners, letters = swept.winners(), plan_letters(swept)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    for value in across.values:
        table.add_column(across.show(value), justify="right", no_wrap=True)
    for row, value in enumerate(down.values):
        here = range(row * len(across.values), (row + 1) * len(across.values))
        table.add_row(down.show(value), *(_cell_of(swept, swept.points[n], letters.get(winners[n], "")) for n in here))
    plans = {
        number: point.best.scenario.plan
        for point, number in zip(swept.points, winners, strict=True)
        if point.best is not None
    }
    if not plans:
        return [table]
    differ = [name for name in FIELDS if len({getattr(plan, name) for plan in plans.values()}) > 1]
    legend = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    legend.add_column("")
    for name in differ:
        legend.add_column(HEADINGS.get(name, COLUMNS[name]), justify="right", no_wrap=True)
    for number, letter in letters.items():
        legend.add_row(letter, *(cell(getattr(plans[number], name)) for name in differ))
    by = "" if swept.objective == "step_time" else f" by {swept.objective.replace('_', ' ')}"
    counted = _counted(swept.objective, next(point.best for point in swept.points if point.best is not None))[0]
    heads = Text(f"{counted} of the best plan{by}; down {down.path}, across {across.path}")
    return [heads, table, "", _shared(swept, list(plans.values()), differ), legend]


def plan_letters(swept: Sweep) -> dict[int | None, str]:
    """A letter for each plan that wins somewhere: A to Z, then AA and on."""
    numbers = sorted({winner for winner in swept.winners() if winner is not None})
    alphabet = [chr(ord("A") + index) for index in range(26)]
    return {n: (alphabet[n // 26 - 1] if n >= 26 else "") + alphabet[n % 26] for n in numbers}


def _cell_of(swept: Sweep, point: SweepPoint, letter: str) -> Text:
    if point.best is None:
        return Text("none", style="red")
    return Text(f"{_counted(swept.objective, point.best)[1]} {letter}")


def _counted(objective: str, best: Candidate) -> tuple[str, str]:
    """What an objective makes smallest, and how much of it the best plan of a point takes."""
    if objective == "memory_headroom":
        return "Memory", show(best.answer.largest.total, "B")
    name, amount = spent(objective, best.answer) or ("step time", show_time(best.answer.step_time_s))
    name = name.replace("\n", " ")
    return name[0].upper() + name[1:], amount


def _reasons(swept: Sweep) -> list[RenderableType]:
    """Why points have no plan, points of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for point in swept.points:
        if point.infeasible is not None:
            values = ", ".join(axis.show(value) for axis, value in zip(swept.axes, point.values, strict=True))
            by_reason.setdefault(point.infeasible, []).append(values)
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
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("field", "value"):
        table.add_column(heading, overflow="fold")
    for field in fields:
        axis = Axis(field.path, field.full_path, field.unit, (), "listed")
        table.add_row(field.path, "not set" if field.value is None else axis.show(field.value))
    return table
