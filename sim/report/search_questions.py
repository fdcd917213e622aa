"""Questions about a search in a terminal: the rank of a plan, the way to the best, values, rules, schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sim.estimate import Estimate
from sim.pricing.layouts import LAYOUT
from sim.report import plans as say
from sim.report.terminal import grouped, indented, shared_line, title
from sim.search import SearchResult
from sim.search.assumed import priced_schedules
from sim.search.candidate import ScheduleBest
from sim.search.explain import Step, Why, loss_of, overlaps_off
from sim.search.sensitivity import ValueCost
from sim.table import Table, columns_table, plain_table
from sim.units import show_time

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
    if why.searched is not None:
        sure = "" if why.searched.proven else f" (another may be up to {why.searched.gap:.1%} better)"
        place = f"; best of {why.searched.plans:,} such plans{sure}"
    if why.tried:
        place = f"; the search has no formula for such plans: this is the best of {why.tried} that were tried"
    line, takes = say.plan_line(why.answer, result.best[0].answer), show_time(why.answer.step_time_s)
    said = f"The best such plan ({line}) takes {takes}, {say.lost(result, why.answer)} against the best{place}."
    return Group(title(f"Why not {asked}?"), said, *_explained(result, why.answer, why.steps))


def plan_rank_view(result: SearchResult, ranked: Why, question: str) -> Group:
    """The rank of one plan among all and among those of its techniques, and what better ones save."""
    assert ranked.answer is not None
    answer, lost = ranked.answer, say.lost(result, ranked.answer)
    out = f"; not ranked: {ranked.ruled_out}" if ranked.ruled_out else ""
    plan = f"{say.plan_line(answer, result.best[0].answer)}: {show_time(answer.step_time_s)}"
    lines: list[RenderableType] = [title(question), f"{plan}, {lost} against the best{out}"]
    for each in ranked.among:
        best = each.best.answer
        change = (1 + loss_of(result, best)) / (1 + loss_of(result, answer)) - 1
        kind = "" if each.kind == ranked.among[0].kind else f" {each.kind}"
        among = f"the {each.of:,} plans that fit{kind}"
        place = f"Rank {each.rank:,} of {among}." if each.rank else f"Not ranked among {among}."
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
    runs, looked_at = sum(each.runs for each in result.schedules), sum(each.plans for each in result.schedules)
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
        unproven = [each for each, _ in found if not each.proven]
        proven = f"{len(found) - len(unproven)} of {len(found)} are" if unproven else "Each is"
        dealt = "" if result.stages is None else result.stages.others
        among = f"{' and' if dealt else ' with'} recompute none, selective or full" if result.room else ""
        notes = [
            *(["mbs: sequences of a micro-batch"] if "microbatch_size" in differ else []),
            f"{proven} proven to be the best of its schedule{dealt}{among}.",
        ]
        notes += [f"{each.schedule}: another plan may be up to {each.gap:.1%} better" for each in unproven]
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
