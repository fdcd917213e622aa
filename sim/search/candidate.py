"""A plan that the exact engine has run for a search, the best of a schedule, and the fields that tables show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sim.estimate import Estimate, estimate
from sim.search.best_first import Found, gap_of
from sim.search.fields import CHOICES, NUMBERS
from sim.specs import ParallelPlan, Scenario

SHOWN_FIELDS = (*NUMBERS, "schedule", "microbatch_group", *CHOICES, "optimizer_offload", "offloaded_layers")
"""Fields of a plan that tables show, in the words of `shown`."""


def shown(plan: ParallelPlan, name: str) -> Any:
    """A field of a plan as tables have it: what is recomputed is one word."""
    return plan.recompute_words if name == "recompute" else getattr(plan, name)


OBJECTIVES = ("step_time", "days", "cost")
"""Step time and days rank alike, as the batch is given; cost is GPUs times time."""


def worth_of(objective: str, seconds: Any, gpus: Any) -> Any:
    """What an objective makes smallest, of a plan or of columns of plans.  [s] or [GPU-seconds]"""
    return seconds * gpus if objective == "cost" else seconds


FACTS: Mapping[str, Callable[[Estimate], Any]] = {
    "plan": lambda answer: answer.scenario.plan.model_dump(mode="json"),
    "num_gpus": lambda answer: answer.num_gpus,
    "step_time_s": lambda answer: answer.step_time_s,
    "memory_bytes": lambda answer: answer.largest.total,
    "gpu_seconds_per_step": lambda answer: answer.step_time_s * answer.num_gpus,
    "mfu": lambda answer: answer.mfu,
    "training_days": lambda answer: None if answer.training_time_s is None else answer.training_time_s / 86400,
}
"""What is said of a plan in JSON and tables, by key."""


def facts_of(found: Candidate | Estimate | None, *names: str) -> dict[str, Any]:
    """Some of FACTS of a plan as plain data; all None where there is no plan."""
    answer = found.answer if isinstance(found, Candidate) else found
    return {name: None if answer is None else FACTS[name](answer) for name in names}


@dataclass(frozen=True, slots=True, repr=False)
class Candidate:
    """One plan of a search, confirmed by the exact engine.

    answer : the exact engine's.
    priced_step_time_s : by the closed form, which ranked it; of schedules searched by bounds what its step cannot go
        below. [s]
    """

    answer: Estimate
    priced_step_time_s: float

    @classmethod
    def run(cls, scenario: Scenario, step_s: float | None = None) -> Candidate:
        """Run a plan on the exact engine; without a price of its own it has the exact step time. [s]"""
        answer = estimate(scenario)
        return cls(answer, answer.step_time_s if step_s is None else step_s)

    @property
    def scenario(self) -> Scenario:
        """The scenario with the plan."""
        return self.answer.scenario

    @property
    def memory_bytes(self) -> float:
        """Memory that the fullest GPU needs. [bytes]"""
        return float(self.answer.largest.total)

    def __repr__(self) -> str:
        """One line: the fields hold the whole answer."""
        return f"<Candidate {self.answer!r}>"

    @property
    def difference(self) -> float:
        """Share by which the exact step time is above the closed form's."""
        return self.answer.step_time_s / self.priced_step_time_s - 1.0

    def worth(self, objective: str) -> float:
        """What an objective makes smallest: step time or cost.  [s] or [GPU-seconds]"""
        return float(worth_of(objective, self.answer.step_time_s, self.answer.num_gpus))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            **facts_of(self, "plan", "num_gpus", "step_time_s"),
            "step_time_interval_s": list(self.answer.step_time_interval_s),
            "grade": self.answer.grade,
            "priced_step_time_s": self.priced_step_time_s,
            "difference": self.difference,
            **facts_of(self, "memory_bytes", "gpu_seconds_per_step", "mfu", "training_days"),
        }


@dataclass(frozen=True, slots=True)
class ScheduleBest:
    """The best plan of a schedule, over all layouts, micro-batches, chunks and categories that it takes.

    found : the plans of the schedule, and the best of those that keep the rules and fit.
    reason : why there is none.
    """

    schedule: str
    found: Found[Candidate]
    reason: str | None = None

    @property
    def best(self) -> Candidate | None:
        """The best plan by the objective; None where no plan keeps the rules or none fits."""
        return next(iter(self.found.best), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "schedule": self.schedule,
            **facts_of(self.best, "plan", "step_time_s", "memory_bytes", "mfu"),
            "plans": self.found.plans,
            "plans_run": self.found.runs,
            "proven": self.found.proven,
            "gap": self.found.gap,
            "ruled_out": self.reason,
        }


@dataclass(frozen=True, slots=True)
class StagesSearched:
    """What was looked at of plans with other layouts, and chunks of unlike stages.

    found : the evenly dealt plans that others were looked for from, their runs, and what no other layout goes below.
    layouts, chunks : whether these were varied.
    tried : plans that were given others. left : others that no bound rules out.
    likely : whether only those that looked faster were tried.
    """

    found: Found[Candidate]
    layouts: bool
    chunks: bool
    tried: int
    left: int
    likely: bool = False

    @property
    def others(self) -> str:
        """The plans that the formula's proof speaks of, where these are not all."""
        return f" with layers dealt evenly{' to stages that are alike' if self.chunks else ''}"

    def to_dict(self, worth: float) -> dict[str, Any]:
        """Plain data with stable keys, for JSON; of a search whose best is worth so much."""
        return {
            "layouts": self.layouts,
            "chunks": self.chunks,
            "plans": self.tried,
            "plans_in_all": self.found.plans,
            "plans_not_ruled_out": self.left,
            "plans_run": self.found.runs,
            "gap": gap_of(worth, self.found.bound),
        }
