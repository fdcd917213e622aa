"""Figures of whole runs. Every function returns a figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.breakdown import CAUSES
from sim.report.figures import label_panel, new_figure, open_panels, place_title, plain_axis
from sim.report.training import JOULES_PER_GWH
from sim.scaling.loss_laws import power_sum_loss
from sim.scaling.published import BESIROGLU
from sim.scaling.training import Training
from sim.scaling.training_time import Frontier
from sim.specs import Scenario
from sim.units import show_count, show_short, significant

LIMIT_COLOURS = {
    "GPUs": "#009E73",
    "batch": "#0072B2",
    "bubble": "#56B4E9",
    "network": "#CC79A7",
    "latency": "#E69F00",
    "memory": "#D55E00",
    "failures": "#3B3B3B",
}
LEAST_SHOWN = 0.01
"""Share of the time that a cause must cost somewhere to be drawn."""
_LOST = {
    "checkpoints": "writing checkpoints",
    "lost_work": "work lost in failures",
    "restarts": "restarts",
    "waiting": "waiting for nodes",
}


def training_figure(training: Training) -> Any:
    """Where the days of a run go, and how the loss falls on the way."""
    answer, run = training.answer, training.run
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    shares = answer.breakdown.shares()
    days = {cause.replace("_", " "): shares[cause] * run.useful_s / 86400 for cause in CAUSES}
    days |= {label: getattr(run.goodput, name) * run.days for name, label in _LOST.items()}
    days = {name: value for name, value in days.items() if value >= 0.001 * run.days}
    names, ends = list(days), np.cumsum(list(days.values()))
    lost = set(_LOST.values())
    colours = ["#009E73" if name == "flop at peak" else "#3B3B3B" if name in lost else "#E69F00" for name in names]
    left.barh(names, list(days.values()), left=ends - list(days.values()), color=colours)
    for row, (end, value) in enumerate(zip(ends, days.values(), strict=True)):
        left.annotate(f" {significant(value, 2)}", (end, row), va="center", fontsize=8)
    left.invert_yaxis()
    days_go = "where the days go: arithmetic, what slows it, failures"
    label_panel(left, days_go, "days", xlim=(0, run.days * 1.1))
    low, high = training.low.days, training.high.days
    tokens = np.geomspace(run.tokens / 1000, run.tokens, 200)
    loss = power_sum_loss(answer.active_params, tokens, BESIROGLU)
    # The law is of dense models: a mixture does better than one of its active parameters.
    of_active = ", active parameters" if answer.scenario.model.num_experts else ""
    share = tokens / run.tokens
    right.plot(share * run.days, loss, color="#0072B2", lw=1.8)
    around = [[run.days - low], [high - run.days]]
    right.errorbar(run.days, loss[-1], xerr=around, fmt="o", color="#0072B2", capsize=3, label="90 % interval")
    words = f"{significant(run.days)} days, loss {loss[-1]:.2f}"
    right.annotate(words, (run.days, loss[-1]), (-6, 8), textcoords="offset points", ha="right", fontsize=9)
    law = f"loss by Besiroglu 2024{of_active} [nats/token]"
    label_panel(right, "what they buy", "days", law, xlim=(0, None), ylim=(None, loss[20]))
    open_panels(left, right, grid="x")
    title = f"{answer.scenario.name}: {show_count(run.tokens)} tokens on {run.num_gpus:,} GPUs"
    place_title(figure, f"{title}, goodput {run.goodput.useful:.1%}", size=12)
    return figure


def frontier_figure(scenario: Scenario, frontier: Frontier) -> Any:
    """Days against GPUs, what limits each size and by how much, and money and energy against days."""
    figure = new_figure(13.5, 4.6)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 0.9, 1))
    gpus = np.array([point.run.num_gpus for point in frontier.points], dtype=float)
    days = np.array([point.run.days for point in frontier.points])
    cost = np.array([point.run.cost for point in frontier.points])
    low, high = np.array([point.days_interval for point in frontier.points]).T
    left.fill_between(gpus, low, high, color="#0072B2", alpha=0.12, lw=0, label="90 %")
    left.plot(gpus, days, color="0.6", lw=1.2, zorder=1)
    ideal = days[0] * gpus[0] / gpus
    left.plot(gpus, ideal, color="0.6", lw=1, ls=":", label="as good as the smallest")
    right.plot(days, cost, color="0.6", lw=1.2, zorder=1)
    for limit, colour in LIMIT_COLOURS.items():
        here = np.array([point.limit == limit for point in frontier.points])
        if here.any():
            left.scatter(gpus[here], days[here], color=colour, label=f"limited by {limit}", zorder=2)
            right.scatter(days[here], cost[here], color=colour, zorder=2)
    for point, where in ((frontier.fastest, "shortest"), (frontier.cheapest, "cheapest")):
        run = point.run
        text = f"{where}\n{significant(run.days)} days"
        side, gap = ("right", -8) if where == "shortest" else ("left", 8)
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
        left.annotate(text, (run.num_gpus, run.days), (gap, 10 if gap > 0 else -26), ha=side, **look)
        beside, other = ((-8, -16), "right") if where == "cheapest" else ((24, 0), "left")  # right of the steep end
        right.annotate(f"{where}: {run.num_gpus:,} GPUs", (run.days, run.cost), beside, ha=other, **look)
    for cause, colour in LIMIT_COLOURS.items():
        lost = np.array([point.losses.get(cause, 0.0) for point in frontier.points])
        if lost.max() > LEAST_SHOWN:
            middle.plot(gpus, lost, "o-", ms=4, lw=1.4, color=colour, label=cause)
    size: dict[str, Any] = {"xscale": "log", "x": "GPUs"}
    failing, money = "days, failures included", f"cost [{frontier.fastest.run.currency}]"
    label_panel(left, "the fastest run of every size", y=failing, yscale="log", **size)
    saved = "of the time, saved without this cause"
    label_panel(middle, "where the limit comes from", y=saved, ylim=(0, 1), **size)
    label_panel(right, "what time costs", failing, money, xscale="log", ylim=(0, None))
    middle.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    spent = frontier.fastest.run
    if spent.energy_j is not None:
        joules = spent.energy_j / spent.cost
        energy = right.secondary_yaxis(
            "right",
            functions=(lambda money: money * joules / JOULES_PER_GWH, lambda gwh: gwh * JOULES_PER_GWH / joules),
        )
        energy.set_ylabel("energy [GWh]")
    right.yaxis.set_major_formatter(lambda value, _: show_short(value) if value else "0")
    for panel in (left, middle, right):
        panel.spines["top"].set_visible(False)
        panel.grid(alpha=0.25, lw=0.6)
        plain_axis(panel.xaxis)
    plain_axis(left.yaxis)
    middle.spines["right"].set_visible(False)
    goal = frontier.goal
    sizes = f"{show_count(goal.params)} parameters, {show_count(goal.min_tokens)} tokens"
    place_title(figure, f"{scenario.name}: {sizes}, critical batch {show_short(goal.critical_batch)}", size=12)
    return figure
