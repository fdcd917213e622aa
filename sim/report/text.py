"""An estimate, and two estimates side by side, in a terminal."""

from __future__ import annotations

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from sim.breakdown import CAUSES
from sim.estimate import Estimate
from sim.report.facts import MEMORY, SMALLEST, headline, memory_rows, plan_words, question_words, sure_words
from sim.report.terminal import bars_table, block, indented, title
from sim.specs.differing import differing_fields
from sim.specs.frameworks import stack_words
from sim.table import Table, facts_table, plain_table
from sim.units import show, show_time, significant

_MEMORY_COLUMNS = ("weights", "grads", "optim.", "activ.", "logits", "other")
"""Headings of MEMORY, in few letters."""
_MEMORY_WIDTH = 64
"""Columns of a terminal that the whole memory table needs."""
_COLOURS = {"flop_at_peak": "green", "matmul_inefficiency": "yellow", "attention_overhead": "yellow"}
_COMPARED = {
    "GPUs": ("num_gpus", "count"),
    "step time": ("step_time_s", "time"),
    "tokens/s": ("tokens_per_s", "tokens/s"),
    "whole job": ("total_flop_per_s", "FLOP/s"),
    "per GPU (hardware)": ("hardware_flop_per_s_per_gpu", "FLOP/s"),
    "per GPU (model)": ("model_flop_per_s_per_gpu", "FLOP/s"),
    "MFU": ("mfu", "share"),
    "HFU": ("hfu", "share"),
    "training": ("training_time_s", "time"),
}
"""Numbers of two answers that stand side by side: attribute of an estimate and what it is."""


def heading(answer: Estimate) -> Text:
    """What was asked, in two lines, and how well the answer is known."""
    said = title(answer.scenario.name, f"  {question_words(answer)}\n").append(f"{plan_words(answer)}\n", style="dim")
    return said.append(sure_words(answer), style="bold")


def _headline(answer: Estimate) -> rich.table.Table:
    recompute = answer.scenario.plan.recompute != "none"
    names = {"hardware": "Per GPU", "model": "  without recompute"} if recompute else {"model": "Per GPU"}
    table = facts_table()
    for fact in headline(answer, names, sure=False):
        value = Text(fact.value, style="bold green") if fact.name == "Whole job" else fact.value
        table.add_row(fact.name, value, Text(fact.note, style="bold red" if fact.wrong else ""))
    return table


def _bars(answer: Estimate, width: int) -> RenderableType:
    """Seconds and shares of the causes that count, with a bar each where there is room."""
    shares, seconds = answer.breakdown.shares(), answer.breakdown.seconds
    causes = [cause for cause in CAUSES if shares[cause] >= SMALLEST]
    return bars_table([(name, seconds[name], shares[name], _COLOURS.get(name, "cyan")) for name in causes], width - 42)


def _memory(answer: Estimate, width: int) -> Table:
    """Gigabytes by purpose; in a narrow terminal the largest purpose only."""
    narrow = width < _MEMORY_WIDTH
    names = ("largest part",) if narrow else _MEMORY_COLUMNS
    table = plain_table("rank", *names, "total", left=names if narrow else (), gap=2)
    table.columns[-1].style = "bold"
    for row in memory_rows(answer):
        cells = [f"{row.parts[name] / 1e9:.1f}" for name in MEMORY]
        if narrow:
            use = answer.memory[row.rank].to_dict()
            part = max((name for name in use if name != "total"), key=lambda name: use[name])
            cells = [f"{part} {use[part] / 1e9:.1f}"]
        table.add_row(str(row.rank), *cells, f"{row.total / 1e9:.1f}")
    return table


def estimate_view(answer: Estimate, width: int) -> Group:
    """The answer: headline, where the time goes, memory by pipeline rank, assumptions."""
    origin = (
        f"(profile {answer.scenario.profile.name}, stack {stack_words(answer.scenario.stack)}, engine {answer.engine})"
    )
    lines = Text("\n".join(f"• {line}" for line in (answer.interval_basis, *answer.assumptions)), style="dim")
    return Group(
        heading(answer),
        "",
        indented(_headline(answer)),
        *block("Where the time goes", "  (average GPU, one step)", _bars(answer, width)),
        *block("Memory by pipeline rank", "  (GB per GPU)", _memory(answer, width)),
        *block("Assumptions", f"  {origin}", lines),
    )


def _shown(value: float, unit: str) -> str:
    """A value by what it is: a time, a share, a count, or a quantity of `unit`."""
    if unit == "time":
        return show_time(value)
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if unit == "count" else show(value, unit)


def compare_view(first: Estimate, second: Estimate) -> Group:
    """Two answers side by side, and what differs between their descriptions."""
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("")
    for answer in (first, second):
        table.add_column(answer.scenario.name, justify="right", overflow="fold")
    table.add_column("change", justify="right")

    def row(label: str, left: float, right: float, unit: str) -> None:
        change = f"{right / left - 1:+.1%}" if left > 0 else ("" if right == left else "new")
        table.add_row(label, _shown(left, unit), _shown(right, unit), change)

    for label, (name, unit) in _COMPARED.items():
        if getattr(first, name) is not None and getattr(second, name) is not None:
            row(label, getattr(first, name), getattr(second, name), unit)
    row("memory, fullest rank", first.largest.total, second.largest.total, "B")
    table.add_section()
    for cause in CAUSES:
        left, right = first.breakdown.seconds[cause], second.breakdown.seconds[cause]
        if max(left / first.step_time_s, right / second.step_time_s) >= SMALLEST:
            row(cause.replace("_", " "), left, right, "time")
    differences = "\n".join(differing_lines(first, second)) or "nothing"
    return Group(table, "", title("What differs"), indented(Text(differences)))


def differing_lines(first: Estimate, second: Estimate) -> list[str]:
    """Lines `plan.tp: 8 → 4` for every field that differs between two scenarios."""

    def said(value: object) -> str:
        return significant(value, 6) if isinstance(value, float) else str(value)

    fields = differing_fields([first.scenario, second.scenario])
    return [f"{path}: {said(left)} → {said(right)}" for path, (left, right) in fields.items()]
