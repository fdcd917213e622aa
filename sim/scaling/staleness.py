"""What late gradients cost in data, for pipelines without flush: a range, from measured to proven, off by default.

A schedule without flush applies gradients that were computed with weights some updates old. How many more steps a loss
then takes is not settled, so a model gives two ends:

- none. PipeDream-2BW, one update late, and PipeDream with stashed weights reached the quality of synchronous training
  in as many samples, with Adam and with momentum [1]_ [2]_; with small batches and a corrected momentum (spike
  compensation, predicted weights) so did pipelines of much larger delays [3]_.
- as if it waited. Gradients of tau + 1 updates in a row, all at the same weights, are one gradient of a batch tau + 1
  times as large, so delay need never cost more than such a batch: by McCandlish's hyperbola E_min (1 + (1 + tau) B /
  B_crit) tokens, S_min (1 + tau) + E_min / B steps. What the noise costs stays, what is left of very large batches,
  S_min, is taken 1 + tau times (own derivation). That is the tight bound too: on quadratic functions gradients tau
  updates late can be as bad as 1/tau of them without noise, and with noise the delay is negligible [4]_.

Far below the critical batch both ends are one. Plain SGD on noisy quadratics, each with its best constant rate
(tests/scaling/test_staleness.py), is near the second end: one update late up to 6 % above it, three up to 15 %.

.. [1] Narayanan et al. 2021, arXiv:2006.09503 (abstract read: "similar final model accuracy").
.. [2] Narayanan et al. 2019, arXiv:1806.03377 (abstract read).
.. [3] Kosson et al. 2021, "Pipelined backpropagation at scale", arXiv:2003.11666 (abstract read: batch of one, CIFAR-10
   and ImageNet; not language models).
.. [4] Arjevani, Shamir, Srebro 2020, "A tight convergence analysis for stochastic gradient descent with delayed
   updates", arXiv:1806.10188 (abstract read).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.engines import Timeline
from sim.errors import FlopcastError, SpecError, nearest, require_not_negative
from sim.estimate import Estimate, estimate
from sim.reliability.storing import data_loading, storing_of
from sim.scaling.run import TrainingRun, training_run
from sim.scaling.training_time import Frontier, FrontierPoint
from sim.schedules.passes import weight_versions
from sim.work.operations import Number

NONE = "none"


@dataclass(frozen=True, slots=True)
class StalenessModel:
    """A model: the batch whose data a loss takes at the least and at the most, over the batch of an update.

    least, most : of the updates by which gradients are late.
    """

    name: str
    least: Callable[[float], float]
    most: Callable[[float], float]
    summary: str


_MODELS = {
    model.name: model
    for model in (
        StalenessModel(
            "delayed-sgd",
            lambda delay: 1.0,
            lambda delay: 1.0 + delay,
            "from no loss, as measured, to that of waiting: steps S_min (1 + delay) + E_min/B",
        ),
        StalenessModel(
            "measured",
            lambda delay: 1.0,
            lambda delay: 1.0,
            "no loss, as PipeDream-2BW measured at one update late",
        ),
    )
}


def staleness_models() -> tuple[str, ...]:
    """Names that `staleness_of` takes."""
    return (NONE, *_MODELS)


@dataclass(frozen=True, slots=True)
class Staleness:
    """How late a schedule's gradients are, and what is made of it.

    delay : updates by which the latest gradient is late.
    updates : in a step: one, or one a micro-batch, each of so much less data.
    """

    model: StalenessModel
    delay: int
    updates: float

    def batches(self, batch: Number) -> tuple[Number, Number]:
        """The batches whose data a loss takes at the least and at the most, for steps of a batch.  [as the batch]"""
        require_not_negative(delay=self.delay)
        of_update = batch / self.updates
        return self.model.least(self.delay) * of_update, self.model.most(self.delay) * of_update

    @property
    def note(self) -> str:
        """What is assumed, in words."""
        often = "a step" if self.updates == 1 else f"of {self.updates:.0f} a step"
        return (
            f"gradients up to {self.delay} update{'s' * (self.delay != 1)} {often} late; by {self.model.name} data "
            f"{self.model.summary}"
        )


def check_staleness_model(name: str) -> None:
    """Refuse a name that is no model's."""
    if name not in staleness_models():
        raise SpecError(f"unknown staleness model {name!r}{nearest(name, staleness_models())}")


def staleness_of(name: str, timeline: Timeline) -> Staleness | None:
    """The staleness of a step by a model of this name; None by "none", and where no gradient is late."""
    check_staleness_model(name)
    if name == NONE:
        return None
    delay = int(weight_versions(timeline.program.order)[1].max())
    return Staleness(_MODELS[name], delay, timeline.updates) if delay else None


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
