"""The best plan of each schedule in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.search import COLUMNS, abbreviated, cell, spent
from sim.search import ScheduleBest, SearchResult
from sim.search.comparison import loss_of
from sim.search.plans.layouts import LAYOUT
from sim.specs import ParallelPlan
from sim.table import Table
from sim.units import show, show_time

FIELDS = (*LAYOUT, "num_chunks", "microbatch_size", "sequence_slices", "recompute", "sequence_parallel", "zero_stage")
SHORT = {"num_chunks": "v", "microbatch_size": "mbs", "sequence_slices": "slices", "sequence_parallel": "seq. par."}
"""Names with few letters, of fields that stand in front of their values."""


def schedules_view(result: SearchResult) -> Group:
    """Of every schedule that was searched its best plan against the best of all, and what is not known of it."""
    found = [each for each in result.schedules if each.best is not None]
    plans = [each.best.scenario.plan for each in found if each.best is not None]
    differ = [name for name in FIELDS if len({getattr(plan, name) for plan in plans}) > 1]
    said = [_said(plans[0], name) for name in FIELDS if name not in differ and _tells(plans[0], name)] if plans else []
    if len({plan.num_gpus for plan in plans}) == 1:  # then dp follows
        differ = [name for name in differ if name != "dp"]
    title = Text("Best of each schedule", style="bold")
    runs, looked_at = sum(each.runs for each in result.schedules), sum(each.plans for each in result.schedules)
    title.append(f"  ({looked_at:,} plans bounded, {runs:,} run on the exact engine)", style="not bold dim")
    parts: list[RenderableType] = [title]
    if said:
        parts.append(Text("All of them: ", style="bold").append(" · ".join(said), style="not bold"))
    if found:
        parts.append(_table(result, found, differ))
    unproven = [each for each in found if not each.proven]
    if found:
        parts += [Text(line, style="dim") for line in abbreviated(differ)]
        proven = "all" if not unproven else f"{len(found) - len(unproven)} of {len(found)}"
        parts.append(Text(f"Proven best of its schedule: {proven}", style="dim"))
    for each in unproven:
        parts.append(
            Text(f"{each.schedule}: a plan that was not run may be {each.gap:.1%} better at most", style="dim")
        )
    if any(each.asynchronous for each in found):
        parts.append(Text("* trains another way: gradients come late; not among the best plans", style="dim"))
    reasons: dict[str, list[str]] = {}
    for each in result.schedules:
        if each.best is None:
            reasons.setdefault(str(each.reason), []).append(each.schedule)
    parts += [Text(f"{', '.join(names)}: {reason}") for reason, names in reasons.items()]
    return Group(*parts)


def _table(result: SearchResult, found: list[ScheduleBest], differ: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("schedule", no_wrap=True)
    answers = [each.best.answer for each in found if each.best is not None]
    counted = [here for here in (spent(result.objective, answer) for answer in answers) if here]
    amounts = {
        **(
            {"GPUs": [f"{each.num_gpus:,}" for each in answers]} if len({each.num_gpus for each in answers}) > 1 else {}
        ),
        "step\ntime": [show_time(answer.step_time_s) for answer in answers],
        **({counted[0][0]: [amount for _, amount in counted]} if counted else {}),
        "to\nbest": [f"{loss_of(result, answer):+.1%}" for answer in answers],
        "memory": [show(answer.largest.total, "B") for answer in answers],
    }
    for heading in amounts:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for each, answer, *cells in zip(found, answers, *amounts.values(), strict=True):
        plan = answer.scenario.plan
        table.add_row(
            f"{each.schedule}{'*' if each.asynchronous else ''}",
            *cells,
            ", ".join(_said(plan, name) for name in differ if _tells(plan, name)),
        )
    return table


def _said(plan: ParallelPlan, name: str) -> str:
    if name == "recompute":
        return {"none": "no recompute", "full": "full recompute"}.get(plan.recompute, plan.recompute)
    return f"{SHORT.get(name, COLUMNS.get(name, name))} {cell(getattr(plan, name))}"


def _tells(plan: ParallelPlan, name: str) -> bool:
    """Whether a field says anything: what is not cut, or cannot be, goes without saying."""
    if name == "sequence_parallel":
        return plan.tp > 1
    return name not in ("sequence_slices", "cp", "ep") or getattr(plan, name) > 1
