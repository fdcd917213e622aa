"""Whole runs in a terminal and as figures: one scenario's, and the frontier of the shortest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from sim.canvas import new_figure
from sim.reliability.storing import LoadBy
from sim.report.facts import short_plan
from sim.report.figures import label_panel, open_panels, place_labels, place_title, plain_axis, tick
from sim.report.terminal import assumptions, indented, remarks, title
from sim.report.text import heading
from sim.scaling.run import Training, TrainingRun
from sim.scaling.training_time import Frontier, FrontierPoint
from sim.specs import Scenario
from sim.table import facts_table, rows_table
from sim.units import show, show_count, show_short, show_time, significant

JOULES_PER_GWH = 3.6e12
_SPREAD: dict[LoadBy, str] = {"all": "", "one": "broadcast", "shares": "gather"}
"""What follows the reading of a checkpoint, by who read it."""


def training_view(training: Training, verbose: bool = False) -> Group:
    """Days, goodput, money and energy of a run, each with its 90 % interval."""
    run, goodput = training.run, training.run.goodput

    def ends(words: Callable[[TrainingRun], str]) -> tuple[str, str]:
        low, high = words(training.low), words(training.high)
        return words(run), "" if low == high else f"90 %: {low} to {high}"

    wall, around = ends(lambda run: show_time(run.wall_s))
    cost, of_cost = ends(lambda run: show_short(run.cost))
    tokens, most, fewest = (show_short(each.tokens) for each in (run, training.low, training.high))
    profile = training.answer.scenario.profile
    whose = profile.name + ", anchored" * bool(profile.provenance.measured)
    within = [] if most == fewest else [("Tokens", tokens, f"90 %: {fewest} to {most}")]
    rows: list[tuple[Any, ...]] = [
        *within,
        ("Wall clock", Text(wall, style="bold green"), "as given" if within else around),
        ("Cost", f"{cost} {run.currency}", of_cost),
        ("Steps", f"{run.steps:,.0f}", f"of {show_time(run.step_time_s)} (profile {whose}), {tokens} tokens"),
        ("Work", *ends(lambda run: show_time(run.useful_s))),
    ]
    lost = {"checkpoints": goodput.checkpoints, "lost work": goodput.lost_work}
    lost |= {"restarts": goodput.restarts, "waiting for nodes": goodput.waiting}
    parts = ", ".join(f"{name} {share:.1%}" for name, share in lost.items() if share >= 5e-4)
    rows.append(("Goodput", f"{goodput.useful:.1%}", parts))
    rows.append(("GPU-hours", *ends(lambda run: show_short(run.gpu_hours))))
    if run.energy_j is not None:
        energy, around = ends(lambda run: "–" if run.energy_j is None else show(run.energy_j / 3.6e3, "Wh"))
        rows.append(("Energy", energy, f"{around and f'{around}; '}full power × PUE {training.pue:g}"))
    rows += [*_saving(training), *_loading(training)]
    words = f"{show_time(run.wall_s)} and {show_count(run.cost)} {run.currency}"
    words = f"{show_count(run.tokens)} tokens in {words}" if within else words
    notes = assumptions(training.assumptions, verbose=verbose)
    return Group(heading(training.answer, words), "", indented(facts_table(rows)), *notes)


def _saving(training: Training) -> Iterator[tuple[str, str, str]]:
    """A checkpoint, how often one is saved, and what saving it in the background would bring."""
    storing, saved, there = training.run.storing, training.run.checkpoints, training.background
    written = f"{show_time(storing.blocking_s)} to write, limited by the {storing.limit}"
    yield "Checkpoint", show(storing.checkpoint_bytes, "B"), written
    yield "  largest", show(storing.largest_bytes, "B"), "that one GPU writes"
    drain = f", {show_time(saved.drain_s)} in background" if saved.drain_s else ""
    yield "  one every", show_time(saved.interval_s), f"training stops for {show_time(saved.blocking_s)}{drain}"
    if there is not None and not saved.drain_s:
        every, pause = show_time(there.checkpoints.interval_s), show_time(there.checkpoints.blocking_s)
        said = f"goodput (--asynchronous), every {every}, stops {pause}"
        yield "  background", f"{there.goodput.useful:.1%}", said


def _loading(training: Training) -> Iterator[tuple[str, str, str]]:
    """A restart and its parts, and how near data come to what storage gives."""
    failures, storing, data = training.run.failures, training.run.storing, training.data
    load = storing.load
    parts = f"start-up {show_time(failures.startup_s)}, read {show_time(load.read_s)}"
    parts += f", {_SPREAD[storing.load_by]} {show_time(load.spread_s)}" if load.spread_s else ""
    yield "Restart", show_time(failures.restart_s), parts
    share = "less than 1 %" if data.share < 0.01 else f"{data.share:.0%}"
    limits = ", which limits the run" if data.slowdown > 1 else ""
    yield "Data", show(data.bytes_per_s, "B/s"), f"{share} of storage's {show(data.limit_bytes_per_s, 'B/s')}{limits}"


def frontier_view(scenario: Scenario, frontier: Frontier, chosen: Mapping[str, FrontierPoint]) -> Group:
    """The frontier as a table, the fastest and the cheapest run, and what was assumed."""
    goal, fastest = frontier.goal, frontier.fastest
    critical, sizes = show_short(goal.critical_batch), len(frontier.batches)
    asked = title(
        f"{scenario.name}: {significant(fastest.run.days)} days at the shortest",
        f"\n{show_count(goal.params)} parameters. Small batches need {show_count(goal.min_tokens)} tokens in all. "
        f"Batches of B tokens need 1 + B / {critical} times as many ({critical} is the critical batch).",
    )
    limits = {"within": "In time", "budget": "In budget"}
    lines = {"Shortest": fastest, "Cheapest": frontier.cheapest} | {limits[name]: chosen[name] for name in chosen}
    sentences = {name: _sentence(point) for name, point in lines.items()}
    words, money = ("limited by", "plan"), f"M{fastest.run.currency}"
    headings = ("GPUs", "batch", "tokens", "days", money, "GWh", "MFU", *words)
    table = rows_table(headings, map(_frontier_row, frontier.points), left=words, gap=1, wrap=("plan",))
    legend = (
        "limited by: the largest cause, and the share of the time that it costs; plan: tp·pp·dp, micro-batch, "
        f"schedule × chunks. Any batch takes at least {goal.least_steps:,.0f} steps. Of {frontier.plans:,} plans of "
        f"{sizes} batch size{'s' * (sizes > 1)} the exact engine ran {frontier.confirmed}."
    )
    below = (Text(legend, style="dim"), *assumptions(frontier.assumptions))
    return Group(asked, "", remarks(sentences), "", table, *below)


def _frontier_row(point: FrontierPoint) -> tuple[str, ...]:
    run, (cause, share) = point.run, next(iter(point.losses.items()))
    energy = "–" if run.energy_j is None else significant(run.energy_j / JOULES_PER_GWH)
    sizes = (f"{run.num_gpus:,}", show_short(point.batch_tokens), show_short(run.tokens))
    costs = (significant(run.days), significant(run.cost / 1e6), energy, f"{point.answer.mfu:.0%}")
    return (*sizes, *costs, f"{cause} {share:.0%}", short_plan(point.answer.scenario.plan))


def _sentence(point: FrontierPoint) -> str:
    run, (low, high) = point.run, map(significant, point.days_interval)
    batch = f"batch {show_short(point.batch_tokens)} tokens, {run.steps:,.0f} steps"
    return (
        f"{significant(run.days)} days (90 %: {low} to {high}) on {run.num_gpus:,} GPUs, {show_count(run.cost)} "
        f"{run.currency}; {batch}; limited by {point.limit}"
    )


LEAST_SHOWN = 0.01
"""Share of the time that a cause must cost somewhere to be drawn."""
LIMIT_COLOURS = {
    "GPUs": "#009E73",
    "batch": "#0072B2",
    "bubble": "#56B4E9",
    "network": "#CC79A7",
    "latency": "#E69F00",
    "memory": "#D55E00",
    "failures": "#3B3B3B",
}


def frontier_figure(scenario: Scenario, frontier: Frontier) -> Any:
    """Days against GPUs, what limits each size and by how much, and money against days."""
    figure = new_figure(13.5, 4.6)
    left, middle, right = panels = figure.subplots(1, 3, width_ratios=(1.1, 0.9, 1))
    runs, points = [point.run for point in frontier.points], frontier.points
    gpus, days, cost = np.array([(run.num_gpus, run.days, run.cost) for run in runs], dtype=float).T
    low, high = np.array([point.days_interval for point in points]).T
    left.fill_between(gpus, low, high, color="#0072B2", alpha=0.12, lw=0, label="90 %")
    left.plot(gpus, days[0] * gpus[0] / gpus, color="0.6", lw=1, ls=":", label="as good as the smallest")
    for panel, across, up in ((left, gpus, days), (right, days, cost)):
        panel.plot(across, up, color="0.6", lw=1.2, zorder=1)
        for limit, colour in LIMIT_COLOURS.items():
            here = np.array([point.limit == limit for point in points])
            if here.any():
                label = f"limited by {limit}" if panel is left else ""
                panel.scatter(across[here], up[here], color=colour, label=label, zorder=2)
    for cause, colour in LIMIT_COLOURS.items():
        lost = np.array([point.losses.get(cause, 0.0) for point in points])
        if lost.max() > LEAST_SHOWN:
            middle.plot(gpus, lost, "o-", ms=4, lw=1.4, color=colour, label=cause)
    money = f"cost [{frontier.fastest.run.currency}]"
    label_panel(left, "the fastest run of every size", "GPUs", "days, failures included", xscale="log", yscale="log")
    saved = "share of the time that it costs"
    label_panel(middle, "where the limit comes from", "GPUs", saved, xscale="log", ylim=(0, 1))
    label_panel(right, "what time costs", "days, failures included", money, xscale="log", ylim=(0, None))
    middle.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    right.yaxis.set_major_formatter(lambda value, _: tick(value))
    open_panels(*panels, grid="both")
    for axis in (left.xaxis, left.yaxis, middle.xaxis, right.xaxis):
        plain_axis(axis)
    for panel, across, up in ((left, gpus, days), (right, days, cost)):
        labels = []
        for name, point in (("shortest", frontier.fastest), ("cheapest", frontier.cheapest)):
            at, run = points.index(point), point.run
            beside = f"{significant(run.days)} days" if panel is left else f"{run.num_gpus:,} GPUs"
            labels.append((across[at], up[at], f"{name}\n{beside}"))
        place_labels(panel, labels, reach=14)
    goal = frontier.goal
    sizes = f"{show_count(goal.params)} parameters, {show_count(goal.min_tokens)} tokens"
    place_title(figure, f"{scenario.name}: {sizes}, critical batch {show_short(goal.critical_batch)}", size=12)
    return figure
