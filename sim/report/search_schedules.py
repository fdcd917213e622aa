"""The best plan of each schedule in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sim.report.plans import COLUMNS, abbreviated, cell, differing, spent_column
from sim.report.terminal import shared_line, title
from sim.search import ScheduleBest, SearchResult
from sim.search.answers.among import loss_of
from sim.search.plans.layouts import LAYOUT
from sim.specs import ParallelPlan
from sim.table import Table, plain_table
from sim.units import show, show_time

FIELDS = (*LAYOUT, "num_chunks", "microbatch_size", "sequence_slices", "recompute", "sequence_parallel", "zero_stage")
SHORT = {"num_chunks": "v", "microbatch_size": "mbs", "sequence_slices": "slices", "sequence_parallel": "seq. par."}
"""Names with few letters, of fields that stand in front of their values."""


def schedules_view(result: SearchResult) -> Group:
    """Of every schedule that was searched its best plan against the best of all, and what is not known of it."""
    found = [each for each in result.schedules if each.best is not None]
    plans = [each.best.scenario.plan for each in found if each.best is not None]
    differ = differing(plans, FIELDS)
    said = [_said(plans[0], name) for name in FIELDS if name not in differ and _tells(plans[0], name)] if plans else []
    if len({plan.num_gpus for plan in plans}) == 1:  # then dp follows
        differ = [name for name in differ if name != "dp"]
    runs, looked_at = sum(each.runs for each in result.schedules), sum(each.plans for each in result.schedules)
    counts = f"  ({looked_at:,} plans bounded, {runs:,} run on the exact engine)"
    parts: list[RenderableType] = [title("Best of each schedule", counts, "not bold dim")]
    if said:
        parts.append(shared_line(said))
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
    answers = [each.best.answer for each in found if each.best is not None]
    sizes = [f"{each.num_gpus:,}" for each in answers]
    amounts = {
        **({"GPUs": sizes} if len(set(sizes)) > 1 else {}),
        "step\ntime": [show_time(answer.step_time_s) for answer in answers],
        **spent_column(result.objective, answers),
        "to\nbest": [f"{loss_of(result, answer):+.1%}" for answer in answers],
        "memory": [show(answer.largest.total, "B") for answer in answers],
    }
    table = plain_table("schedule", *amounts, "plan", left=("schedule", "plan"), gap=1, wrap=("plan",))
    table.columns[-1].overflow = "fold"
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
