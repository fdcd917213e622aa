"""Plans of pipelines without flush in a terminal."""

from __future__ import annotations

from rich.console import Group

from sim.planners.answers import NEGLIGIBLE, PipeDreamAnswer, TwoBufferedAnswer
from sim.planners.layers import LayerProfile
from sim.planners.played import PlayedPlan
from sim.report.terminal import assumptions, indented, title
from sim.table import plain_table
from sim.units import show, show_time, significant


def pipedream_view(answer: PipeDreamAnswer) -> Group:
    """PipeDream's plan: its stages, what it gains over data parallelism, and what its play adds."""
    plan, played = answer.plan, answer.played
    machine = " × ".join(str(level) for level in reversed(plan.levels))
    asked = title(plan.profile.name, f"  {len(plan.profile)} layers on {plan.num_workers} workers ({machine})\n")
    table = plain_table(
        "stage", "layers", "workers", "F + B", "period", "in flight", "memory", left=("layers",), wrap=("layers",)
    )
    for number, stage in enumerate(plan.stages):
        table.add_row(
            str(number),
            _layers(plan.profile, stage.first, stage.last),
            str(stage.replicas),
            show_time(stage.forward_s + stage.backward_s),
            show_time(stage.period_s),
            str(stage.in_flight),
            show(stage.memory_bytes, "B"),
        )
    size = plan.profile.microbatch_size
    lines = [
        title(f"{plan.config}  ", f"a micro-batch each {show_time(plan.period_s)}, limited by {plan.bottleneck}"),
        title(
            "Gain  ",
            f"{significant(plan.single_s / plan.period_s)} times one worker, "
            f"{significant(plan.data_parallel_s / plan.period_s)} times data parallelism "
            f"({show_time(plan.data_parallel_s)})",
        ),
    ]
    if played is None:
        lines.append(title("Play  ", f"none: {answer.unplayed}"))
    else:
        samples = f", {significant(size / played.period_s)} samples/s" if size > 1 else ""
        pace = f"a micro-batch each {show_time(played.period_s)}{samples}: {_more(played.over_plan)}"
        lines.append(title("Play  ", f"{pace}; {_late(played)}"))
    if answer.covered is not None:
        most = "-".join(str(answer.covered.in_flight[place]) for place in _first_workers(plan.replicas))
        lines.append(title("More  ", f"with {most} micro-batches in flight {_more(answer.covered.over_plan)}"))
    if answer.estimate is not None:
        layout = f" with plan.pipeline_layout {answer.layout}" if answer.layout else ""
        fits = "" if answer.estimate.fits else ", which does not fit"
        lines.append(title("Own   ", f"{show_time(answer.estimate.step_time_s)} a step{layout}{fits}"))
    return Group(asked, indented(table), "", *lines, *assumptions(_pipedream_notes(answer)))


def _layers(profile: LayerProfile, first: int, last: int) -> str:
    names = [profile.layers[place].name for place in (first, last - 1)]
    return names[0] if last - first == 1 else f"{names[0]} … {names[1]}"


def _more(over: float) -> str:
    return "as planned" if over <= 1 + NEGLIGIBLE else f"{over - 1:.1%} more than planned"


def _first_workers(replicas: tuple[int, ...]) -> list[int]:
    return [sum(replicas[:stage]) for stage in range(len(replicas))]


def _late(played: PlayedPlan) -> str:
    """How late gradients are, and what that keeps."""
    late, versions = max(played.staleness), max(played.versions)
    if not late:
        return "no gradient is late"
    return f"gradients up to {late} update{'s' * (late > 1)} late, {versions} versions of the weights"


def _pipedream_notes(answer: PipeDreamAnswer) -> list[str]:
    plan = answer.plan
    notes = [
        f"reductions by rule {plan.sync}, beside compute; sends take turns on a stage's link",
        f"each worker of the first stage lets in {plan.active_minibatches} micro-batches (NOAM)",
    ]
    if plan.profile.source:
        notes.append(f"layers: {plan.profile.source}")
    return notes


def two_buffered_view(answer: TwoBufferedAnswer, top: int) -> Group:
    """2BW's fastest plans beside the house's own times of them."""
    plans, estimates = answer.plans, answer.estimates
    found = len(plans.plans)
    head = title("PipeDream-2BW's planner", f"  {plans.tried} widths, depths and micro-batches tried, {found} fit\n")
    own = ("own", "fits") if estimates else ()
    table = plain_table("", "width", "depth", "mbs", "m", "recompute", "step", "memory", *own, left=("recompute",))
    for number, plan in enumerate(plans.plans[:top]):
        cells = [
            str(number + 1),
            str(plan.width),
            str(plan.depth),
            str(plan.microbatch_size),
            str(plan.num_microbatches),
            "full" if plan.recompute else "none",
            show_time(plan.step_time_s),
            show(plan.memory_bytes, "B"),
        ]
        if estimates is not None:
            cells += [show_time(estimates[number].step_time_s), "yes" if estimates[number].fits else "no"]
        table.add_row(*cells)
    best = plans.best
    lines = [
        title(
            "Best  ",
            f"width {best.width}, depth {best.depth}: {significant(best.samples_per_s)} samples/s, limited by "
            f"{'reduction' if best.reduce_s > best.compute_s else 'compute and sends'}",
        )
    ]
    if answer.verdict:
        lines.append(title("Own   ", answer.verdict))
    notes = [
        "2BW's cost model (Narayanan et al. 2021): compute and sends of the slowest stage, or its all-reduce",
        "mbs: samples of a micro-batch; m: of a batch and replica",
    ]
    return Group(head, indented(table), "", *lines, *assumptions(notes))
