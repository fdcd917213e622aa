"""A search and all that was asked about it: as text, as plain data with stable keys, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from sim.estimate import Estimate
from sim.report.search import pareto_view, search_view
from sim.report.search_questions import own_line, plan_rank_view, rules_view, schedules_view, sensitivity_view, why_view
from sim.search import PlanRank, Rules, SearchResult, Step, ValueCost, Why
from sim.search.comparison import loss_of, seconds_apart


@dataclass(frozen=True, slots=True)
class SearchAnswers:
    """What was found, and the answers to further questions; None to those that were not asked, or not answered.

    fields : of the plan, that `why` is about, or that the scenario's own plan is given.
    own : the rank of the scenario's own plan.
    own_asked : whether it is explained; else it is told in a line.
    pareto : whether the front is shown.
    unanswered : the first question that an interrupt left open.
    """

    result: SearchResult
    fields: Mapping[str, Any]
    own: PlanRank | None = None
    own_asked: bool = False
    why: Why | None = None
    rules: Rules | None = None
    sensitivity: Sequence[ValueCost] | None = None
    pareto: bool = False
    unanswered: str | None = None

    def view(self, width: int, verbose: bool = False) -> Group:
        """The best plans, then every answer below them."""
        result, own = self.result, self.own
        line = None if own is None or self.own_asked else own_line(result, own)
        parts: list[RenderableType] = [search_view(result, line, width, verbose)]
        if result.schedules:
            parts += ["", schedules_view(result)]
        if own is not None and self.own_asked:
            changes = " ".join(f"plan.{name}={value}" for name, value in self.fields.items())
            question = f"Why not the scenario's own plan{f' with {changes}' if changes else ''}?"
            parts += ["", plan_rank_view(result, own, question)]
        if self.why is not None:
            parts += ["", why_view(result, self.fields, self.why)]
        if self.rules is not None:
            parts += ["", rules_view(result, self.rules)]
        if self.sensitivity is not None:
            parts += ["", sensitivity_view(result, self.sensitivity)]
        if self.pareto:
            parts += ["", pareto_view(result)]
        return Group(*parts)

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
        if self.own is not None:
            data["own"] = _rank_data(result, self.own)
        if self.why is not None:
            data["why"] = {
                "fields": dict(self.fields),
                "ruled_out": self.why.ruled_out,
                "rank": self.why.rank,
                "step_time_s": None if self.why.answer is None else self.why.answer.step_time_s,
                "plan": None if self.why.answer is None else _plan_data(self.why.answer),
                "losses_s": self.why.losses,
                "steps": _steps_data(self.why.steps),
            }
        if self.pareto:
            data["pareto"] = [_priced_data(result, place) for place in result.pareto().tolist()]
        if self.sensitivity is not None:
            data["sensitivity"] = [each.to_dict() for each in self.sensitivity]
        if self.rules is not None:
            data["rules"] = self.rules.to_dict()
        return data


def _rank_data(result: SearchResult, ranked: PlanRank) -> dict[str, Any]:
    answer = ranked.answer
    return {
        "ruled_out": ranked.ruled_out,
        "step_time_s": answer.step_time_s,
        "loss": loss_of(result, answer),
        "plan": _plan_data(answer),
        "among": [
            {
                "plans": each.kind,
                "rank": each.rank,
                "of": each.of,
                "best_step_time_s": each.best.answer.step_time_s,
                "best_plan": _plan_data(each.best.answer),
            }
            for each in ranked.among
        ],
        "losses_s": ranked.losses,
        "steps": _steps_data(ranked.steps),
        "layout": None if ranked.layout is None else ranked.layout.to_dict(),
    }


def _steps_data(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [
        {
            "techniques": list(step.techniques),
            "changes": {name: list(pair) for name, pair in step.changes.items()},
            "step_time_s": step.answer.step_time_s,
            "saved_s": step.saved_s,
            "causes_s": step.causes,
        }
        for step in steps
    ]


def _priced_data(result: SearchResult, place: int) -> dict[str, Any]:
    """A priced plan as plain data."""
    plan = result.scenario_at(place).plan
    seconds = float(result.step_time_s[place])
    return {
        "plan": plan.model_dump(mode="json"),
        "num_gpus": plan.num_gpus,
        "priced_step_time_s": seconds,
        "memory_bytes": float(result.memory_bytes[place]),
        "gpu_seconds_per_step": seconds * plan.num_gpus,
    }


def _plan_data(answer: Estimate) -> dict[str, Any]:
    return answer.scenario.plan.model_dump(mode="json")
