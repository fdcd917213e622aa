"""A search in a terminal and as JSON: what was searched, the best plans, the Pareto front, and answers to questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from sim.report import plans as say
from sim.report.search_questions import explained_data, own_line, sensitivity_view, why_view
from sim.report.terminal import assumptions, grouped, sentence, title
from sim.search import SearchResult
from sim.search.assumed import framework_assumed, proof_of
from sim.search.candidate import facts_of
from sim.search.explain import Why, loss_of, seconds_apart
from sim.search.sweep import ValueCost
from sim.table import Table, columns_table
from sim.units import show, show_time, significant

WIDE = 112
"""Columns of a terminal that also has room for what each plan loses to the first."""


def search_view(result: SearchResult, own: Text | None, width: int, verbose: bool = False) -> Group:
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
    ways = "by recomputing more or in the host's memory" if "offload" in result.room else "by recomputing more"
    more = f", and {made:,} more {ways}" if made else ""
    said.append(
        f"Of {result.plans_priced:,} plans{theirs}, {result.plans_feasible - made:,} fit in "
        f"{show(result.memory_limit_bytes, 'B')} per GPU{more}. {sentence(proof_of(result)[0])}"
    )
    return said


def _best(result: SearchResult, width: int) -> tuple[Text, Table]:
    """What the best plans share, and the table of what they do not, as wide as there is room."""
    plans, answers = [each.scenario.plan for each in result.best], [each.answer for each in result.best]
    shown: dict[str, Sequence[str]] = {
        "": [str(number) for number in range(1, len(answers) + 1)],
        **say.best_columns(result),
    }
    if (risk := result.risk) is not None:
        shown[f"{100 * risk.probability:.3g}% below"] = [
            show_time(each.answer.step_time_s * risk.factor(each)) for each in result.best
        ]
    causes = "slower than the first, mostly by"
    if width >= WIDE:
        least = 0.001 * answers[0].step_time_s
        shown[causes] = [say.largest(seconds_apart(answer, answers[0]), least, 2) for answer in answers]
    table = columns_table(shown, left=[causes], gap=1, wrap=[causes])
    table.columns[0].style = "dim"
    return say.shared_fields(plans, result.space.scenario.model), table


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
            "uncertain."
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
    plans, priced = [result.scenario_at(place).plan for place in shown.tolist()], result.prices.take(shown)
    model = result.space.scenario.model
    steps, cost = say.run_cost(result.space.scenario)
    columns = {
        "GPUs": [f"{plan.num_gpus:,}" for plan in plans],
        "step": [show_time(seconds) for seconds in priced.step_time_s.tolist()],
        "memory": [show(nbytes, "B") for nbytes in priced.memory_bytes.tolist()],
        "GPU-days" if "days" in cost else "GPU-s/step": [
            significant(seconds * steps * plan.num_gpus)
            for seconds, plan in zip(priced.step_time_s.tolist(), plans, strict=True)
        ],
        **say.field_columns(plans, say.fields_for(model)),
    }
    left_out = "; plans for which room is made are left out" * bool(result.plans_given_room)
    note = (
        f"  ({len(shown)} of {len(front)} plans that no other beats in time, memory, GPUs and cost at once; times are "
        f"the formula's{left_out})"
    )
    shared, table = say.shared_fields(plans, model), columns_table(columns, left=(), gap=1)
    return Group(title("Pareto front", note, "not bold dim"), shared, table)


def schedules_view(result: SearchResult) -> Group:
    """The best plan of each schedule beside the best of all, and whether it is proven."""
    model, found = result.space.scenario.model, [each for each in result.schedules if each.best is not None]
    answers = [each.best.answer for each in found if each.best is not None]
    runs, looked_at = (sum(getattr(each.found, name) for each in result.schedules) for name in ("runs", "plans"))
    counts = f"  ({looked_at:,} plans searched, {runs:,} run exactly)"
    parts: list[RenderableType] = [title("Best of each schedule", counts, "not bold dim")]
    if found:
        plans = [answer.scenario.plan for answer in answers]
        given = ["schedule"] if say.differing(plans, ["num_gpus"]) else ["schedule", "dp"]  # which follows then
        fields = ["num_gpus", *(name for name in say.fields_for(model) if name not in given), "sequence_slices"]
        losses = [f"{loss_of(result, answer):+.1%}" for answer in answers]
        columns = {
            "schedule": [each.schedule for each in found],
            **say.field_columns(plans, fields),
            **say.answer_columns(result.objective, answers, losses),
        }
        del columns["MFU"]  # a terminal of 80 columns has no room for it
        parts += [say.shared_fields(plans, model), columns_table(columns, left=["schedule"], gap=1)]
        unproven = [each for each in found if not each.found.proven]
        proven = f"{len(found) - len(unproven)} of {len(found)} are" if unproven else "Each is"
        dealt = "" if result.stages is None else result.stages.others
        among = f"{' and' if dealt else ' with'} recompute none, selective or full" if result.room else ""
        notes = [f"{proven} proven to be the best of its schedule{dealt}{among}."]
        notes += [f"{each.schedule}: another plan may be up to {each.found.gap:.1%} better" for each in unproven]
        parts += [Text(note, style="dim") for note in notes]
    reasons = grouped((str(each.reason), each.schedule) for each in result.schedules if each.best is None)
    return Group(*parts, *(Text(f"{', '.join(names)}: {reason}") for reason, names in reasons.items()))


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
        fields = " ".join(f"plan.{name}={say.cell(value)}" for name, value in self.fields.items())
        if own is not None and self.own_asked:
            question = f"Why not the scenario's own plan{f' with {fields}' if fields else ''}?"
            parts.append(why_view(result, own, question, {}))
        if self.why is not None:
            parts.append(why_view(result, self.why, f"Why not {fields}?", self.fields))
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
                **explained_data(own),
                "loss": own.loss,
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
            data["why"] = {"fields": dict(self.fields), "rank": why.rank, **explained_data(why)}
        if self.pareto:
            data["pareto"] = [_priced_data(result, place) for place in result.pareto().tolist()]
        if self.sensitivity is not None:
            data["sensitivity"] = [each.to_dict() for each in self.sensitivity]
        return data


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
