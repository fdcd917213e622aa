"""An estimate in a terminal, and two estimates side by side with the fields that differ."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sim.breakdown import CAUSES, waiting_for_sends
from sim.estimate import Estimate
from sim.report import facts as say
from sim.report.terminal import assumptions, bars_table, block, indented, remarks, title
from sim.specs.base import file_name, unit_of
from sim.specs.frameworks import stack_words
from sim.specs.writing import ABSENT, differing_fields
from sim.table import Table, facts_table, plain_table, rows_table
from sim.uncertainty import least_told_apart
from sim.units import listed, show, show_bare, show_time

MOST_UNFOLDED = 4
"""Fields of a section of another name that are shown at once."""
_ALIKE = 1e-3
"""Logarithm of the ratio of two step times below which nothing is said of their difference."""


_COLOURS = {"flop_at_peak": "green", "matmul_inefficiency": "yellow", "attention_overhead": "yellow"}
COMPARED = {
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


def heading(answer: Estimate, words: str = "") -> Text:
    """The answer in short, and what was asked in two lines."""
    said = title(answer.scenario.name + (f": {words}" if words else ""), f"\n{say.question_words(answer)}\n")
    return said.append(say.plan_words(answer), style="dim")


def opening(answer: Estimate) -> Group:
    """The answer, what was asked, how sure the answer is, and what limits it."""
    low, high = map(show_time, answer.step_time_interval_s)
    fits = "" if answer.fits else "; it does not fit in memory"
    words = f"{show_time(answer.step_time_s)} per step (90 %: {low} to {high}){fits}"
    return Group(heading(answer, words), "", sure_and_limit(answer))


def sure_and_limit(answer: Estimate) -> Padding:
    """How sure a step time is, and what limits it."""
    return remarks(
        {"How sure": f"{say.factors(answer)} (90 %); {say.grade_words(answer)}", "Limited by": say.limit_words(answer)}
    )


def faster_words(answer: Estimate, best: Estimate, lacking: str, command: str) -> str:
    """What a faster plan saves, what it is, what it needs, and how to see it."""
    saved = 1.0 - best.step_time_s / answer.step_time_s
    takes = f"a plan of {show_time(best.step_time_s)}, {saved:.0%} less, in {show(best.largest.total, 'B')} of memory"
    return f"{takes}. It is {say.plan_words(best)}{lacking}\n{command}"


def _memory(answer: Estimate) -> Table:
    """Gigabytes by purpose."""
    headings = ("rank", *say.MEMORY.values(), "total")
    ranks = say.memory_rows(answer)
    rows = ((str(rank), *(f"{amount / 1e9:.1f}" for amount in parts.values())) for rank, parts in ranks)
    table = rows_table(headings, rows, left=())
    table.columns[-1].style = "bold"
    return table


def estimate_view(answer: Estimate, width: int, verbose: bool = False) -> Group:
    """The numbers, where the time goes, memory by pipeline rank, and the assumptions that count most."""
    scenario, shares, seconds = answer.scenario, answer.breakdown.shares(), answer.breakdown.seconds
    recompute, rows = scenario.plan.recompute != "none", list[tuple[str, str | Text, Text]]()
    names = {"hardware": "Per GPU", "model": "  model FLOPs"} if recompute else {"model": "Per GPU"}
    for fact in say.headline(answer, names)[1:]:
        value = Text(fact.value, style="bold green") if fact.name == "Whole job" else fact.value
        rows.append((fact.name, value, Text(fact.note, style="bold red" if fact.wrong else "")))
    causes = [cause for cause in CAUSES if shares[cause] >= say.SMALLEST]
    bars = [(name, seconds[name], shares[name], _COLOURS.get(name, "cyan")) for name in causes]
    origin = f"  (profile {scenario.profile.name}, stack {stack_words(scenario.stack)}, engine {answer.engine})"
    return Group(
        "",
        indented(facts_table(rows)),
        *block("Where the time goes", "  (average GPU, one step)", bars_table(bars, width - 42)),
        *block("Memory by pipeline rank", "  (GB per GPU)", _memory(answer)),
        *assumptions([answer.interval_basis, *answer.assumptions], origin, verbose),
    )


def _shown(value: float, unit: str) -> str:
    """A value by what it is: a time, a share, a count, or a quantity of `unit`."""
    if unit == "time":
        return show_time(value) if value else "–"
    if unit == "share":
        return f"{value:.1%}"
    if unit == "tokens/s":
        return say.tokens_words(value).removesuffix(f" {unit}")
    return f"{value:,.0f}" if unit == "count" else show(value, unit)


def compare_view(
    first: Estimate, second: Estimate, verbose: bool = False, own: Sequence[Sequence[str]] = ((), ())
) -> Group:
    """Two answers side by side, and what differs between their descriptions.

    own : overrides of each scenario alone, as they were typed.
    """
    table = plain_table("", "A", "B", "change", left=("",), gap=4)

    def row(label: str, left: float, right: float, unit: str) -> None:
        times = right / left if left > 0 else 0.0
        change = f"{times:.0f} times" if times >= 10 else f"{times - 1:+.1%}" if left > 0 else "new" if right else ""
        table.add_row(label, _shown(left, unit), _shown(right, unit), change)

    for label, (name, unit) in COMPARED.items():
        if getattr(first, name) is not None and getattr(second, name) is not None:
            row(label, getattr(first, name), getattr(second, name), unit)
    row("memory, fullest rank", first.largest.total, second.largest.total, "B")
    table.add_row("")
    for cause in CAUSES:
        left, right = first.breakdown.seconds[cause], second.breakdown.seconds[cause]
        if max(left / first.step_time_s, right / second.step_time_s) >= say.SMALLEST:
            row(cause.replace("_", " "), left, right, "time")
            if cause == "pipeline_bubble":
                left, right = waiting_for_sends(first.timeline), waiting_for_sends(second.timeline)
                row("  of it for sends", left, right, "time")
    names = [first.scenario.name, second.scenario.name]
    if names[0] == names[1]:
        names = [f"{name} with {', '.join(said)}" if said else name for name, said in zip(names, own, strict=True)]
        names = [f"{name}  {say.plan_words(each)}" for name, each in zip(names, (first, second), strict=True)]
    heads = [title(f"{letter}  ", name) for letter, name in zip("AB", names, strict=True)]
    body = (table, indented(Text(clear_words(first, second), style="dim")))
    return Group(*heads, "", *body, "", title("What differs"), indented(_differing(first, second, verbose)))


def clear_words(first: Estimate, second: Estimate) -> str:
    """Whether two step times differ by more than their 90 % intervals account for; nothing where they are the same."""
    apart = abs(log(second.step_time_s / first.step_time_s))
    if apart < _ALIKE:
        return ""
    if apart > log(least_told_apart(first.interval, second.interval)):
        return "Which is faster is clear: the step times differ by more than both 90 % intervals account for."
    unclear = "Which is faster is not clear: the step times differ by less than both 90 % intervals together."
    one, other = first.scenario, second.scenario
    differ = {
        "GPU": one.cluster.gpu != other.cluster.gpu,
        "network": one.cluster.replace(num_nodes=1) != other.cluster.replace(num_nodes=1),
        "framework": one.stack.framework != other.stack.framework,
    }
    if not any(differ.values()):
        return (
            f"{unclear} Both share machine and framework, so their errors are mostly alike, and the order is likely "
            "right."
        )
    return f"{unclear} The two differ in {listed((name for name, on in differ.items() if on), 'and')}."


def _differing(first: Estimate, second: Estimate, verbose: bool) -> RenderableType:
    """Fields that differ, plan and training first.

    A model or cluster under another name differs in a hundred fields, of which the name is shown unless all are asked
    for.
    """
    sections: dict[str, dict[str, list[str]]] = {"plan": {}, "training": {}}
    for path, values in differing_fields([first.scenario, second.scenario]).items():
        rows = sections.setdefault(path.partition(".")[0], {})
        rows[short_path(path)] = [field_words(path, value) for value in values]
    table, hidden = plain_table("field", "A", "B", left=("field", "A", "B"), wrap=("A", "B")), list[str]()
    for section, rows in sections.items():
        name = f"{section}.name"
        if name in rows and len(rows) > MOST_UNFOLDED and not verbose:
            hidden.append(f"{len(rows) - 1} more fields of the {section}")
            rows = {name: rows[name]}
        for path, words in rows.items():
            table.add_row(Text(path), *map(Text, words))
    if not table.row_count:
        return Text("nothing")
    note = [Text(f"{', '.join(hidden)} differ: --verbose", style="dim")] if hidden else []
    return Group(table, *note)


def short_path(path: str) -> str:
    """A path as files write it, where values carry the unit."""
    return ".".join(map(file_name, path.split(".")))


def field_words(path: str, value: Any) -> str:
    """A field's value as a file would have it."""
    if value is ABSENT:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        unit = unit_of(path.rpartition(".")[2])
        if unit is None:
            return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        if short_path(path).endswith(("inter_node_bandwidth", "nic_bandwidth")):  # which are sold in bits a second
            return show_bare(8 * value, "bits_per_s")
        return show_bare(value, unit)
    return ", ".join(map(str, value)) or "–" if isinstance(value, list) else str(value)
