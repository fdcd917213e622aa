"""Answers to questions about a search in a terminal: why not another plan, what each value costs, and a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.estimate import Estimate
from sim.report import plans as say
from sim.report.terminal import assumptions, grouped, indented, title
from sim.search import SearchResult
from sim.search.assumed import priced_schedules
from sim.search.candidate import SHOWN_FIELDS, facts_of
from sim.search.explain import RankAmong, Step, Why, loss_of, losses_by_cause, overlaps_off
from sim.search.sweep import SIZE, Axis, Sweep, ValueCost
from sim.table import Table, plain_table
from sim.units import show_time

SEEN = 0.001
"""Share of the best step time below which a difference is not shown."""
NAMED = 0.003
"""Share of the best step time below which a cause is not worth naming."""


def why_view(result: SearchResult, why: Why, question: str, named: Mapping[str, object]) -> Group:
    """What rules a plan out, or its ranks, what it loses where against the best, and the way there.

    named : fields of the plan that were asked about; nothing where it is the scenario's own.
    """
    if why.answer is None:
        return Group(title(question), Text(f"Ruled out: {why.ruled_out}"))
    answer, best = why.answer, result.best[0].answer
    out = f"; not ranked: {why.ruled_out}" if why.ruled_out else _place(result, why)
    line = f"{say.plan_line(answer, best)}: {show_time(answer.step_time_s)}"
    lines: list[RenderableType] = [title(question), f"{line}, {say.lost(result, answer)} against the best{out}"]
    block = "recompute_method" not in named and answer.scenario.plan.recompute_method == "block"
    if named.get("recompute") == "full" and block:
        lines.append(
            "It recomputes some layers of each stage only; plan.recompute_method=uniform asks for all of them."
        )
    off = _overlaps(answer) if why.among else []
    return Group(*lines, *_ranks(result, why), *off, *_explained(result, answer, why.steps))


def _place(result: SearchResult, why: Why) -> str:
    """Which of how many plans the best with some fields is."""
    assert why.answer is not None
    if why.among:
        return ""  # its ranks are said one by one
    if why.left_out:
        return f"; the search left such plans out: this is the best of {why.left_out:,}"
    if why.searched is not None:
        sure = "" if why.searched.found.proven else f" (another may be up to {why.searched.found.gap:.1%} better)"
        return f"; best of {why.searched.found.plans:,} such plans{sure}"
    if why.rank == 1 and why.answer.scenario.plan != result.best[0].answer.scenario.plan:
        return f". Before layouts of stages were varied, it was the first of {result.plans_feasible:,} plans that fit"
    return "" if why.rank is None else f", {say.ordinal(why.rank)} of {result.plans_feasible:,} plans that fit"


def _ranks(result: SearchResult, why: Why) -> Iterator[RenderableType]:
    """The ranks of a plan among all and among those of its techniques, and what better ones save."""
    assert why.answer is not None
    answer, better = why.answer, None
    rows = [row for row, best in enumerate(result.best, 1) if best.answer.scenario.plan == answer.scenario.plan]
    listed_as = f", which have other layouts of stages; it is row {rows[0]} of the best" if rows else ""
    for each in _telling(why.among):
        best = each.best.answer
        change = (1 + loss_of(result, best)) / (1 + loss_of(result, answer)) - 1
        kind = "" if each.kind == why.among[0].kind else f" {each.kind}"
        among = f"the {each.of:,} plans that fit{kind}"
        place = f"Rank {each.rank:,} of {among}." if each.rank else f"Not ranked among {among}{listed_as}."
        said = f" The best takes {show_time(best.step_time_s)} ({change:+.1%}: {say.differences(answer, best)})."
        if best.scenario.plan == better:
            said = " The best of them is the same."
        yield indented(Text(place + ("" if best.scenario.plan == answer.scenario.plan else said)))
        better = best.scenario.plan


def _telling(among: Sequence[RankAmong]) -> list[RankAmong]:
    """Ranks that say more than those before them: none among the same plans, and none behind a first place."""
    last = next((number for number, each in enumerate(among, 1) if each.rank == 1), len(among))
    kept = among[:last]
    return [each for number, each in enumerate(kept) if each.of not in [before.of for before in kept[:number]]]


def _overlaps(answer: Estimate) -> list[str]:
    """What the overlaps save that the scenario's stack has off, which a search does not try."""
    named = {"async_tensor_parallel": "--tp-comm-overlap", "overlap_experts": "--overlap-moe-expert-parallel-comm"}
    off = []
    for name, saved_s in overlaps_off(answer, NAMED).items():
        option = named.get(name, f"--{name.replace('_', '-')}")
        off.append(f"stack.{name}=true (Megatron-LM's {option}) saves {show_time(saved_s)}")
    return [f"Overlaps that are off, in all plans of the search too: {'; '.join(off)}."] if off else []


def own_line(result: SearchResult, ranked: Why) -> Text:
    """The scenario's own plan in a line or two."""
    assert ranked.answer is not None
    answer, words = ranked.answer, "The scenario's own plan"
    if ranked.ruled_out:
        return title(words, f" is not ranked: {ranked.ruled_out}.")
    ran = [(each.scenario.plan, each.scenario.stack) for each in result.best]
    own = answer.scenario.plan, answer.scenario.stack
    if own in ran:
        return title(words, f" is row {ran.index(own) + 1}.")
    # Of other schedules only the best plans are known, so that no rank counts theirs.
    under = f" under {priced_schedules(result.space)}" if result.schedules else ""
    kinds = [f"plans that fit{under}", "that recompute, shard and use sequence parallelism as it does"]
    pairs = zip(_telling(ranked.among[:2]), kinds, strict=False)
    ranks = ", ".join(f"{say.ordinal(each.rank)} of the {each.of:,} {kind}" for each, kind in pairs if each.rank)
    takes = f"{show_time(answer.step_time_s)} ({say.lost(result, answer)})"
    return title(words, f" takes {takes}: {ranks}. --why own explains.")


def _explained(result: SearchResult, answer: Estimate, steps: Sequence[Step]) -> list[RenderableType]:
    """What the objective counts, by cause against the best, and the way there."""
    best, parts = result.best[0].answer, list[RenderableType]()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for cause, amount in losses_by_cause(result, answer).items():
        if abs(amount) >= SEEN * best.step_time_s:
            table.add_row(cause.replace("_", " "), say.signed(amount), f"{amount / best.step_time_s:+.1%}")
    if table.row_count:
        cost = "Cost by cause, in seconds of the best plan's GPUs"
        what = cost if result.objective == "cost" else "Step time by cause"
        parts += [f"{what}, against the best:", indented(table)]
    if steps:
        headings = ("change", "step", "then", "mostly")
        way = plain_table(*headings, left=("change", "mostly"), wrap=headings)
        way.add_row("", "", show_time(answer.step_time_s), "")
        for step in steps:
            changes = [
                f"{say.label(name)} {say.cell(old) or '–'} → {say.cell(new) or '–'}"
                for name, (old, new) in step.changes.items()
            ]
            then, longer = show_time(step.answer.step_time_s), {cause: -saved for cause, saved in step.causes.items()}
            mostly = say.largest(longer, SEEN * best.step_time_s)
            way.add_row(", ".join(changes), say.signed(-step.saved_s), then, mostly)
        parts += [
            "From this plan to the best, step by step. Each row builds on those above, and a minus is time saved. "
            "Changes that only fit or pay together share a row:",
            indented(way),
        ]
    return parts


def explained_data(found: Why) -> dict[str, Any]:
    """What a plan takes, what it loses by cause, and the steps to the best."""
    return {
        "ruled_out": found.ruled_out,
        **facts_of(found.answer, "step_time_s", "plan"),
        "losses_s": dict(found.losses),
        "steps": [
            {
                "techniques": list(step.techniques),
                "changes": {name: list(pair) for name, pair in step.changes.items()},
                "step_time_s": step.answer.step_time_s,
                "saved_s": step.saved_s,
                "causes_s": step.causes,
            }
            for step in found.steps
        ],
    }


def sensitivity_view(result: SearchResult, costs: Sequence[ValueCost]) -> Group:
    """A row a value: the best plan that has it, what it loses and why; what none fits with stands in one line."""
    table = plain_table("axis", "value", "loss", "step time", "mostly", left=("axis", "mostly"), wrap=("mostly",))
    for axis, rows in grouped((each.axis, each) for each in costs).items():
        heading = say.HEADINGS[axis]
        for each in rows:
            if (answer := each.why.answer) is None:
                continue
            least = NAMED * result.best[0].answer.step_time_s
            loss, why = f"{each.why.loss:+.1%}", say.largest(losses_by_cause(result, answer), least, 2)
            loss, why, style = ("best", "", "bold") if each.is_best else (loss, why, None)
            takes = show_time(answer.step_time_s)
            table.add_row(heading, say.cell(each.value), loss, takes, why, style=style)
            heading = ""
        if out := [say.cell(each.value) for each in rows if each.why.answer is None]:
            some = ", ".join(out) if len(out) <= 8 else f"{', '.join(out[:7])} … {out[-1]}"
            table.add_row("", "", "", "", Text(f"no plan fits with {some}", style="dim"))
        table.add_section()
    note = "  (best plan with each value, against the best of all)"
    return Group(title("What each value costs", note, "not bold dim"), table)


REASONS, SHOWN = 12, 8
"""Reasons that are told why points have no plan, and points that are named with each."""


def sweep_view(swept: Sweep) -> Group:
    """What was swept, the answers, and notes."""
    scenario = swept.scenario
    names = " and ".join(axis.path for axis in swept.axes)
    best = f"best plan by {swept.objective.replace('_', ' ')} over {names}"
    asked = title(scenario.name, f"  {scenario.model.name}, {best}")
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
    heading: list[RenderableType] = [say.shared_fields(plans, swept.scenario.model)] if plans else []
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
