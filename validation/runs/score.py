"""Predict every run of a table, along with two naive guesses, and sum up the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from flopcast_calibration.from_runs import predict
from flopcast_calibration.readers.training_runs import Run, reason
from flopcast_validation.runs.scored import Scored, modelled
from flopcast_validation.runs.sweeps import sweeps_of
from sim.commands.options import finite
from sim.errors import FlopcastError
from sim.report.terminal import grouped
from sim.specs import Scenario
from sim.work.sums import hardware_flop, model_flop, total_params


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


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of the runs of one source, GPU, framework, or of all; nan or None where there are none."""

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
        found: dict[str, Any] = finite(asdict(self))
        return found


def summary_of(by: str, name: str, items: Sequence[Scored]) -> ErrorSummary:
    """Errors of some runs."""
    names = ("error", "covered", "half_width", "constant_error", "six_nd_error")
    used = modelled(items)
    rows = pd.DataFrame([[getattr(item, each) for each in names] for item in used], columns=names, dtype=float)
    size, sweeps = rows.abs().mean(), sweeps_of(used)
    return ErrorSummary(
        by=by,
        name=name,
        count=len(used),
        skipped=len(items) - len(used),
        mean_error=float(size.error),
        median_error=float(rows.error.abs().median()),
        bias=float(rows.error.mean()),
        p90_error=float(rows.error.abs().quantile(0.9)),
        coverage=float(size.covered),
        half_width=float(rows.half_width.median()),
        tau=mean_of([each.tau for each in sweeps]),
        regret=mean_of([each.regret for each in sweeps]),
        sweeps=len(sweeps),
        constant_error=float(size.constant_error),
        six_nd_error=float(size.six_nd_error),
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that exist; None of none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


GROUPINGS: dict[str, Callable[[Scored], str]] = {
    "all": lambda item: "all",
    "fitted": lambda item: "used for fitting" if item.fitted else "not used for fitting",
    "kind": lambda item: _kind_of_model(item.run),
    "gpu": lambda item: item.run.gpu,
    "framework": lambda item: item.run.framework_name,
    "source": lambda item: item.run.source or "not stated",
}


def groups_of(scored: Sequence[Scored]) -> list[ErrorSummary]:
    """Overall, by kind, GPU, framework and source, and by whether runs of the same family set a value."""
    found = []
    for by, name_of in GROUPINGS.items():
        items = modelled(scored) if by == "fitted" else scored
        groups = grouped((name_of(item), item) for item in items)
        found += [summary_of(by, name, groups[name]) for name in sorted(groups)]
    return found


def in_the_wild(scored: Sequence[Scored]) -> ErrorSummary:
    """Runs in the wild: what to expect of a run that nobody here has seen; every source counts as one."""
    sources = grouped((item.run.source, item) for item in scored)
    each = [summary_of("wild", name, items) for name, items in sources.items() if modelled(items)]
    fields = ("mean_error", "bias", "coverage", "constant_error", "six_nd_error")
    means = {field: float(np.mean([getattr(one, field) for one in each])) for field in fields}
    return replace(summary_of("wild", f"in the wild, mean of {len(each)} sources", scored), **means)


def _kind_of_model(run: Run) -> str:
    bits = "8 bits" if run.precision.endswith("fp8") else "4 bits" if run.precision.endswith("fp4") else "16 bits"
    return f"{'dense' if run.dense else 'experts'}, {bits}"
