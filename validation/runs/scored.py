"""A run of a table, what was predicted of it, and how far off that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any

import pandas as pd

from flopcast_calibration.from_runs import predict
from flopcast_calibration.readers.training_runs import Run, lineage_of, reason
from sim.commands.options import finite
from sim.errors import FlopcastError
from sim.estimate import Estimate
from sim.specs import Scenario
from sim.specs.values import place_of
from sim.uncertainty import Doubt, Interval, facts_of, measured_doubts, shares_of, spread_of
from sim.work.sums import hardware_flop, model_flop, total_params


@dataclass(frozen=True, slots=True)
class Scored:
    """One run and what was predicted of it; values in the run's unit.

    scenario : what was predicted; None where nothing was.
    error : predicted over measured step time − 1; positive is predicted too slow.
    interval : 90 % interval of the prediction, in the run's unit.
    fitted : its family was among those that set a value of the profile or stack.
    constant_error, six_nd_error : the naive guesses' errors, as `error`.
    extrapolated : something was extrapolated beyond what the profile was fitted on.
    shares : of the predicted step, by part (`sim.uncertainty.PARTS`).
    """

    run: Run
    scenario: Scenario | None = None
    predicted: float | None = None
    step_time_s: float | None = None
    error: float | None = None
    interval: tuple[float, float] | None = None
    fitted: bool = False
    skipped: str | None = None
    fits: bool | None = None
    choice: str = ""
    constant_error: float | None = None
    six_nd_error: float | None = None
    extrapolated: bool = False
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def lineage(self) -> str:
        """Framework and organisation."""
        return lineage_of(self.run.family)

    @property
    def log_error(self) -> float:
        """Logarithm of the measured step time over the predicted one."""
        return -log(1.0 + (self.error or 0.0))

    @property
    def doubt(self) -> Doubt:
        """What an interval needs of a predicted run."""
        return Doubt(dict(self.shares), facts_of(self.scenario), place_of(self.scenario), self.log_error)

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the interval."""
        return None if self.interval is None else self.interval[0] <= self.run.measured <= self.interval[1]

    @property
    def half_width(self) -> float | None:
        """Half of the interval over the prediction."""
        known = self.interval is not None and self.predicted
        return (self.interval[1] - self.interval[0]) / 2 / self.predicted if known else None

    def estimated(self, answer: Estimate) -> Scored:
        """The run with what an estimate says of it."""
        told = {"fits": answer.fits, "extrapolated": answer.extrapolated}
        item = replace(self, **told, shares=shares_of(answer.breakdown.shares()))
        return item.timed(answer.scenario, answer.step_time_s)

    def timed(self, scenario: Scenario, step_time_s: float) -> Scored:
        """The run with another prediction, and the interval that goes with its scenario."""
        item, run = replace(self, scenario=scenario), self.run
        down, up = Interval(spread_of(item.doubt, measured_doubts(scenario)), item.doubt).reach
        low, high = sorted(run.in_unit(step_time_s * exp(side), scenario) for side in (-down, up))
        error = step_time_s / run.step_time_s(scenario) - 1.0
        predicted = run.in_unit(step_time_s, scenario)
        return replace(item, predicted=predicted, step_time_s=step_time_s, error=error, interval=(low, high))

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the JSON report; `error` is that of the predicted value in the run's own unit."""
        run = self.run
        return {
            **{name: getattr(run, name) for name in ("id", "source", "gpu", "framework", "family", "unit")},
            "measured": finite(run.measured),
            "predicted": self.predicted,
            "error": None if self.predicted is None else self.predicted / run.measured - 1.0,
            "time_error": self.error,
            "interval": None if self.interval is None else list(self.interval),
            "fitted": self.fitted,
            "fits": self.fits,
            "inferred": list(run.inferred),
            "chosen": self.choice,
            "skipped": self.skipped,
        }


def modelled(items: Sequence[Scored]) -> list[Scored]:
    """The runs that were predicted."""
    return [item for item in items if item.error is not None]


def score_all(runs: Sequence[Run], report: Callable[[int, int], None] = lambda done, total: None) -> list[Scored]:
    """Predict every run."""
    scored = []
    answers: dict[int, Scored] = {}  # rows of one layout share their scenarios, and so the answer
    for done, run in enumerate(runs, start=1):
        if run.choices and id(run.choices) not in answers:
            answers[id(run.choices)] = _predicted(run)
        first = answers.get(id(run.choices), Scored(run, skipped=run.skipped or ""))
        scored.append(_score(run, first))
        if done % 50 == 0 or done == len(runs):
            report(done, len(runs))
    return with_baselines(scored)


def _predicted(run: Run) -> Scored:
    """The run with its prediction, or with the reason why there is none."""
    try:
        return Scored(run).estimated(predict(run))
    except (FlopcastError, ValueError, ArithmeticError, MemoryError) as error:
        return Scored(run, skipped=reason(error))


def _score(run: Run, first: Scored) -> Scored:
    """A run as the first of its layout was predicted."""
    scenario = first.scenario
    if scenario is None:
        return replace(first, run=run)
    plan, chosen = scenario.plan, ""
    if len(run.choices) > 1:
        chosen = f"micro-batch {plan.microbatch_size}, {plan.num_chunks} chunks, recompute {plan.recompute}"
    if saving := _memory_saving(run, scenario):
        run = replace(run, inferred=(*run.inferred, saving))
    known = (*scenario.profile.provenance.fitted_families, *scenario.stack.fitted_families)
    fitted = any(run.family == family or run.family.startswith(f"{family} /") for family in known)
    return replace(first, run=run, choice=chosen, fitted=fitted).timed(scenario, first.step_time_s)


def _memory_saving(run: Run, scenario: Scenario) -> str:
    """The rule by which the chosen scenario saves memory beyond what its row says, where one does."""
    for changes, rule in run.memory_savings:
        now, before = (
            {part: {name: getattr(getattr(each, part), name) for name in changes[part]} for part in changes}
            for each in (scenario, run.choices[0])
        )
        if now == changes != before:
            return rule
    return ""


def with_baselines(scored: Sequence[Scored]) -> list[Scored]:
    """Add what two one-number models predict, their number fitted on the other families of the same GPU and precision.

    constant : a constant share of peak on the executed FLOPs, stretched by the pipeline's bubble (p − 1)/(v m).
    six_nd : six FLOPs a parameter and token at a constant share of peak.
    """
    rows = pd.DataFrame(
        [(place, item.run.family, *_ideal(item.run)) for place, item in enumerate(scored) if item.error is not None],
        columns=["place", "family", "kind", "measured", "constant_error", "six_nd_error"],
    ).set_index("place")
    guesses, out = ["constant_error", "six_nd_error"], list(scored)
    for _, alike in rows.groupby("kind"):
        ratios = pd.DataFrame({name: alike.measured / alike[name] for name in guesses})
        for family, own in alike.groupby("family"):
            others = ratios[alike.family != family]
            scale = (others if len(others) else ratios).median()
            errors = (own[guesses] * scale).div(own.measured, axis=0) - 1
            for place, row in errors.iterrows():
                out[place] = replace(out[place], **row.to_dict())
    return out


def _ideal(run: Run) -> tuple[str, float, float, float]:
    """GPU and precision; measured step time, and those at peak on executed FLOPs with the bubble, and on six a
    parameter and token. [s]"""
    scenario = run.choices[0]
    plan, training, model = scenario.plan, scenario.training, scenario.model
    peak = scenario.cluster.gpu.peak(training.peak_precision) * plan.num_gpus
    bubble = (plan.pp - 1) / (plan.num_chunks * scenario.num_microbatches)
    executed = max(hardware_flop(model, training, plan), model_flop(model, training)) / peak * (1 + bubble)
    six = 6 * total_params(model) * training.tokens_per_step / peak
    return f"{scenario.profile.name} {training.precision}", run.step_time_s(scenario), executed, six


def file_of(run: Run, scenario: Scenario) -> dict[str, Any]:
    """What a file holds of the chosen scenario: that of the choice it came from, with the memory savings it needed.

    A scenario that is not of this run is a ValueError.
    """
    savings = [{}, *(changes for changes, _ in run.memory_savings)]
    for changes in savings:
        for choice, file in zip(run.choices, run.files, strict=True):
            changed = (getattr(choice, part).replace(**changes.get(part, {})) for part in ("training", "plan"))
            if (*changed,) == (scenario.training, scenario.plan):
                whole = file | {part: file[part] | fields for part, fields in changes.items()}
                sections = ("model", "cluster", "plan", "training", "stack", "profile")
                return {name: whole[name] for name in sections if whole.get(name) is not None}
    raise ValueError(f"{run.id}: the scenario is none of its choices")
