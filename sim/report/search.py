"""A search in a terminal: what was searched, the best plans, the Pareto front, questions about them; and a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from sim.estimate import Estimate
from sim.pricing.layouts import LAYOUT
from sim.report import plans as say
from sim.report.terminal import assumptions, grouped, indented, sentence, shared_line, title
from sim.search import SearchResult
from sim.search.assumed import framework_assumed, priced_schedules, proof_of
from sim.search.axes import SIZE, Axis
from sim.search.candidate import SHOWN_FIELDS, ScheduleBest, facts_of
from sim.search.explain import Step, Why, loss_of, overlaps_off, seconds_apart
from sim.search.sensitivity import ValueCost
from sim.search.sweep import Sweep
from sim.table import Table, columns_table, plain_table
from sim.units import show, show_time, significant

SEEN = 0.001
"""Share of the best step time below which a difference is not shown."""
FIELDS = (*LAYOUT, "num_chunks", "microbatch_size", "sequence_slices", "recompute", "sequence_parallel", "zero_stage")
NAMED = 0.003
"""Share of the best step time below which a cause is not worth naming."""


def why_view(result: SearchResult, named: Mapping[str, object], why: Why) -> Group:
    """What rules a plan out, or what it loses where against the best."""
    asked = " ".join(f"plan.{name}={say.cell(value)}" for name, value in named.items())
    if why.answer is None:
        return Group(title(f"Why not {asked}?"), Text(f"Ruled out: {why.ruled_out}"))
    place = "" if why.rank is None else f", {say.ordinal(why.rank)} of {result.plans_feasible:,} plans that fit"
    if why.rank == 1 and why.answer.scenario.plan != result.best[0].answer.scenario.plan:
        place = f". Before layouts of stages were varied, it was the first of {result.plans_feasible:,} plans that fit"
    if why.searched is not None:
        sure = "" if why.searched.found.proven else f" (another may be up to {why.searched.found.gap:.1%} better)"
        place = f"; best of {why.searched.found.plans:,} such plans{sure}"
    if why.tried:
        place = f"; the search has no formula for such plans: this is the best of {why.tried} that were tried"
    line, takes = say.plan_line(why.answer, result.best[0].answer), show_time(why.answer.step_time_s)
    said = f"The best such plan ({line}) takes {takes}, {say.lost(result, why.answer)} against the best{place}."
    plan = why.answer.scenario.plan
    if "recompute_method" not in named and named.get("recompute") == "full" and plan.recompute_method == "block":
        said += " It recomputes some layers of each stage only; plan.recompute_method=uniform asks for all of them."
    return Group(title(f"Why not {asked}?"), said, *_explained(result, why.answer, why.steps))


def plan_rank_view(result: SearchResult, ranked: Why, question: str) -> Group:
    """The rank of one plan among all and among those of its techniques, and what better ones save."""
    assert ranked.answer is not None
    answer, lost = ranked.answer, say.lost(result, ranked.answer)
    out = f"; not ranked: {ranked.ruled_out}" if ranked.ruled_out else ""
    plan = f"{say.plan_line(answer, result.best[0].answer)}: {show_time(answer.step_time_s)}"
    lines: list[RenderableType] = [title(question), f"{plan}, {lost} against the best{out}"]
    rows = [row for row, best in enumerate(result.best, 1) if best.answer.scenario.plan == answer.scenario.plan]
    listed_as = f", which have other layouts of stages; it is row {rows[0]} of the best" if rows else ""
    for each in ranked.among:
        best = each.best.answer
        change = (1 + loss_of(result, best)) / (1 + loss_of(result, answer)) - 1
        kind = "" if each.kind == ranked.among[0].kind else f" {each.kind}"
        among = f"the {each.of:,} plans that fit{kind}"
        place = f"Rank {each.rank:,} of {among}." if each.rank else f"Not ranked among {among}{listed_as}."
        own = best.scenario.plan == answer.scenario.plan
        said = f" The best takes {show_time(best.step_time_s)} ({change:+.1%}: {say.differences(answer, best)})."
        lines.append(indented(Text(place + ("" if own else said))))
    return Group(*lines, *_overlaps(answer), *_explained(result, answer, ranked.steps))


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
    pairs = zip(ranked.among, kinds, strict=False)
    ranks = ", ".join(f"{say.ordinal(each.rank)} of the {each.of:,} {kind}" for each, kind in pairs if each.rank)
    takes = f"{show_time(answer.step_time_s)} ({say.lost(result, answer)})"
    return title(words, f" takes {takes}: {ranks}. --why own explains.")


def _explained(result: SearchResult, answer: Estimate, steps: Sequence[Step]) -> list[RenderableType]:
    """What the objective counts, by cause against the best, and the way there."""
    best, there, parts = result.best[0].answer, say.apart(result, answer), list[RenderableType]()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for cause, amount in there.causes.items():
        if abs(amount) >= SEEN * there.whole:
            table.add_row(cause.replace("_", " "), say.signed(amount, there.unit), f"{amount / there.whole:+.1%}")
    if table.row_count:
        parts += [f"{there.what}, against the best:", indented(table)]
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


def sensitivity_view(result: SearchResult, costs: Sequence[ValueCost]) -> Group:
    """A row a value: the best plan that has it, what it loses and why; what none fits with stands in one line."""
    table = plain_table("axis", "value", "loss", "step time", "mostly", left=("axis", "mostly"), wrap=("mostly",))
    for axis, rows in grouped((each.axis, each) for each in costs).items():
        heading = say.HEADINGS[axis]
        for each in rows:
            if each.best is None or each.loss is None:
                continue
            loss, why = f"{each.loss:+.1%}", say.apart(result, each.best.answer).largest(NAMED, 2)
            loss, why, style = ("best", "", "bold") if each.is_best else (loss, why, None)
            takes = show_time(each.best.answer.step_time_s)
            table.add_row(heading, say.cell(each.value), loss, takes, why, style=style)
            heading = ""
        if out := [say.cell(each.value) for each in rows if each.best is None]:
            some = ", ".join(out) if len(out) <= 8 else f"{', '.join(out[:7])} … {out[-1]}"
            table.add_row("", "", "", "", Text(f"no plan fits with {some}", style="dim"))
        table.add_section()
    note = "  (best plan with each value, against the best of all)"
    return Group(title("What each value costs", note, "not bold dim"), table)


def schedules_view(result: SearchResult) -> Group:
    """The best plan of each schedule beside the best of all, and whether it is proven."""
    found = [(each, each.best.answer) for each in result.schedules if each.best is not None]
    runs, looked_at = (
        sum(each.found.runs for each in result.schedules),
        sum(each.found.plans for each in result.schedules),
    )
    counts = f"  ({looked_at:,} plans searched, {runs:,} run exactly)"
    parts: list[RenderableType] = [title("Best of each schedule", counts, "not bold dim")]
    notes = []
    if found:
        plans = [answer.scenario.plan for _, answer in found]
        differ = say.differing(plans, FIELDS)
        alike = [name for name in FIELDS if name not in differ and say.tells(plans, name)]
        if shared := say.short_words(plans[0], alike):
            parts.append(shared_line(shared))
        if len({plan.num_gpus for plan in plans}) == 1:  # then dp follows
            differ = [name for name in differ if name != "dp"]
        parts.append(_schedules_table(result, found, differ))
        unproven = [each for each, _ in found if not each.found.proven]
        proven = f"{len(found) - len(unproven)} of {len(found)} are" if unproven else "Each is"
        dealt = "" if result.stages is None else result.stages.others
        among = f"{' and' if dealt else ' with'} recompute none, selective or full" if result.room else ""
        notes = [
            *(["mbs: sequences of a micro-batch"] if "microbatch_size" in differ else []),
            f"{proven} proven to be the best of its schedule{dealt}{among}.",
        ]
        notes += [f"{each.schedule}: another plan may be up to {each.found.gap:.1%} better" for each in unproven]
        if any(each.asynchronous for each, _ in found):
            notes.append("* gradients come late, which changes training: not among the best plans")
    reasons = grouped((str(each.reason), each.schedule) for each in result.schedules if each.best is None)
    parts += [Text(note, style="dim") for note in notes]
    return Group(*parts, *(Text(f"{', '.join(names)}: {reason}") for reason, names in reasons.items()))


def _schedules_table(result: SearchResult, found: list[tuple[ScheduleBest, Estimate]], differ: list[str]) -> Table:
    answers = [answer for _, answer in found]
    sizes = [f"{each.num_gpus:,}" for each in answers]
    columns = {
        "schedule": [f"{each.schedule}{'*' if each.asynchronous else ''}" for each, _ in found],
        **({"GPUs": sizes} if len(set(sizes)) > 1 else {}),
        **say.answer_columns(result.objective, answers, [f"{loss_of(result, answer):+.1%}" for answer in answers]),
        "plan": [", ".join(say.short_words(answer.scenario.plan, differ)) for answer in answers],
    }
    del columns["MFU"]  # plans stand in a column of words, which needs the room
    table = columns_table(columns, left=("schedule", "plan"), gap=1, wrap=("plan",))
    table.columns[-1].overflow = "fold"
    return table


WIDE = 112
"""Columns of a terminal that also has room for what each plan loses to the first."""


def search_view(result: SearchResult, own: Text | None = None, width: int = 80, verbose: bool = False) -> Group:
    """What was searched, then the best plans; what they share stands above the table, what is said of the own below."""
    said: list[RenderableType] = [Text(line, style="dim") for line in say.layout_lines(result)]
    said += map(Text, _at_risk(result))
    said += [] if own is None else ["", own]
    told = (  # in the heading
        proof_of(result)[0],
        framework_assumed(result.space.runs_on, result.space.scenario) if result.space.runs_on else "",
    )
    notes = [line for line in result.assumptions if line not in told]
    return Group(_heading(result), "", *_best(result, width), *said, *assumptions(notes, verbose=verbose))


def _heading(result: SearchResult) -> Text:
    best = say.amount(result.objective, result.best[0].answer)
    counted = best.heading
    found = f"the best plan takes {best.text}" if counted == "step" else f"best plan: {best.text} {counted}"
    said = title(f"{result.space.scenario.name}: {found}\n")
    theirs = f" that {result.space.runs_on} can run" if result.space.runs_on else ""
    made = result.plans_made_to_fit
    ways = "recompute more or use the host's memory" if "offload" in result.room else "recompute more"
    more = f", and {made:,} more once they {ways}" if made else ""
    said.append(
        f"Of {result.plans_priced:,} plans{theirs}, {result.plans_feasible - made:,} fit in "
        f"{show(result.memory_limit_bytes, 'B')} per GPU{more}. {sentence(proof_of(result)[0])}"
    )
    return said


def _best(result: SearchResult, width: int) -> tuple[Text, Table]:
    """What the best plans share, and the table of what they do not, as wide as there is room."""
    plans = say.plan_table(result)
    answers = [each.answer for each in result.best]
    shown: dict[str, Sequence[str]] = {
        "": [str(number) for number in range(1, len(answers) + 1)],
        # Modules that run again stand below each other.
        **{say.heading(name): [text.replace("+", "\n") for text in cells] for name, cells in plans.fields.items()},
        **plans.answers,
    }
    if (risk := result.risk) is not None:
        shown[f"{risk.probability:.3g} below"] = [
            show_time(each.answer.step_time_s * risk.factor(each)) for each in result.best
        ]
    causes = "slower than the first, mostly by"
    if width >= WIDE:
        least = 0.001 * answers[0].step_time_s
        shown[causes] = [say.largest(seconds_apart(answer, answers[0]), least, 2) for answer in answers]
    table = columns_table(shown, left=[causes], gap=1, wrap=[causes])
    table.columns[0].style = "dim"
    return shared_line([*plans.shared, *plans.gpus]), table


def _at_risk(result: SearchResult) -> list[str]:
    """What the ranking by a quantile changes, and how sure its first plan is the first."""
    if (risk := result.risk) is None:
        return []
    first, share = result.best[0], f"{100 * risk.probability:.3g} of 100 such steps"
    takes = [show_time(each.answer.step_time_s * risk.factor(each)) for each in (first, risk.fastest)]
    if risk.fastest is first:
        said = f"The fastest plan is also the first at risk {risk.probability:g}: {share} take at most {takes[0]}."
    else:
        said = (
            f"Ranked by what {share} take at most: {takes[0]} for the first plan. The fastest plan, "
            f"{say.plan_line(risk.fastest.answer)}, is number {risk.place}: it takes "
            f"{show_time(risk.fastest.answer.step_time_s)}, but {takes[1]} at that risk, since more of its step is "
            f"uncertain ({risk.part})."
        )
    sure = f"None outside of the {risk.ranked} fastest plans can be better."
    if risk.gap:
        sure = f"Only the {risk.ranked} fastest plans are ranked; another may be up to {risk.gap:.1%} better."
    return ["", f"{said} {sure}"]


def pareto_view(result: SearchResult, most: int = 30) -> Group:
    """Plans that no other beats in step time, memory, GPUs and cost, by the closed form."""
    front = result.pareto()
    if not len(front):
        return Group(title("Pareto front"), "No plan that is priced fits.")
    # Evenly over the front where it is longer than a screen.
    shown = front[np.unique(np.linspace(0, len(front) - 1, min(most, len(front))).round().astype(int))]
    plans, priced = [each.plan for each in result.scenarios_at(shown)], result.prices.take(shown)
    names = say.fields_for(result.space.scenario.model)
    steps, cost = say.run_cost(result.space.scenario)
    columns = {
        "GPUs": [f"{plan.num_gpus:,}" for plan in plans],
        "step": [show_time(seconds) for seconds in priced.step_time_s.tolist()],
        "memory": [show(nbytes, "B") for nbytes in priced.memory_bytes.tolist()],
        "GPU-days" if "days" in cost else "GPU-s/step": [
            significant(seconds * steps * plan.num_gpus)
            for seconds, plan in zip(priced.step_time_s.tolist(), plans, strict=True)
        ],
        **{say.heading(name): [say.field(plan, name) for plan in plans] for name in say.differing(plans, names)},
    }
    note = (
        f"  ({len(shown)} of {len(front)} plans that no other beats in time, memory, GPUs and cost at once; times are "
        "the formula's)"
    )
    shared = shared_line([*say.shared_words(plans, names), *say.shared_gpus(plans)])
    return Group(title("Pareto front", note, "not bold dim"), shared, columns_table(columns, left=(), gap=1))


@dataclass(frozen=True, slots=True)
class SearchAnswers:
    """What was found, and the answers to further questions; None to those that were not asked, or not answered.

    fields : of the plan, that `why` is about, or that the scenario's own plan is given.
    own : the rank of the scenario's own plan.
    own_asked : whether it is explained; else it is told in a line.
    pareto : whether the front is shown.
    """

    result: SearchResult
    fields: Mapping[str, Any]
    own: Why | None = None
    own_asked: bool = False
    why: Why | None = None
    sensitivity: Sequence[ValueCost] | None = None
    pareto: bool = False

    def view(self, width: int, verbose: bool = False) -> Group:
        """The best plans, then every answer below them."""
        result, own = self.result, self.own
        line = None if own is None or self.own_asked else own_line(result, own)
        parts: list[RenderableType] = [search_view(result, line, width, verbose)]
        if result.schedules:
            parts.append(schedules_view(result))
        if own is not None and self.own_asked:
            changes = " ".join(f"plan.{name}={value}" for name, value in self.fields.items())
            question = f"Why not the scenario's own plan{f' with {changes}' if changes else ''}?"
            parts.append(plan_rank_view(result, own, question))
        if self.why is not None:
            parts.append(why_view(result, self.fields, self.why))
        if self.sensitivity is not None:
            parts.append(sensitivity_view(result, self.sensitivity))
        if self.pareto:
            parts.append(pareto_view(result))
        return Group(parts[0], *(each for part in parts[1:] for each in ("", part)))

    def figure(self) -> Any:
        """What the values of each axis cost, or the Pareto front; None where neither was asked for."""
        from sim.report.search_figures import draw_pareto, draw_sensitivity

        if self.sensitivity is not None:
            return draw_sensitivity(self.result, self.sensitivity)
        return draw_pareto(self.result) if self.pareto else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON; the keys are in docs/search.md."""
        result = self.result
        data = result.to_dict()
        for row, each in zip(data["best"], result.best, strict=True):
            row["losses_s"] = seconds_apart(each.answer, result.best[0].answer)
        if (own := self.own) is not None:
            assert own.answer is not None
            data["own"] = {
                **_explained_data(own),
                "loss": loss_of(result, own.answer),
                "among": [
                    {
                        "plans": each.kind,
                        "rank": each.rank,
                        "of": each.of,
                        **{f"best_{name}": fact for name, fact in facts_of(each.best, "step_time_s", "plan").items()},
                    }
                    for each in own.among
                ],
            }
        if (why := self.why) is not None:
            data["why"] = {"fields": dict(self.fields), "rank": why.rank, **_explained_data(why)}
        if self.pareto:
            data["pareto"] = [_priced_data(result, place) for place in result.pareto().tolist()]
        if self.sensitivity is not None:
            data["sensitivity"] = [each.to_dict() for each in self.sensitivity]
        return data


def _explained_data(found: Why) -> dict[str, Any]:
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


def _priced_data(result: SearchResult, place: int) -> dict[str, Any]:
    """A priced plan as plain data."""
    plan = result.scenario_at(place).plan
    seconds = float(result.prices.step_time_s[place])
    return {
        "plan": plan.model_dump(mode="json"),
        "num_gpus": plan.num_gpus,
        "priced_step_time_s": seconds,
        "memory_bytes": float(result.prices.memory_bytes[place]),
        "gpu_seconds_per_step": seconds * plan.num_gpus,
    }


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
