"""Schedules side by side: one scenario under each that it can take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sim.errors import FlopcastError, ScheduleError
from sim.estimate import Estimate, estimate
from sim.report.facts import COMMUNICATION, microbatch_words, plan_degrees, question_words
from sim.report.terminal import block, grouped, indented, title
from sim.schedules import get_schedule, schedule_names
from sim.schedules.actions import read_grid
from sim.schedules.passes import weight_versions
from sim.schedules.registry import is_file
from sim.specs import Scenario
from sim.table import columns_table
from sim.traffic.exchanges import step_traffic
from sim.units import show, show_time

SLICES, CHUNKS = 4, 2
"""Slices of a sequence, and chunks a rank, for a schedule that needs several, where the plan says nothing."""

NETWORKS = ("pipeline", "tensor", "data")
"""Kinds of traffic that are told apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule's answer.

    changes : fields of the plan that were set for it.
    facts : numbers of the answer by the keys of docs/schedules.md: times, memory, versions of the weights that a rank
        keeps at most, models that the ranks hold, updates by which the latest gradient is late, what the average GPU
        sends in a step, and communication that lengthens it.
    """

    answer: Estimate
    changes: dict[str, Any]
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The schedule's name."""
        return self.answer.scenario.plan.schedule

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        changed = {f"plan.{name}": value for name, value in self.changes.items()}
        return {"schedule": self.name, "set": {"plan.schedule": self.name} | changed, **self.facts}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows, the fastest first, and (schedule, reason) of what the scenario cannot take."""

    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys, for JSON."""
        return {
            "scenario": self.rows[0].answer.scenario.name,
            "schedules": [row.to_dict() for row in self.rows],
            "left_out": [{"schedule": name, "reason": reason} for name, reason in self.left_out],
        }


def compare_schedules(
    scenario: Scenario,
    names: Sequence[str] | None = None,
    report: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Estimate a scenario under each schedule, registered or a text file with a grid; under all if none is named.

    report : Told each schedule's name before it is tried.
    """
    chosen = schedule_names() if names is None else list(dict.fromkeys(names))
    for name in chosen:
        get_schedule(name)
    rows: list[Row] = []
    left_out = []
    for name in chosen:
        report(name)
        try:
            rows.append(_row(scenario, name))
        except FlopcastError as error:
            left_out.append((name, str(error).removeprefix("Scenario: ").removeprefix("ParallelPlan: ")))
    if not rows:
        reasons = "\n".join(f"{name}: {reason}" for name, reason in left_out)
        raise ScheduleError(f"the scenario can take none of these schedules\n{reasons}")
    return Comparison(tuple(sorted(rows, key=lambda row: row.answer.step_time_s)), tuple(left_out))


def plan_changes(scenario: Scenario, name: str) -> dict[str, Any]:
    """Fields of the plan to change so that a schedule can run, with their new values."""
    plan, chosen = scenario.plan, get_schedule(name)
    if is_file(name):
        grid = read_grid(name)
        chunks = (max(action.stage for row in grid for action in row) + 1) // len(grid)
    elif chosen.chunks == "one":
        chunks = 1
    elif isinstance(chosen.chunks, int):
        chunks = chosen.chunks
    elif name == "modular":
        dealt = scenario.model.num_layers + plan.embedding_as_layer + plan.head_as_layer
        chunks = max(1, -(-dealt // plan.pp))
    else:
        asked = chosen.requirement(plan.pp, plan.num_chunks, scenario.num_microbatches)
        better = chosen.requirement(plan.pp, CHUNKS, scenario.num_microbatches) is None
        chunks = CHUNKS if plan.num_chunks == 1 or (asked and better) else plan.num_chunks
    slices = plan.sequence_slices if plan.sequence_slices > 1 else SLICES
    wanted = {
        "num_chunks": max(1, chunks),
        "sequence_slices": slices if "slices" in chosen.options else 1,
        "microbatch_group": plan.microbatch_group if "group" in chosen.options else None,
    }
    return {field: value for field, value in wanted.items() if value != getattr(plan, field)}


def _row(scenario: Scenario, name: str) -> Row:
    changes = plan_changes(scenario, name)
    answer = estimate(scenario.replace(plan=scenario.plan.replace(schedule=name, **changes)))
    order = answer.timeline.program.order
    versions, late = weight_versions(order)
    sends = float(order.weight[order.abroad(order.needs) >= 0].sum())
    traffic = step_traffic(answer.scenario, sends, copies=order.copies, updates=answer.timeline.updates)
    facts = {
        "step_time_s": answer.step_time_s,
        "bubble_fraction": answer.bubble_fraction,
        "peak_activations_bytes": float(max(use.activations for use in answer.memory)),
        "memory_bytes": answer.largest.total,
        "fits": answer.fits,
        "weight_versions": int(versions.max()),
        "weight_copies": order.copies,
        "staleness": int(late.max()),
        **{f"{name}_bytes": getattr(traffic, name) for name in NETWORKS},
        "exposed_communication_s": sum(answer.breakdown.seconds[cause] for cause in COMMUNICATION),
    }
    return Row(answer, changes, facts)


def comparison_view(comparison: Comparison) -> Group:
    """The comparison as tables: time and memory, communication, what was left out and why."""
    rows, fastest = comparison.rows, comparison.rows[0].answer
    facts, plan = [row.facts for row in rows], fastest.scenario.plan
    recompute = f" · recompute {plan.recompute}" if plan.recompute != "none" else ""
    asked = title(fastest.scenario.name, f"  {question_words(fastest)}")
    asked.append(f"\n{plan_degrees(plan)} · {microbatch_words(fastest)}{recompute}", style="dim")
    memory = [(show(each["memory_bytes"], "B"), each["fits"]) for each in facts]
    names = {"schedule": [row.name for row in rows]}
    times: dict[str, Sequence[str | Text]] = {
        **names,
        "step": [show_time(each["step_time_s"]) for each in facts],
        "slower": ["", *(f"{each['step_time_s'] / fastest.step_time_s - 1:+.1%}" for each in facts[1:])],
        "bubble": [f"{each['bubble_fraction']:.1%}" for each in facts],
        "activ.": [show(each["peak_activations_bytes"], "B") for each in facts],
        "memory": [Text(amount) if fits else Text(f"{amount} !", style="bold red") for amount, fits in memory],
        "weights": [f"{each['weight_copies'] * each['weight_versions']}×" for each in facts],
        "late": [str(each["staleness"]) for each in facts],
    }
    moved = names | {network: [show(each[f"{network}_bytes"], "B") for each in facts] for network in NETWORKS}
    moved["exposed"] = [show_time(each["exposed_communication_s"]) for each in facts]
    fits = all(each["fits"] for each in facts)
    full = "" if fits else f"; ! does not fit in {show(fastest.memory_available_bytes, 'B')}"
    late = "weights: versions and copies of the weights that a rank keeps; late: updates by which gradients come late"
    parts: list[RenderableType] = [asked, "", indented(columns_table(times))]
    parts.append(indented(Text(f"activ., memory: on the fullest rank{full}\n{late}", style="dim")))
    parts += block("Sent by the average GPU per step", "", columns_table(moved))
    parts.append(indented(Text("exposed: communication that lengthens the step", style="dim")))
    if changed := grouped((_settings(row.changes), row.name) for row in rows if row.changes):
        lines = [f"{settings} for {', '.join(names)}" for settings, names in changed.items()]
        parts += block("Changed in the plan", "", Text("\n".join(lines)))
    together = grouped((reason.removeprefix(f"schedule {name!r}: "), name) for name, reason in comparison.left_out)
    if together:
        reasons = [f"{', '.join(names)}: {reason}" for reason, names in together.items()]
        parts += block("Left out", "", Text("\n".join(reasons)))
    return Group(*parts)


def _settings(changes: Mapping[str, Any]) -> str:
    """Fields of the plan that were changed, as one types them."""
    return ", ".join(f"plan.{field}={'none' if value is None else value}" for field, value in changes.items())
