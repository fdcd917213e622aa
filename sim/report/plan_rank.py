"""The rank of a plan in a search, in a terminal, what it loses where, and the way to the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.estimate import Estimate
from sim.report.plans import apart, cell, differences, label, largest, lost, ordinal, plan_line, signed
from sim.report.terminal import indented, title
from sim.search import SearchResult, Standing, Step, Why
from sim.search.answers.among import loss_of
from sim.search.plans.columns import SCHEDULES
from sim.table import Table, plain_table
from sim.units import show_time

SEEN = 0.001
"""Share of the best step time below which a difference is not shown."""


def why_view(result: SearchResult, named: Mapping[str, object], why: Why) -> Group:
    """What rules a plan out, or what it loses where against the best."""
    asked = " ".join(f"plan.{name}={cell(value)}" for name, value in named.items())
    asked_for = title(f"Why not {asked}?")
    if why.answer is None:
        return Group(asked_for, Text(f"Ruled out: {why.ruled_out}"))
    place = "" if why.rank is None else f", {ordinal(why.rank)} of {result.plans_feasible:,} plans that fit"
    if why.searched is not None:
        sure = "" if why.searched.proven else f" (a plan not run may be {why.searched.gap:.1%} better at most)"
        place = f"; best of {why.searched.plans:,} such plans{sure}"
    if why.tried:
        place = f"; the search does not price such plans, this is the best of {why.tried} that were tried"
    return Group(
        asked_for,
        f"The best such plan ({plan_line(why.answer, result.best[0].answer)}) takes "
        f"{show_time(why.answer.step_time_s)}, {lost(result, why.answer)} against the best{place}.",
        *_explained(result, why.answer, why.steps),
    )


def plan_rank_view(result: SearchResult, standing: Standing, question: str) -> Group:
    """The rank of one plan among all and among those of its techniques, and what better ones save."""
    lines: list[RenderableType] = [title(question)]
    answer = standing.answer
    lines.append(
        f"{plan_line(answer, result.best[0].answer)}: {show_time(answer.step_time_s)}, {lost(result, answer)} against "
        "the best" + (f"; not ranked: {standing.ruled_out}" if standing.ruled_out else "")
    )
    for each in standing.among:
        best = each.best.answer
        change = (1 + loss_of(result, best)) / (1 + loss_of(result, answer)) - 1
        rank = "" if each.rank is None else f"{ordinal(each.rank)} of "
        said = f"{show_time(best.step_time_s)} ({change:+.1%}: {differences(answer, best)})"
        own = best.scenario.plan == answer.scenario.plan
        lines.append(f"  {rank}{each.of:,} {each.kind}; best of them {'itself' if own else said}")
    return Group(*lines, *_explained(result, answer, standing.steps))


def own_line(result: SearchResult, standing: Standing) -> Text:
    """The scenario's own plan in a line or two."""
    answer = standing.answer
    words = "The scenario's own plan: "
    if standing.ruled_out:
        return title(words, standing.ruled_out)
    # Of other schedules only the best plans are known, so that no rank counts theirs.
    everything = f"of {', '.join(SCHEDULES)}" if result.schedules else "in all"
    kinds = [everything, *(each.kind for each in standing.among[1:2])]
    ranks = [
        f"{ordinal(each.rank)} of {each.of:,} {kind}"
        for each, kind in zip(standing.among, kinds, strict=False)
        if each.rank
    ]
    loss = f"{show_time(answer.step_time_s)}, {lost(result, answer)}"
    return title(words, f"{loss}; {', '.join(ranks)} (--why own says why)")


def _explained(result: SearchResult, answer: Estimate, steps: Sequence[Step]) -> list[RenderableType]:
    """What the objective counts, by cause against the best, and the way there."""
    best, there = result.best[0].answer, apart(result, answer)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for cause, amount in there.causes.items():
        if abs(amount) >= SEEN * there.whole:
            table.add_row(cause.replace("_", " "), signed(amount, there.unit), f"{amount / there.whole:+.1%}")
    parts: list[RenderableType] = []
    if table.row_count:
        parts += [f"{there.what}, against the best:", indented(table)]
    if steps:
        parts += [
            "From it to the best, a technique at a time, or those together that only then fit or save; each saves "
            "what it does after those above it:",
            indented(_way(answer, best, steps)),
        ]
    return parts


def _way(start: Estimate, best: Estimate, steps: Sequence[Step]) -> Table:
    headings = ("changed", "saves", "then", "of that")
    table = plain_table(*headings, left=("changed", "of that"), wrap=headings)
    table.add_row("", "", show_time(start.step_time_s), "")
    for step in steps:
        changes = ", ".join(f"{label(name)} {cell(old)} → {cell(new)}" for name, (old, new) in step.changes.items())
        table.add_row(
            changes,
            signed(step.saved_s).removeprefix("+"),
            show_time(step.answer.step_time_s),
            largest(step.causes, SEEN * best.step_time_s),
        )
    return table
