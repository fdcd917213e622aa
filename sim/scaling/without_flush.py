"""What a frontier's plans would take without a flush: two versions of the weights, and gradients one update late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.errors import FlopcastError
from sim.estimate import Estimate, estimate
from sim.reliability import data_loading, storing_of
from sim.scaling.run import TrainingRun, training_run
from sim.scaling.staleness import Staleness, staleness_of
from sim.scaling.training_time import Frontier, FrontierPoint

SCHEDULE = "pipedream_2bw"


@dataclass(frozen=True, slots=True)
class WithoutFlush:
    """The shortest run of a frontier's plans under PipeDream-2BW.

    instead_of : the same plan with its own schedule.
    least, most : the run where late gradients cost as little as they may, and as much.
    """

    instead_of: FrontierPoint
    answer: Estimate
    late: Staleness
    least: TrainingRun
    most: TrainingRun

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "schedule": self.answer.scenario.plan.schedule,
            "model": self.late.model.name,
            "delay": self.late.delay,
            "step_time_s": self.answer.step_time_s,
            "instead_of_days": self.instead_of.run.days,
            **{name: [getattr(run, name) for run in (self.least, self.most)] for name in ("tokens", "days", "cost")},
            "num_gpus": self.least.num_gpus,
            "plan": self.answer.scenario.plan.model_dump(mode="json"),
        }


def frontier_without_flush(frontier: Frontier, model: str) -> WithoutFlush | None:
    """The shortest of a frontier's plans without flush, by a staleness model; None where none has a pipeline and fits.

    Layouts and batches are the frontier's: no other is searched for this schedule.

    Raises
    ------
    SpecError
        There is no such model.
    """
    found: list[WithoutFlush] = []
    for point in frontier.points:
        scenario = point.answer.scenario
        if scenario.plan.pp == 1:
            continue
        plan = {"schedule": SCHEDULE, "num_chunks": 1, "microbatch_group": None, "pipeline_layout": ""}
        try:
            answer = estimate(scenario.replace(plan=scenario.plan.replace(**plan)))
        except FlopcastError:  # fewer micro-batches than ranks, or layers that these stages do not divide
            continue
        late = staleness_of(model, answer.timeline)
        if late is None or not answer.fits:
            continue
        least, most = (_run(frontier, point, answer, float(end)) for end in late.batches(point.batch_tokens))
        found.append(WithoutFlush(point, answer, late, least, most))
    return min(found, key=lambda each: each.least.wall_s, default=None)


def _run(frontier: Frontier, point: FrontierPoint, answer: Estimate, batch_tokens: float) -> TrainingRun:
    """The whole run where a loss takes the data of a batch of so many tokens."""
    tokens = float(frontier.goal.tokens(batch_tokens))
    scenario, num_gpus, steps = answer.scenario, answer.num_gpus, tokens / point.batch_tokens
    node, storing = scenario.cluster.node, storing_of(scenario)
    seconds = answer.step_time_s * data_loading(scenario, answer.tokens_per_s, storing).slowdown
    return training_run(storing, num_gpus, node, seconds, steps, tokens, frontier.terms)
