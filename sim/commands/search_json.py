"""A search's answers as plain data with stable keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.estimate import Estimate
from sim.search import PlanRank, SearchResult, Step
from sim.search.comparison import loss_of, seconds_apart


def as_data(result: SearchResult, named: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    """The best plans, and every answer that was asked for beside them."""
    data = result.to_dict()
    best = result.best[0].answer
    for row, each in zip(data["best"], result.best, strict=True):
        row["losses_s"] = seconds_apart(each.answer, best)
    if "own" in answers:
        data["own"] = _standing(result, answers["own"])
    if "why" in answers:
        why = answers["why"]
        data["why"] = {
            "fields": dict(named),
            "ruled_out": why.ruled_out,
            "rank": why.rank,
            "step_time_s": None if why.answer is None else why.answer.step_time_s,
            "plan": None if why.answer is None else _plan(why.answer),
            "losses_s": why.losses,
            "steps": _steps(why.steps),
        }
    if "pareto" in answers:
        data["pareto"] = [_point(result, place) for place in result.pareto().tolist()]
    if "sensitivity" in answers:
        data["sensitivity"] = [each.to_dict() for each in answers["sensitivity"]]
    if "rules" in answers:
        data["rules"] = answers["rules"].to_dict()
    return data


def _standing(result: SearchResult, standing: PlanRank) -> dict[str, Any]:
    answer = standing.answer
    return {
        "ruled_out": standing.ruled_out,
        "step_time_s": answer.step_time_s,
        "loss": loss_of(result, answer),
        "plan": _plan(answer),
        "among": [
            {
                "plans": each.kind,
                "rank": each.rank,
                "of": each.of,
                "best_step_time_s": each.best.answer.step_time_s,
                "best_plan": _plan(each.best.answer),
            }
            for each in standing.among
        ],
        "losses_s": standing.losses,
        "steps": _steps(standing.steps),
    }


def _steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
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


def _point(result: SearchResult, place: int) -> dict[str, Any]:
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


def _plan(answer: Estimate) -> dict[str, Any]:
    return answer.scenario.plan.model_dump(mode="json")
