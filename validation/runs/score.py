"""Predict every run of a table, along with two naive guesses, and sum up the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flopcast_calibration.from_runs import predict
from flopcast_calibration.readers.training_runs import Run, reason
from flopcast_validation.runs.scored import Scored
from flopcast_validation.runs.sweeps import sweeps_of
from sim.errors import FlopcastError
from sim.specs import Scenario
from sim.uncertainty import shares_of
from sim.work.sums import hardware_flop, model_flop, total_params


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of the runs of one source, GPU, framework, or of all."""

    by: str
    name: str
    count: int
    skipped: int
    mean_error: float
    median_error: float
    bias: float
    p90_error: float
    coverage: float
    half_width: float
    tau: float | None
    regret: float | None
    sweeps: int
    constant_error: float
    six_nd_error: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what does not exist is null."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: None if isinstance(v, float) and np.isnan(v) else v for name, v in values.items()}


def score_all(runs: Sequence[Run], report: Callable[[int, int], None] = lambda done, total: None) -> list[Scored]:
    """Predict every run."""
    scored = []
    predictions: dict[int, Prediction | str] = {}  # rows of one layout share their scenarios, and so the answer
    for done, run in enumerate(runs, start=1):
        if run.choices and id(run.choices) not in predictions:
            predictions[id(run.choices)] = _predict(run)
        scored.append(_score(run, predictions.get(id(run.choices), run.skipped or "")))
        if done % 50 == 0 or done == len(runs):
            report(done, len(runs))
    return with_baselines(scored)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What scoring needs of an estimate; the rest of it would fill the memory."""

    scenario: Scenario
    step_time_s: float
    interval_s: tuple[float, float]
    fits: bool
    extrapolated: bool
    shares: dict[str, float]


def _predict(run: Run) -> Prediction | str:
    """The prediction, or why there is none."""
    try:
        answer = predict(run)
    except (FlopcastError, ValueError, ArithmeticError, MemoryError) as error:
        return reason(error)
    return Prediction(
        answer.scenario,
        answer.step_time_s,
        answer.step_time_interval_s,
        answer.fits,
        answer.extrapolated,
        shares_of(answer.breakdown.shares()),
    )


def _score(run: Run, answer: Prediction | str) -> Scored:
    if isinstance(answer, str):
        return Scored(run, skipped=answer)
    scenario = answer.scenario
    ends = sorted(run.in_unit(seconds, scenario) for seconds in answer.interval_s)
    plan = scenario.plan
    chosen = ""
    if len(run.choices) > 1:
        chosen = f"micro-batch {plan.microbatch_size}, {plan.num_chunks} chunks, recompute {plan.recompute}"
    saving = _memory_saving(run, scenario)
    if saving:
        run = replace(run, inferred=(*run.inferred, saving))
    known = (*scenario.profile.provenance.fitted_families, *scenario.stack.fitted_families)
    return Scored(
        run,
        scenario,
        predicted=run.in_unit(answer.step_time_s, scenario),
        step_time_s=answer.step_time_s,
        error=answer.step_time_s / run.step_time_s(scenario) - 1.0,
        interval=(ends[0], ends[1]),
        fitted=any(run.family == family or run.family.startswith(f"{family} /") for family in known),
        fits=answer.fits,
        extrapolated=answer.extrapolated,
        choice=chosen,
        shares=answer.shares,
    )


def _memory_saving(run: Run, scenario: Scenario) -> str:
    """The rule by which the chosen scenario saves memory beyond what its row says, where one does."""
    for changes, rule in run.memory_savings:
        now = {part: {name: getattr(getattr(scenario, part), name) for name in changes[part]} for part in changes}
        first = {part: {name: getattr(getattr(run.choices[0], part), name) for name in now[part]} for part in now}
        if now == changes != first:
            return rule
    return ""


def with_baselines(scored: Sequence[Scored]) -> list[Scored]:
    """Add what two one-number models predict, their number fitted on the other families of the same GPU and precision.

    constant : a constant share of peak on the executed FLOPs, stretched by the pipeline's bubble (p − 1)/(v m).
    six_nd : six FLOPs a parameter and token at a constant share of peak.
    """
    ideal: list[tuple[float, float, float] | None] = [
        None if item.error is None else _ideal(item.run) for item in scored
    ]
    kinds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for item, guess in zip(scored, ideal, strict=True):
        if guess is not None:
            executed, six, measured = guess
            families = kinds.setdefault(_kind(item.run), {})
            families.setdefault(item.run.family, []).append((measured / executed, measured / six))
    scales: dict[tuple[str, str], np.ndarray] = {}
    for kind, families in kinds.items():
        for family, own in families.items():
            others = [pair for name, pairs in families.items() if name != family for pair in pairs]
            scales[kind, family] = np.median(others or own, axis=0)
    out = []
    for item, guess in zip(scored, ideal, strict=True):
        if guess is not None:
            executed, six, measured = guess
            by_constant, by_six = scales[_kind(item.run), item.run.family]
            item = replace(
                item,
                constant_error=float(executed * by_constant / measured - 1),
                six_nd_error=float(six * by_six / measured - 1),
            )
        out.append(item)
    return out


def _ideal(run: Run) -> tuple[float, float, float]:
    """Step time at peak on executed FLOPs with the bubble, at peak on six a parameter and token, and measured. [s]"""
    scenario = run.choices[0]
    plan, training, model = scenario.plan, scenario.training, scenario.model
    peak = scenario.cluster.gpu.peak(training.peak_precision) * plan.num_gpus
    bubble = (plan.pp - 1) / (plan.num_chunks * scenario.num_microbatches)
    executed = max(hardware_flop(model, training, plan), model_flop(model, training)) / peak * (1 + bubble)
    return executed, 6 * total_params(model) * training.tokens_per_step / peak, run.step_time_s(scenario)


def _kind(run: Run) -> str:
    scenario = run.choices[0]
    return f"{scenario.profile.name} {scenario.training.precision}"


def groups_of(scored: Sequence[Scored]) -> list[ErrorSummary]:
    """Overall, by kind, GPU, framework and source, and by whether runs of the same family set a value."""
    groupings: dict[str, Callable[[Scored], str]] = {
        "all": lambda item: "all",
        "fitted": lambda item: "used for fitting" if item.fitted else "not used for fitting",
        "kind": _kind_of_model,
        "gpu": lambda item: item.run.gpu,
        "framework": lambda item: item.run.framework_name,
        "source": lambda item: item.run.source or "not stated",
    }
    found = []
    for by, name_of in groupings.items():
        of_kind = [item for item in scored if by != "fitted" or item.error is not None]
        names = sorted({name_of(item) for item in of_kind})
        found += [summary_of(by, name, [item for item in of_kind if name_of(item) == name]) for name in names]
    return found


def in_the_wild(scored: Sequence[Scored]) -> ErrorSummary:
    """Runs in the wild: what to expect of a run that nobody here has seen; every source counts as one."""
    sources = {item.run.source for item in scored if item.error is not None}
    each = [summary_of("wild", name, [item for item in scored if item.run.source == name]) for name in sources]
    fields = ("mean_error", "bias", "coverage", "constant_error", "six_nd_error")
    means = {field: float(np.mean([getattr(one, field) for one in each])) for field in fields}
    return replace(summary_of("wild", f"in the wild, mean of {len(each)} sources", scored), **means)


def _kind_of_model(item: Scored) -> str:
    precision = item.run.precision
    bits = "8 bits" if precision.endswith("fp8") else "4 bits" if precision.endswith("fp4") else "16 bits"
    return f"{'dense' if item.run.dense else 'experts'}, {bits}"


def summary_of(by: str, name: str, items: Sequence[Scored]) -> ErrorSummary:
    """Errors of some runs."""
    used = [item for item in items if item.error is not None]
    errors = np.array([item.error for item in used], dtype=float)
    size = np.abs(errors)
    sweeps = sweeps_of(used)
    taus = [each.tau for each in sweeps if each.tau is not None]
    regrets = [each.regret for each in sweeps]

    def mean(values: Sequence[float | None] | np.ndarray) -> float:
        return float(np.mean([abs(value) for value in values])) if len(values) else float("nan")

    widths = [
        (item.interval[1] - item.interval[0]) / 2 / item.predicted
        for item in used
        if item.interval is not None and item.predicted
    ]
    return ErrorSummary(
        by=by,
        name=name,
        count=len(used),
        skipped=len(items) - len(used),
        mean_error=mean(errors),
        median_error=float(np.median(size)) if len(used) else float("nan"),
        bias=float(errors.mean()) if len(used) else float("nan"),
        p90_error=float(np.quantile(size, 0.9)) if len(used) else float("nan"),
        coverage=float(np.mean([bool(item.covered) for item in used])) if used else float("nan"),
        half_width=float(np.median(widths)) if widths else float("nan"),
        tau=float(np.mean(taus)) if taus else None,
        regret=float(np.mean(regrets)) if regrets else None,
        sweeps=len(regrets),
        constant_error=mean([item.constant_error for item in used]),
        six_nd_error=mean([item.six_nd_error for item in used]),
    )
