"""Whole runs in a terminal: one scenario's, and the frontier of the shortest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from sim.reliability import LoadBy
from sim.report.terminal import assumptions, indented, title
from sim.report.text import heading, remarks
from sim.scaling.run import TrainingRun
from sim.scaling.training import Training
from sim.scaling.training_time import Frontier, FrontierPoint
from sim.scaling.without_flush import WithoutFlush
from sim.specs import ParallelPlan, Scenario
from sim.table import facts_table, plain_table
from sim.units import show, show_count, show_short, show_time, significant

JOULES_PER_GWH = 3.6e12
_SPREAD: dict[LoadBy, str] = {"all": "", "one": "broadcast", "shares": "gather"}
"""What follows the reading of a checkpoint, by who read it."""


def training_view(training: Training, verbose: bool = False) -> Group:
    """Days, goodput, money and energy of a run, each with its 90 % interval."""
    run = training.run
    rows: list[tuple[Any, ...]] = [
        ("Steps", f"{run.steps:,.0f}", f"of {show_time(run.step_time_s)}, {show_count(run.tokens)} tokens"),
        ("Work", *_with_ends(training, lambda run: show_time(run.useful_s))),
    ]
    if training.late is not None and training.stale is not None:
        more = training.stale.tokens / run.tokens - 1
        rows.append(
            ("Late gradients", f"+0 to {more:.1%}", f"more data and steps; up to {show_time(training.stale.wall_s)}")
        )
    lost = {
        "checkpoints": run.goodput.checkpoints,
        "lost work": run.goodput.lost_work,
        "restarts": run.goodput.restarts,
        "waiting for nodes": run.goodput.waiting,
    }
    parts = ", ".join(f"{name} {share:.1%}" for name, share in lost.items() if share >= 5e-4)
    rows.append(("Goodput", f"{run.goodput.useful:.1%}", parts))
    rows.append(("GPU-hours", *_with_ends(training, lambda run: show_short(run.gpu_hours))))
    wall, ends = _with_ends(training, lambda run: show_time(run.wall_s))
    rows.insert(0, ("Wall clock", Text(wall, style="bold green"), ends))
    cost, ends = _with_ends(training, lambda run: show_short(run.cost))
    rows.insert(1, ("Cost", f"{cost} {run.currency}", ends))
    if run.energy_j is not None:
        rows.append(("Energy", *_with_ends(training, _energy)))
    table = facts_table()
    for row in (*rows, *_saving(training), *_loading(training)):
        table.add_row(*row)
    words = f"{show_time(run.wall_s)} and {show_count(run.cost)} {run.currency}"
    return Group(
        heading(training.answer, words), "", indented(table), *assumptions(training.assumptions, verbose=verbose)
    )


def _with_ends(training: Training, words: Callable[[TrainingRun], str]) -> tuple[str, str]:
    """A number of the run, and the ends of its 90 % interval."""
    return words(training.run), f"90 %: {words(training.low)} to {words(training.high)}"


def _energy(run: TrainingRun) -> str:
    return "–" if run.energy_j is None else show(run.energy_j / 3.6e3, "Wh")


def _saving(training: Training) -> Iterator[tuple[str, str, str]]:
    """A checkpoint, how often one is saved, and what saving it in the background would bring."""
    run = training.run
    storing, saved = run.storing, run.checkpoints
    written = f"written in {show_time(storing.blocking_s)} ({storing.limit})"
    yield "Checkpoint", show(storing.checkpoint_bytes, "B"), f"{show(storing.largest_bytes, 'B')} per GPU, {written}"
    drain = f", {show_time(saved.drain_s)} in background" if saved.drain_s else ""
    yield "  one every", show_time(saved.interval_s), f"training stops for {show_time(saved.blocking_s)}{drain}"
    there = training.background
    if there is not None and not saved.drain_s:
        every = f"one every {show_time(there.checkpoints.interval_s)}"
        pause = f"{every}, stops for {show_time(there.checkpoints.blocking_s)}"
        yield "  asynchronous", f"{there.goodput.useful:.1%}", f"goodput, {pause}"


def _loading(training: Training) -> Iterator[tuple[str, str, str]]:
    """A restart and its parts, and how near data come to what storage gives."""
    run = training.run
    failures, way = run.failures, run.loaded_by
    if way is None:
        yield "Restart", show_time(failures.restart_s), "as given, loading included"
    else:
        load = run.storing.loads[way]
        read = f"start-up {show_time(failures.startup_s)}, read {show_time(load.read_s)}"
        spread = f", {_SPREAD[way]} {show_time(load.spread_s)}" if load.spread_s else ""
        yield "Restart", show_time(failures.restart_s), read + spread
    data = training.data
    share = "less than 1 %" if data.share < 0.01 else f"{data.share:.0%}"
    limits = ", which limits the run" if data.slowdown > 1 else ""
    yield "Data", show(data.bytes_per_s, "B/s"), f"{share} of storage's {show(data.limit_bytes_per_s, 'B/s')}{limits}"


def frontier_view(scenario: Scenario, frontier: Frontier, chosen: Mapping[str, FrontierPoint]) -> Group:
    """The frontier as a table, the fastest and the cheapest run, and what was assumed."""
    goal = frontier.goal
    fastest, cheapest = frontier.fastest, frontier.cheapest
    asked = title(
        f"{scenario.name}: {significant(fastest.run.days)} days at the shortest",
        f"\n{show_count(goal.params)} parameters, {show_count(goal.min_tokens)} tokens at a small batch; "
        f"critical batch {show_short(goal.critical_batch)} tokens",
    )
    lines = {"Shortest": _sentence(fastest), "Cheapest": _sentence(cheapest)}
    limits = {"within": "In time", "budget": "In budget"}
    lines |= {limits[name]: _sentence(point) for name, point in chosen.items()}
    words, money = ("limited by", "plan"), f"M{fastest.run.currency}"
    table = plain_table(
        "GPUs", "batch", "tokens", "days", money, "GWh", "MFU", *words, left=words, gap=1, wrap=("plan",)
    )
    for point in frontier.points:
        table.add_row(*_row(point))
    legend = (
        "limited by: the largest cause, and the share of the time that it costs; plan: tp·pp·dp, micro-batch, "
        f"schedule × chunks. Any batch takes at least {goal.least_steps:,.0f} steps. Best of {frontier.plans:,} plans "
        f"of {len(frontier.batches)} batches, {frontier.confirmed} run exactly."
    )
    return Group(asked, "", remarks(lines), "", table, Text(legend, style="dim"), *assumptions(frontier.assumptions))


def without_flush_line(found: WithoutFlush | None) -> Text:
    """What the shortest of the frontier's plans would take without a flush."""
    if found is None:
        return title("\nNo flush  ", "none of these plans has a pipeline that fits with two versions of its weights")
    least, most, own = found.least, found.most, found.instead_of.run
    return title(
        "\nNo flush  ",
        f"{significant(least.days)} to {significant(most.days)} days on {own.num_gpus:,} GPUs under "
        f"{plan_words(found.answer.scenario.plan)}, {significant(own.days)} with its flush; {found.late.note}",
    )


def _row(point: FrontierPoint) -> tuple[str, ...]:
    run = point.run
    cause, share = next(iter(point.losses.items()))
    return (
        f"{run.num_gpus:,}",
        show_short(point.batch_tokens),
        show_short(run.tokens),
        significant(run.days),
        significant(run.cost / 1e6),
        "–" if run.energy_j is None else significant(run.energy_j / JOULES_PER_GWH),
        f"{point.answer.mfu:.0%}",
        f"{cause} {share:.0%}",
        plan_words(point.answer.scenario.plan),
    )


def plan_words(plan: ParallelPlan) -> str:
    """A plan in a few characters: 8·16·24 1 1f1b."""
    chunks = f"×{plan.num_chunks}" if plan.num_chunks > 1 else ""
    return f"{plan.tp}·{plan.pp}·{plan.dp} {plan.microbatch_size} {plan.schedule}{chunks}"


def _sentence(point: FrontierPoint) -> str:
    run = point.run
    low, high = point.days_interval
    return (
        f"{significant(run.days)} days (90 %: {significant(low)} to {significant(high)}) on {run.num_gpus:,} GPUs, "
        f"{show_count(run.cost)} {run.currency}; batch {show_short(point.batch_tokens)} tokens, {run.steps:,.0f} "
        f"steps; limited by {point.limit}"
    )
