"""What each value of each axis of a plan costs, and what Megatron's rules would have chosen, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sim.report.search import apart, cell, largest, plan_line
from sim.report.standing import lost, ordinal
from sim.search import Rules, SearchResult, ValueCost
from sim.table import Table
from sim.units import show_time

NAMES = {
    "num_gpus": "GPUs",
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "ep": "ep",
    "microbatch_size": "micro-batch",
    "num_chunks": "chunks",
    "schedule": "schedule",
    "recompute": "recompute",
    "sequence_parallel": "seq. par.",
    "zero_stage": "ZeRO",
}
SEEN = 0.003
"""Share of the best step time below which a cause is not worth naming."""


def sensitivity_view(result: SearchResult, costs: Sequence[ValueCost]) -> Group:
    """A row a value: the best plan that has it, what it loses and why; what none fits with stands in one line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("axis", "value", "loss", "step time", "mostly"):
        table.add_column(
            heading, justify="left" if heading in ("axis", "mostly") else "right", no_wrap=heading != "mostly"
        )
    for axis in dict.fromkeys(each.axis for each in costs):
        rows = [each for each in costs if each.axis == axis]
        for number, each in enumerate(row for row in rows if row.best is not None):
            assert each.best is not None
            assert each.loss is not None
            there = apart(result, each.best.answer)
            table.add_row(
                NAMES[axis] if number == 0 else "",
                cell(each.value),
                "best" if each.is_best else f"{each.loss:+.1%}",
                show_time(each.best.answer.step_time_s),
                "" if each.is_best else largest(there.causes, SEEN * there.whole, 2, there.unit),
                style="bold" if each.is_best else None,
            )
        out = [cell(each.value) for each in rows if each.best is None]
        if out:
            table.add_row("", "", "", "", Text(f"{_some(out)}: none fits", style="dim"))
        table.add_section()
    title = Text("What each value costs", style="bold")
    title.append("  (the best plan that has it, against the best of all; exact engine)", style="not bold dim")
    return Group(title, table)


def _some(values: Sequence[str], most: int = 8) -> str:
    return ", ".join(values) if len(values) <= most else f"{', '.join(values[: most - 1])} … {values[-1]}"


def rules_view(result: SearchResult, rules: Rules) -> Group:
    """The rules' plans against the best, and the best plan against each rule."""
    best = result.best[0].answer
    title = Text("Megatron's rules of thumb", style="bold")
    title.append("  (Narayanan et al. 2021, arXiv:2104.04473, sections 3.2 to 3.4)", style="not bold dim")
    lines: list[RenderableType] = [title]
    for each in rules.plans:
        if each.best is None:
            lines.append(f"With techniques {each.techniques}: nothing that the rules allow fits.")
            continue
        answer = each.best.answer
        loss = "they are the best" if each.rank == 1 else f"{lost(result, answer)} against the best"
        there = apart(result, answer)
        why = largest(there.causes, SEEN * there.whole, 4, there.unit)
        lines.append(
            f"With techniques {each.techniques}, they lead to {plan_line(answer, best)}: "
            f"{show_time(answer.step_time_s)}, {loss}, {ordinal(each.rank or 0)} of {result.plans_feasible:,}"
            f"{f'; because {why}' if why else ''}."
        )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("rule", "it says", "the best plan has", ""):
        table.add_column(heading)
    for check in rules.checks:
        table.add_row(check.rule, check.chosen, check.found, "obeyed" if check.obeyed else "broken")
    return Group(*lines, Padding(table, (0, 0, 0, 2), expand=False))
