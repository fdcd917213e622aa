"""Plans of pipelines without flush in a terminal."""

from __future__ import annotations

from rich.console import Group

from sim.planners.answers import NEGLIGIBLE, PipeDreamAnswer
from sim.planners.pipeline_plan import PipelinePlan
from sim.report.terminal import assumptions, indented, remarks, title
from sim.table import Table, columns_table
from sim.units import show, show_time, significant


def pipedream_view(answer: PipeDreamAnswer) -> Group:
    """PipeDream's plan: its stages, what it gains over data parallelism, and what its play adds."""
    plan, played = answer.plan, answer.played
    machine = " × ".join(str(level) for level in reversed(plan.levels))
    asked = title(plan.profile.name, f"  {len(plan.profile)} layers on {plan.num_workers} workers ({machine})\n")
    gain, slower = significant(plan.data_parallel_s / plan.period_s), show_time(plan.data_parallel_s)
    data_parallel = f"{gain} times data parallelism ({slower})"
    lines = {
        "Plan": f"{plan.config}, one micro-batch per {show_time(plan.period_s)}, limited by {plan.bottleneck}",
        "Gain": f"{significant(plan.profile.seconds / plan.period_s)} times one worker, {data_parallel}",
        "Played": f"not at all: {answer.unplayed}",
    }
    if played is not None:
        size = plan.profile.microbatch_size
        samples = f", {significant(size / played.period_s)} samples/s" if size > 1 else ""
        pace = f"one micro-batch per {show_time(played.period_s)}{samples}: {_more(played.over_plan)}"
        late, versions = max(played.staleness), max(played.versions)
        kept = f"gradients up to {late} update{'s' * (late > 1)} late, {versions} versions of the weights"
        lines["Played"] = f"{pace}; {kept if late else 'no gradient is late'}"
    if answer.covered is not None:
        first = [sum(plan.replicas[:stage]) for stage in range(len(plan.replicas))]
        most = "-".join(str(answer.covered.in_flight[place]) for place in first)
        lines["More"] = f"with {most} micro-batches in flight {_more(answer.covered.over_plan)}"
    notes = [
        "reductions are ring all-reduces and overlap compute; sends take turns on a stage's link",
        f"each worker of the first stage has {plan.active_minibatches} micro-batches in flight (NOAM)",
        *([f"layers: {plan.profile.source}"] if plan.profile.source else []),
    ]
    return Group(asked, indented(_stages(plan)), "", remarks(lines), *assumptions(notes))


def _stages(plan: PipelinePlan) -> Table:
    """A table of the stages: their layers, workers, times and memory."""
    stages, names = plan.stages, [layer.name for layer in plan.profile.layers]
    columns = {
        "stage": [str(number) for number in range(len(stages))],
        "layers": [
            f"{names[s.first]} … {names[s.last - 1]}" if s.last - s.first > 1 else names[s.first] for s in stages
        ],
        "workers": [str(stage.replicas) for stage in stages],
        "F + B": [show_time(stage.forward_s + stage.backward_s) for stage in stages],
        "period": [show_time(stage.period_s) for stage in stages],
        "in flight": [str(stage.in_flight) for stage in stages],
        "memory": [show(stage.memory_bytes, "B") for stage in stages],
    }
    return columns_table(columns, left=("layers",), wrap=("layers",))


def _more(over: float) -> str:
    return "as planned" if over <= 1 + NEGLIGIBLE else f"{over - 1:.1%} more than planned"
