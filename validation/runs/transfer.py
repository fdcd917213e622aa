"""Transfer: how good a prediction is of a framework that nothing is known of, measured on those that are known.

Each run's stack is replaced by what an unknown framework of its time gets; all else that its row says stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from calibration.readers.frameworks import UNKNOWN, version_of_unknown
from sim.errors import FlopcastError
from sim.estimate import estimate
from sim.specs import Scenario, build_scenario
from sim.uncertainty import is_unknown
from validation.runs.export import file_of
from validation.runs.score import ErrorSummary, groups_of
from validation.runs.scored import Scored

KEPT = ("model", "cluster", "plan", "training", "profile")


def as_unknown(scored: Sequence[Scored], report: Callable[[int, int], None] = lambda done, total: None) -> list[Scored]:
    """The runs that were predicted, their frameworks taken for unknown ones; those that already were stay.

    Parameters
    ----------
    scored : sequence of Scored
    report : function
        Called with (runs done, runs in all).
    """
    used = [item for item in scored if item.scenario is not None]
    answers: dict[int, tuple[Scenario, float, tuple[float, float], bool] | None] = {}
    found = []
    for done, item in enumerate(used, start=1):
        assert item.scenario is not None
        key = id(item.scenario)
        if key not in answers:
            answers[key] = _answer(item)
        answer = answers[key]
        if answer is not None:
            found.append(_with(item, *answer))
        if done % 50 == 0 or done == len(used):
            report(done, len(used))
    return found


def _answer(item: Scored) -> tuple[Scenario, float, tuple[float, float], bool] | None:
    """Scenario with an unknown framework, its step time and interval, and whether it fits; None where it cannot be."""
    run, scenario = item.run, item.scenario
    assert scenario is not None
    if is_unknown(scenario.stack):
        answer = estimate(scenario)
    else:
        file = file_of(run, scenario)
        version = version_of_unknown(run.source, run.gpu, scenario.training.precision)
        stack = {"framework": UNKNOWN, "version": version}
        try:
            answer = estimate(build_scenario({**{name: file[name] for name in KEPT}, "stack": stack}, where=run.id))
        except FlopcastError:
            return None
    return answer.scenario, answer.step_time_s, answer.step_time_interval_s, answer.fits


def _with(item: Scored, scenario: Scenario, step_time_s: float, interval_s: tuple[float, float], fits: bool) -> Scored:
    ends = sorted(item.run.in_unit(seconds, scenario) for seconds in interval_s)
    return replace(
        item,
        scenario=scenario,
        predicted=item.run.in_unit(step_time_s, scenario),
        step_time_s=step_time_s,
        error=step_time_s / item.run.step_time_s(scenario) - 1.0,
        interval=(ends[0], ends[1]),
        fits=fits,
    )


def transfer_table(scored: Sequence[Scored], unknown: Sequence[Scored]) -> Any:
    """A rich table: by framework, errors as known and as unknown; at its end the mean over frameworks."""
    from sim.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("taken for unknown", "runs", "known", "90 %", "unknown", "bias", "90 %", "tau", "regret"):
        table.add_column(head, justify="left" if head == "taken for unknown" else "right", no_wrap=True)
    known, hidden = (
        {group.name: group for group in groups_of(items) if group.by == "framework" and group.count}
        for items in (scored, unknown)
    )
    for name in sorted(known.keys() & hidden.keys()):
        table.add_row(name, *_cells(known[name], hidden[name]))
    if known and hidden:
        table.add_row(
            "mean over frameworks",
            f"{sum(group.count for group in hidden.values())}",
            *_means([(known[name], hidden[name]) for name in known.keys() & hidden.keys()]),
        )
    return table


def _cells(known: ErrorSummary, hidden: ErrorSummary) -> tuple[str, ...]:
    return (
        f"{hidden.count}",
        f"{known.mean_error:.1%}",
        f"{known.coverage:.0%}",
        f"{hidden.mean_error:.1%}",
        f"{hidden.bias:+.1%}",
        f"{hidden.coverage:.0%}",
        "" if hidden.tau is None else f"{hidden.tau:.2f}",
        "" if hidden.regret is None else f"{hidden.regret:.1%}",
    )


def _means(pairs: Sequence[tuple[ErrorSummary, ErrorSummary]]) -> tuple[str, ...]:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return (
        f"{mean([known.mean_error for known, _ in pairs]):.1%}",
        f"{mean([known.coverage for known, _ in pairs]):.0%}",
        f"{mean([hidden.mean_error for _, hidden in pairs]):.1%}",
        f"{mean([hidden.bias for _, hidden in pairs]):+.1%}",
        f"{mean([hidden.coverage for _, hidden in pairs]):.0%}",
    )
