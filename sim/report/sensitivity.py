"""What each value of each axis of a plan costs, and what Megatron's rules would have chosen, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.plans import HEADINGS, apart, cell, lost, ordinal, plan_line
from sim.report.terminal import indented, title
from sim.search import Rules, SearchResult, ValueCost
from sim.table import plain_table
from sim.units import show_time

SEEN = 0.003
"""Share of the best step time below which a cause is not worth naming."""


def sensitivity_view(result: SearchResult, costs: Sequence[ValueCost]) -> Group:
    """A row a value: the best plan that has it, what it loses and why; what none fits with stands in one line."""
    table = plain_table("axis", "value", "loss", "step time", "mostly", left=("axis", "mostly"), wrap=("mostly",))
    for axis in dict.fromkeys(each.axis for each in costs):
        rows = [each for each in costs if each.axis == axis]
        for number, each in enumerate(row for row in rows if row.best is not None):
            assert each.best is not None
            assert each.loss is not None
            table.add_row(
                HEADINGS[axis] if number == 0 else "",
                cell(each.value),
                "best" if each.is_best else f"{each.loss:+.1%}",
                show_time(each.best.answer.step_time_s),
                "" if each.is_best else apart(result, each.best.answer).largest(SEEN, 2),
                style="bold" if each.is_best else None,
            )
        out = [cell(each.value) for each in rows if each.best is None]
        if out:
            table.add_row("", "", "", "", Text(f"{_some(out)}: none fits", style="dim"))
        table.add_section()
    note = "  (the best plan that has it, against the best of all; exact engine)"
    return Group(title("What each value costs", note, "not bold dim"), table)


def _some(values: Sequence[str], most: int = 8) -> str:
    return ", ".join(values) if len(values) <= most else f"{', '.join(values[: most - 1])} … {values[-1]}"


def rules_view(result: SearchResult, rules: Rules) -> Group:
    """The rules' plans against the best, and the best plan against each rule."""
    best = result.best[0].answer
    source = "  (Narayanan et al. 2021, arXiv:2104.04473, sections 3.2 to 3.4)"
    lines: list[RenderableType] = [title("Megatron's rules of thumb", source, "not bold dim")]
    for each in rules.plans:
        if each.best is None:
            lines.append(f"With techniques {each.techniques}: nothing that the rules allow fits.")
            continue
        answer = each.best.answer
        loss = "they are the best" if each.rank == 1 else f"{lost(result, answer)} against the best"
        why = apart(result, answer).largest(SEEN, 4)
        lines.append(
            f"With techniques {each.techniques}, they lead to {plan_line(answer, best)}: "
            f"{show_time(answer.step_time_s)}, {loss}, {ordinal(each.rank or 0)} of {result.plans_feasible:,}"
            f"{f'; because {why}' if why else ''}."
        )
    headings = ("rule", "it says", "the best plan has", "")
    table = plain_table(*headings, left=headings, wrap=headings)
    for check in rules.checks:
        table.add_row(check.rule, check.chosen, check.found, "obeyed" if check.obeyed else "broken")
    return Group(*lines, indented(table))
